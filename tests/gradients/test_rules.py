# SPDX-License-Identifier: Apache-2.0
"""The tables are complete, and graphs come out small."""

from __future__ import annotations

import attrs
import pytest
import torch

from fusedsl.gradients import NotDifferentiable, derive
from fusedsl.gradients.flow import INFINITE, FlowNetwork
from fusedsl.gradients.rules import DISCRETE, FLAT, RULES
from fusedsl.graph.builder import Builder
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import ScalarType
from tests.frontend.tracing import traced
from tests.gradients.helpers import leaf


def test_every_op_is_covered_once() -> None:
    differentiable = {Kind.POINTWISE, Kind.REDUCTION, Kind.REINDEX, Kind.CAST, Kind.LOOKUP}
    wanted = {name for name, op in OPS.items() if op.kind in differentiable}
    assert RULES.keys() | FLAT | DISCRETE == wanted
    assert not RULES.keys() & FLAT
    assert not RULES.keys() & DISCRETE


def test_an_op_without_a_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def sine(x):
        return torch.sin(x) * 2

    monkeypatch.delitem(RULES, "sin")
    graph = traced(sine, leaf(3)).graph
    with pytest.raises(NotDifferentiable) as error:
        derive(graph, graph.inputs)
    assert "sin has no derivative" in str(error.value)
    assert "return torch.sin(x) * 2" in str(error.value)


def ops(fn, *args) -> list[str]:
    graph = traced(fn, *args).graph
    return [n.op for n in derive(graph, graph.inputs).backward if n.op not in ("input", "constant")]


def test_no_multiplications_by_one() -> None:
    def linear(x):
        return (x + 1) * 2 - x

    assert ops(linear, leaf(3, 4)) == ["mul", "sub"]

    def doubled(x):
        return x + x

    assert ops(doubled, leaf(3, 4)) == ["add"]

    def negated(x):
        return -torch.neg(x)

    assert ops(negated, leaf(3, 4)) == []

    def square(x):
        return x * x * 0.5

    assert ops(square, leaf(3, 4)) == ["mul"]


def test_broadcast_arithmetic_is_done_before_the_broadcast() -> None:
    def mean(x):
        return (x.sum(1) * 0.5).exp()

    assert ops(mean, leaf(3, 4)) == ["mul", "mul", "reindex"]


def test_duplicate_and_dead_nodes_do_no_harm() -> None:
    builder = Builder("twice")
    x = builder.input("x", torch.float32, (3,))
    type_ = builder.tensor(x)
    first = builder.add("exp", (x,), type_, share=False)
    second = builder.add("exp", (x,), type_, share=False)
    builder.add("sin", (x,), type_)
    made = derive(builder.finish([builder.add("mul", (first, second), type_)]), [x])
    assert [n.op for n in made.forward] == ["input", "exp", "mul"]


def test_gradient_of_a_broadcast_argument_that_is_returned() -> None:
    builder = Builder("same")
    x = builder.input("x", torch.float32, (3,))
    made = derive(builder.finish([x, x]), [x])
    assert [n.op for n in made.backward] == ["input", "input", "add"]


def test_zero_gradients_are_a_constant() -> None:
    def steps(x):
        return x.floor()

    assert ops(steps, leaf(3)) == ["full"]


def test_host_scalar_chain_is_repeated() -> None:
    builder = Builder("scaled")
    x = builder.input("x", torch.float32, (3,))
    number = builder.scalar_input("a", "float")
    builder.scalar_input("unused", "float")
    root = builder.add("scalar", (number,), ScalarType("float"), function="math.sqrt")
    made = derive(builder.finish([builder.add("mul", (x, root), builder.tensor(x))]), [x])
    assert made.scalars == (0,)
    assert [n.op for n in made.backward] == ["input", "scalar_input", "scalar", "mul"]


def test_spans_are_those_of_the_forward_line() -> None:
    def sine(x):
        return torch.sin(x)

    graph = traced(sine, leaf(3)).graph
    backward = derive(graph, graph.inputs).backward
    assert all(n.span is not None and "torch.sin(x)" in n.span.text for n in backward if n.op in ("cos", "mul"))


def test_derivation_is_deterministic() -> None:
    def tangled(x):
        e = x.exp()
        return e * e.sum(1, keepdim=True) + torch.tanh(e) / e.amax(0)

    graph = traced(tangled, leaf(3, 4)).graph
    first, second = derive(graph, graph.inputs), derive(graph, graph.inputs)
    assert attrs.asdict(first, recurse=False) == attrs.asdict(second, recurse=False)


def test_flow_finds_the_cheapest_cut() -> None:
    network = FlowNetwork(4)
    network.connect(0, 1, 5)
    network.connect(0, 2, 3)
    network.connect(1, 2, 2)
    network.connect(1, 3, 2)
    network.connect(2, 3, INFINITE)
    assert network.saturate(0, 3) == 7
    assert network.reaching(3) == {2, 3}


def test_detached_values_carry_no_gradient() -> None:
    builder = Builder("stopped")
    x = builder.input("x", torch.float32, (3,))
    type_ = builder.tensor(x)
    stopped = builder.add("reindex", (x,), type_, dims=(0,), detached=True)
    made = derive(builder.finish([builder.add("mul", (x, stopped), type_), stopped]), [x])
    assert made.differentiable == (True, False)
    assert [n.op for n in made.backward if n.op != "input"] == ["mul"]
