# SPDX-License-Identifier: Apache-2.0
"""The fusion graph: a flat, immutable, topologically ordered list of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from fusedsl.graph.span import SourceSpan
from fusedsl.graph.types import ScalarType, TensorType, ValueType


@attrs.frozen(cache_hash=True)
class Node:
    """One operation and its single result; ``id`` is its place in ``Graph.nodes``.

    ``op`` names an entry of :data:`fusedsl.graph.ops.OPS`. ``attributes`` is a sorted tuple of (name, hashable value).
    ``name`` is the user's variable name, or one made from the op; it is unique within the graph.
    """

    id: int
    op: str
    inputs: tuple[int, ...]
    type: ValueType
    attributes: tuple[tuple[str, Any], ...] = ()
    name: str = attrs.field(default="", eq=False)
    span: SourceSpan | None = attrs.field(default=None, eq=False, repr=False)

    def attribute(self, key: str) -> Any:
        """The attribute ``key``; KeyError if the node has none."""
        for name, value in self.attributes:
            if name == key:
                return value
        raise KeyError(key)

    @property
    def tensor(self) -> TensorType:
        """The type of a tensor node."""
        assert isinstance(self.type, TensorType), f"{self.name} is a host scalar"
        return self.type

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.type, TensorType)

    @property
    def is_scalar(self) -> bool:
        return isinstance(self.type, ScalarType)


@attrs.frozen(cache_hash=True)
class Graph:
    """A function as a list of nodes.

    Attributes:
        name: the user's function name.
        nodes: topologically ordered; ``nodes[i].id == i``.
        inputs: ids of the ``input`` nodes (tensors), in argument order.
        scalars: ids of the ``scalar_input`` nodes, in argument order.
        outputs: ids of the tensor results, in return order (an id may stand twice).
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    scalars: tuple[int, ...]
    outputs: tuple[int, ...]

    def __getitem__(self, node_id: int) -> Node:
        return self.nodes[node_id]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def users(self) -> dict[int, tuple[int, ...]]:
        """Node id -> ids of the nodes that read it, in order."""
        found: dict[int, list[int]] = {node.id: [] for node in self.nodes}
        for node in self.nodes:
            for source in dict.fromkeys(node.inputs):
                found[source].append(node.id)
        return {key: tuple(value) for key, value in found.items()}
