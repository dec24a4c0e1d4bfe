# SPDX-License-Identifier: Apache-2.0
"""Formulas whose derivative, op by op, would be inaccurate or not finite where the function itself is smooth."""

from __future__ import annotations

from fusedsl.gradients.expression import Expression
from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Node


def operand(builder: Builder, node: Node, index: int, op: str) -> Node | None:
    """Operand ``index`` of ``node`` if its op is ``op``."""
    found = builder.nodes[node.inputs[index]]
    return found if found.op == op else None


def exponential(builder: Builder, node_id: int) -> int | None:
    """z, if the node is ``exp(z)``."""
    node = builder.nodes[node_id]
    return node.inputs[0] if node.op == "exp" else None


def log_sigmoid(builder: Builder, node: Node) -> int | None:
    """x, if the node is ``minimum(x, 0) - log1p(exp(-abs(x)))``: each term has a kink at 0, the difference has none."""
    low, log = operand(builder, node, 0, "minimum"), operand(builder, node, 1, "log1p")
    if low is None or log is None or Expression(builder, low.inputs[1]).constant != 0:
        return None
    inner: Node | None = log
    for op in ("exp", "neg", "abs"):
        inner = operand(builder, inner, 0, op) if inner is not None else None
    return low.inputs[0] if inner is not None and inner.inputs[0] == low.inputs[0] else None


def softmax_quotient(builder: Builder, node: Node) -> tuple[int, tuple[int, ...]] | None:
    """(z, dims), if the node is ``exp(z) / exp(z).sum(dims, keepdim=True)``."""
    logit, below = exponential(builder, node.inputs[0]), operand(builder, node, 1, "reindex")
    total = operand(builder, below, 0, "sum") if below is not None else None
    if logit is None or below is None or total is None or total.inputs[0] != node.inputs[0]:
        return None
    dims: tuple[int, ...] = total.attribute("dims")
    kept = iter(range(total.tensor.rank))
    aligned = tuple(None if d in dims else next(kept) for d in range(node.tensor.rank))
    return (logit, dims) if below.attribute("dims") == aligned else None


def root_of_squares(builder: Builder, node: Node) -> bool:
    """Whether a root (``sqrt`` or ``pow``) is of a sum of powers, as in norms and standard deviations.

    torch gives these the gradient 0 where they are 0; the root alone has none there.
    """
    found = builder.nodes[node.inputs[0]]
    while found.op in ("reindex", "cast", "div", "mul"):
        if any(builder.nodes[i].is_tensor for i in found.inputs[1:]):
            return False
        found = builder.nodes[found.inputs[0]]
    if found.op != "sum":
        return False
    term = builder.nodes[found.inputs[0]]
    return (term.op == "mul" and term.inputs[0] == term.inputs[1]) or term.op == "pow"
