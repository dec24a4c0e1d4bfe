# SPDX-License-Identifier: Apache-2.0
"""Which values a gradient can reach: what ``requires_grad`` is in torch."""

from __future__ import annotations

from collections.abc import Iterable

from fusedsl.gradients.rules import DISCRETE
from fusedsl.graph.graph import Graph, Node


def active_nodes(graph: Graph, wanted: Iterable[int]) -> frozenset[int]:
    """Floating tensors that depend on ``wanted`` inputs through ops that carry gradients (zero gradients too).

    A node with the attribute ``detached=True`` carries none, whatever its op.
    """
    found = set(wanted)
    for node in graph:
        if node.id not in found and _carries(node) and any(i in found for i in node.inputs):
            found.add(node.id)
    return frozenset(found)


def _carries(node: Node) -> bool:
    if dict(node.attributes).get("detached"):
        return False
    if node.op == "opaque" and node.attribute("results") > 1:
        return True  # the item that reads a result decides
    return node.is_tensor and node.tensor.dtype.is_floating_point and node.op not in DISCRETE
