# SPDX-License-Identifier: Apache-2.0
"""Builds a Graph node by node: unique names, shared common subexpressions, and unification of symbolic extents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import torch

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.span import SourceSpan
from fusedsl.graph.types import Extent, ScalarType, Symbol, TensorType, ValueType, extent_hint


class Builder:
    """Collects nodes; ``finish`` freezes them into a Graph.

    Symbols may be unified while building, with each other or with a number (``unify``); ``finish`` rewrites every type
    with the representative, and ``equalities`` then lists the pairs that were joined, which the caller must guard.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.span: SourceSpan | None = None
        self.equalities: list[tuple[Extent, Symbol]] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._names: dict[str, int] = {}
        self._parent: dict[Symbol, Extent] = {}

    # extents -------------------------------------------------------------------------------------------------------

    def resolve(self, extent: Extent) -> Extent:
        """The representative of ``extent`` under the unifications made so far."""
        if not self._parent:
            return extent
        while isinstance(extent, Symbol) and extent in self._parent:
            extent = self._parent[extent]
        return extent

    def unify(self, a: Extent, b: Extent) -> Extent:
        """Declare two extents equal (their hints must be) and return the representative."""
        a, b = self.resolve(a), self.resolve(b)
        assert extent_hint(a) == extent_hint(b), f"cannot unify {a} and {b}"
        if a == b:
            return a
        if not isinstance(b, Symbol):
            a, b = b, a
        assert isinstance(b, Symbol)
        self._parent[b] = a
        self.equalities.append((a, b))
        return a

    # nodes ---------------------------------------------------------------------------------------------------------

    def add(
        self,
        op: str,
        inputs: Iterable[int],
        type: ValueType,
        *,
        share: bool = True,
        name: str | None = None,
        **attributes: Any,
    ) -> int:
        """Append a node and return its id; an equal node that exists already is returned instead (``share``)."""
        sources = tuple(inputs)
        attrs_ = tuple(sorted(attributes.items()))
        if self._parent and isinstance(type, TensorType):
            type = TensorType(type.dtype, tuple(self.resolve(e) for e in type.shape))
        key = (op, sources, type, tuple((k, _freeze_number(v)) for k, v in attrs_))
        if share and key in self._known:
            return self._known[key]
        node_id = len(self.nodes)
        self.nodes.append(Node(node_id, op, sources, type, attrs_, self._unique(name or _short(op)), self.span))
        if share:
            self._known[key] = node_id
        return node_id

    def rename(self, node_id: int, name: str) -> None:
        """Give a node the user's variable name, unless it already carries one of the user's."""
        node = self.nodes[node_id]
        if node.op in ("input", "scalar_input") or not node.name.startswith("_"):
            return
        self.nodes[node_id] = attrs.evolve(node, name=self._unique(name))

    def type(self, node_id: int) -> ValueType:
        """The type of a node under the unifications made so far."""
        type_ = self.nodes[node_id].type
        if self._parent and isinstance(type_, TensorType):
            return TensorType(type_.dtype, tuple(self.resolve(e) for e in type_.shape))
        return type_

    def tensor(self, node_id: int) -> TensorType:
        """The type of a tensor node under the unifications made so far."""
        type_ = self.type(node_id)
        assert isinstance(type_, TensorType)
        return type_

    def input(self, name: str, dtype: torch.dtype, shape: Iterable[int]) -> int:
        """A tensor argument; extents 0 and 1 are static, every other dim gets a symbol of its own."""
        index = sum(node.op == "input" for node in self.nodes)
        extents: tuple[Extent, ...] = tuple(
            size if size < 2 else Symbol(f"{name}.{dim}", size) for dim, size in enumerate(shape)
        )
        return self.add("input", (), TensorType(dtype, extents), share=False, name=name, index=index)

    def scalar_input(self, name: str, kind: str) -> int:
        """A Python number that is an argument, known only at call time."""
        index = sum(node.op == "scalar_input" for node in self.nodes)
        return self.add("scalar_input", (), ScalarType(kind), share=False, name=name, index=index)  # type: ignore[arg-type]

    def finish(self, outputs: Iterable[int]) -> Graph:
        """Freeze: drop dead nodes (arguments stay), renumber, rewrite types with unified symbols."""
        outputs = tuple(outputs)
        wanted = set(outputs)
        for node in reversed(self.nodes):
            if node.id in wanted or node.op in ("input", "scalar_input"):
                wanted.add(node.id)
                wanted.update(node.inputs)
        renumber: dict[int, int] = {}
        kept: list[Node] = []
        for node in self.nodes:
            if node.id not in wanted:
                continue
            renumber[node.id] = len(kept)
            sources = tuple(renumber[i] for i in node.inputs)
            kept.append(attrs.evolve(node, id=len(kept), inputs=sources, type=self.type(node.id)))
        return Graph(
            self.name,
            tuple(kept),
            tuple(n.id for n in kept if n.op == "input"),
            tuple(n.id for n in kept if n.op == "scalar_input"),
            tuple(renumber[i] for i in outputs),
        )

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        if count == 0:
            return name
        return self._unique(f"{name}_{count}")


def _short(op: str) -> str:
    return "_" + op.replace(".", "_")


def _freeze_number(value: Any) -> Any:
    """Tell 1, 1.0 and True apart, and -0.0 from 0.0, where Python's equality does not."""
    if isinstance(value, (bool, int, float)):
        return (type(value).__name__, repr(value))
    return value
