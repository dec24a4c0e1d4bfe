# SPDX-License-Identifier: Apache-2.0
"""The table of derivative rules, keyed by op name, and what a rule gets to see.

A rule is called as ``rule(site, g)``: ``g`` is the gradient of the op's result, in the compute dtype. It returns one
entry an operand: an Expression, a Gradient with a mask, or None where nothing flows; entries left out are None. An
Upstream entry stands for a value further up. Every rule is linear in ``g``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fusedsl.gradients.expression import Expression, apply, wide
from fusedsl.gradients.gradient import Gradient
from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Node


@attrs.frozen
class Upstream:
    """A gradient for a node further up than the operands; what lies between gets none from this op."""

    node: int
    value: Expression


Flow = Expression | Gradient | Upstream | None


@attrs.frozen(eq=False)
class Site:
    """An op that is being differentiated.

    Attributes:
        builder: the graph that forward and backward are built in.
        node: the op.
        active: ids of the nodes that a wanted input reaches.
        users: node id -> ids of the forward nodes that read it.
    """

    builder: Builder = attrs.field(repr=False)
    node: Node
    active: frozenset[int] = attrs.field(repr=False)
    users: Mapping[int, tuple[int, ...]] = attrs.field(repr=False)

    def needs(self, index: int) -> bool:
        """Whether operand ``index`` wants a gradient."""
        return self.node.inputs[index] in self.active

    def raw(self, index: int) -> Expression:
        """Operand ``index`` as it is."""
        return Expression(self.builder, self.node.inputs[index])

    def operand(self, index: int) -> Expression:
        """Operand ``index`` in the compute dtype, written so that it keeps its relative accuracy near zero."""
        return accurate(wide(self.raw(index)))

    @property
    def result(self) -> Expression:
        """The op's result in the compute dtype."""
        return wide(Expression(self.builder, self.node.id))

    def attribute(self, key: str) -> Any:
        return self.node.attribute(key)


Rule = Callable[[Site, Expression], "tuple[Flow, ...]"]

RULES: dict[str, Rule] = {}

#: Rules of ops that change shapes: they see the gradient with its masks applied.
STRUCTURAL: set[str] = set()

#: Piecewise constant ops: differentiable, with a zero gradient, as in torch.
FLAT = frozenset({"floor", "ceil", "trunc", "round", "sign", "floor_divide"})

#: Ops whose results carry no gradient.
DISCRETE = frozenset(
    {
        "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "signbit", "any", "all", "argmax", "argmin",
        "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
    }
)  # fmt: skip


def rule(*names: str, structural: bool = False) -> Callable[[Rule], Rule]:
    """Enter a rule for the ops ``names``."""

    def enter(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"op {name} has two rules"
            RULES[name] = function
            if structural:
                STRUCTURAL.add(name)
        return function

    return enter


def accurate(value: Expression) -> Expression:
    """An equal expression without the cancellation of ``erf(u) + 1`` and ``tanh(u) + 1`` at negative u."""
    inner = plus_one(value.builder, value.id)
    if inner is None:
        return value
    node = value.builder.nodes[inner]
    source = Expression(value.builder, node.inputs[0]) if node.op in ("erf", "tanh") else None
    if source is None:
        return value
    return apply("erfc", -source) if node.op == "erf" else apply("sigmoid", source * 2) * 2


def plus_one(builder: Builder, node_id: int) -> int | None:
    """u, if the node is ``u + 1``."""
    node = builder.nodes[node_id]
    if node.op != "add" or Expression(builder, node.inputs[1]).constant != 1:
        return None
    return node.inputs[0]
