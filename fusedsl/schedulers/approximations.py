# SPDX-License-Identifier: Apache-2.0
"""Cheaper kernel text for ops whose every result is rounded to 16 bits.

A bfloat16 result has 8 significant bits and a float16 one 11; an intermediate with a relative error of 2**-20 gives the
same rounded result but for one case in thousands, and adds nothing to its error bound. Ops that would lose relative
accuracy (``erf`` and ``tanh`` near 0) are replaced only where the next op adds a constant of at least 1.
"""

from __future__ import annotations

import functools

import torch

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.types import TensorType, compute_dtype

_TEXT = {
    "exp": "fast_exp({0})",
    "exp2": "fast_exp2({0})",
    "reciprocal": "fast_reciprocal({0})",
    "sigmoid": "fast_reciprocal(1 + fast_exp(-{0}))",
}

#: Text with a small absolute error, for operands of a sum with a constant of at least 1.
_BESIDE_ONE = {
    "erf": "fast_erf({0})",
    "tanh": "(1 - 2 * fast_reciprocal(1 + fast_exp(2 * {0})))",
}


@functools.lru_cache(maxsize=256)
def coarse_nodes(graph: Graph) -> frozenset[int]:
    """Nodes all of whose dependent outputs are float16 or bfloat16, and that no reduction of other dtype reads."""
    fine: set[int] = set()
    for node in reversed(graph.nodes):
        if node.id in graph.outputs and not _is_half(node):
            fine.add(node.id)
        if node.id in fine:
            fine.update(node.inputs)
    return frozenset(node.id for node in graph if node.is_tensor and node.id not in fine)


def _is_half(node: Node) -> bool:
    return isinstance(node.type, TensorType) and node.type.dtype in (torch.float16, torch.bfloat16)


def approximate_text(graph: Graph, node: Node, *, divisor_is_row: bool = False) -> str | None:
    """The cheaper text of a pointwise node, or None where the full form is needed.

    ``divisor_is_row``: the second operand is one value a row, whose reciprocal is computed once.
    """
    if node.id not in coarse_nodes(graph) or compute_dtype(node.tensor.dtype) != torch.float32:
        return None
    if not all(graph[i].is_tensor for i in node.inputs):
        return None
    if node.op == "div":
        return "{0} * fast_reciprocal({1})" if divisor_is_row else "fast_divide({0}, {1})"
    if node.op in _TEXT:
        return _TEXT[node.op]
    if node.op in _BESIDE_ONE and _added_to_one(graph, node):
        return _BESIDE_ONE[node.op]
    return None


def _added_to_one(graph: Graph, node: Node) -> bool:
    users = graph.users()[node.id]
    return bool(users) and all(
        graph[u].op == "add"
        and any(graph[i].op == "constant" and graph[i].attribute("value") >= 1 for i in graph[u].inputs)
        for u in users
    )
