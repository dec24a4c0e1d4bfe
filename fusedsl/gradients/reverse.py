# SPDX-License-Identifier: Apache-2.0
"""The reverse sweep: adds the nodes of all wanted gradients to the Builder that holds the forward graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from fusedsl.gradients.eager import PULLBACK, is_random
from fusedsl.gradients.errors import NotDifferentiable, SecondDerivative
from fusedsl.gradients.expression import Expression, wide, zeros
from fusedsl.gradients.gradient import Gradient, total
from fusedsl.gradients.rules import FLAT, RULES, STRUCTURAL, Site, Upstream
from fusedsl.gradients.views import is_reshape, reshaped
from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.opaque import CallTemplate, Hole
from fusedsl.graph.types import TensorType


@attrs.define(eq=False)
class Reverse:
    """One sweep over ``graph``, whose nodes stand in ``builder`` under their own ids."""

    builder: Builder
    graph: Graph
    active: frozenset[int]
    stopped: frozenset[int]
    users: Mapping[int, tuple[int, ...]] = attrs.field(init=False)
    terms: dict[int, list[Gradient]] = attrs.field(init=False, factory=dict)
    results: dict[int, dict[int, Expression]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.users = self.graph.users()

    def seed(self, node_id: int, incoming: Expression) -> None:
        """Add the incoming gradient of an output."""
        self._give(node_id, Gradient(wide(incoming)))

    def run(self, wanted: Iterable[int]) -> dict[int, Expression]:
        """The gradient of each ``wanted`` input in its dtype; zeros where none flows.

        Raises:
            NotDifferentiable: an op on the way has no derivative.
            SecondDerivative: a value on the way is a gradient that may not be differentiated again.
        """
        for node in reversed(self.graph.nodes):
            if node.id in self.active and node.op != "input":
                self._visit(node)
        return {node_id: self._input(node_id) for node_id in wanted}

    def _input(self, node_id: int) -> Expression:
        type_ = self.graph[node_id].tensor
        terms = self.terms.get(node_id)
        if not terms:
            return zeros(self.builder, type_)
        value = total(terms).applied()
        if value.dtype is not type_.dtype:
            made = self.builder.add("cast", (value.id,), type_, explicit=False)
            value = Expression(self.builder, made)
        return value

    def _give(self, node_id: int, term: Gradient) -> None:
        if node_id in self.active and node_id not in self.stopped:
            self.terms.setdefault(node_id, []).append(term)

    def _visit(self, node: Node) -> None:
        self.builder.span = node.span
        if node.op == "opaque" and node.id in self.results:
            self._pull_back(node, self.results.pop(node.id))
            return
        terms = self.terms.pop(node.id, None)
        if terms is None or node.op in FLAT:
            return
        gradient = total(terms)
        if node.op == "item":
            self.results.setdefault(node.inputs[0], {})[node.attribute("index")] = gradient.applied()
        elif node.op == "opaque":
            self._pull_back(node, {0: gradient.applied()})
        else:
            self._differentiate(node, gradient)

    def _differentiate(self, node: Node, gradient: Gradient) -> None:
        self._check(node)
        if node.op in STRUCTURAL:
            gradient = Gradient(gradient.applied())
        site = Site(self.builder, node, self.active, self.users)
        flows = RULES[node.op](site, gradient.value)
        for target, flow in zip(node.inputs, flows, strict=False):
            match flow:
                case Gradient():
                    self._give(target, flow.under(gradient.masks))
                case Expression():
                    self._give(target, Gradient(flow, gradient.masks))
                case Upstream(further, value):
                    self._give(further, Gradient(value, gradient.masks))

    def _check(self, node: Node) -> None:
        if node.op not in RULES:
            raise NotDifferentiable(
                f"{node.op} has no derivative", node.span, expected="ops that are differentiable in torch"
            )
        composite = dict(node.attributes).get("first_order")
        if composite is not None:
            raise SecondDerivative(
                f"the gradient of {composite} cannot be differentiated again",
                node.span,
                hint=f"write {composite} with other ops, or do not ask for a second derivative",
            )

    # opaque calls ----------------------------------------------------------------------------------------------------

    def _pull_back(self, node: Node, received: dict[int, Expression]) -> None:
        """The gradients of an opaque call's operands, by eager torch."""
        name = node.attribute("function")
        if is_reshape(node):
            self._give(node.inputs[0], Gradient(reshaped(received[0], Expression(self.builder, node.inputs[0]))))
            return
        if is_random(name):
            raise NotDifferentiable(
                f"{name} draws random numbers: its gradient would need the same ones again",
                node.span,
                hint="call it outside the fused function",
            )
        wanted = [k for k, i in enumerate(node.inputs) if i in self.active and i not in self.stopped]
        if not wanted:
            return
        indices = tuple(sorted(received))
        count = len(node.inputs)
        holes: list[Any] = [Hole(k) for k in range(count + len(indices))]
        call = CallTemplate((name, node.attribute("call"), tuple(wanted), indices, count, *holes), ())
        operands = [*node.inputs, *(received[k].id for k in indices)]
        types = [self.graph[node.inputs[k]].tensor for k in wanted]
        first = self.builder.add("opaque", operands, types[0], function=PULLBACK, call=call, results=len(wanted))
        for index, (operand, type_) in enumerate(zip(wanted, types, strict=True)):
            made = first if len(wanted) == 1 else self.builder.add("item", (first,), type_, index=index)
            self._give(node.inputs[operand], Gradient(wide(Expression(self.builder, made))))


def incoming(builder: Builder, name: str, type_: TensorType, index: int) -> Expression:
    """An argument of the backward graph: the gradient of an output."""
    node = builder.add("input", (), type_, share=False, name=name, index=index)
    return Expression(builder, node)
