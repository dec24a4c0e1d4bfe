# SPDX-License-Identifier: Apache-2.0
"""Second derivatives: a backward graph is differentiated like any other graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.guards import compile_accessors
from fusedsl.gradients import Backward, ForwardInput, ForwardOutput, IncomingGradient, SecondDerivative, derive
from fusedsl.graph.evaluate import evaluate
from tests.frontend.tracing import bind, traced
from tests.gradients.helpers import derived, flat, leaf, run_backward, seeds_for


def softmax(x, w):
    return F.softmax(x * w, -1)


def layer_norm(x, w):
    return F.layer_norm(x, (x.shape[-1],), w)


def gelu(x, w):
    return F.gelu(x * w)


def gelu_tanh(x, w):
    return F.gelu(x * w, approximate="tanh")


def silu(x, w):
    return F.silu(x * w)


def cubes(x, w):
    return (x**3 * w).sum(0), torch.tanh(x).mean(), (x / w).amax(1)


def special(x, w):
    return torch.lgamma(x.abs() + 1) * w.exp(), torch.where(x > 0, x.sin(), x * x)


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def losses(x, w):
    return F.binary_cross_entropy_with_logits(x, torch.sigmoid(x * 0 + w)), torch.logsumexp(x, 1), F.softplus(x)


def prod(x, w):
    return x.prod(1) + w.sum()


PROGRAMS = [softmax, layer_norm, gelu, gelu_tanh, silu, cubes, special, rms_norm, losses]


Tensors = list[torch.Tensor]


def backward_arguments(made: Backward, inputs: Tensors, scalars: list[Any], seeds: Tensors) -> Tensors:
    """Inputs of the backward graph; eager evaluation of the forward graph connects saved values to the inputs."""
    forward = evaluate(made.forward, inputs, scalars)
    values = []
    for source in made.sources:
        match source:
            case IncomingGradient(index):
                values.append(seeds[index])
            case ForwardInput(index):
                values.append(inputs[index])
            case ForwardOutput(index):
                values.append(forward[index])
    return values


@pytest.mark.parametrize("fn", PROGRAMS)
def test_second_derivatives(fn: Callable[..., Any]) -> None:
    """Derivatives of the backward graph, chained by autograd through the saved values, equal torch's."""
    args = [leaf(4, 6, low=0.2, high=1.5), leaf(6, low=0.5, high=1.5)]
    found = traced(fn, *args)
    tensors, scalars = compile_accessors(found, fn)(bind(fn, *args).arguments)
    outputs = flat(fn(*args))
    seeds = [s.requires_grad_() for s in seeds_for(outputs)]
    first = torch.autograd.grad(outputs, args, seeds, create_graph=True)
    outer = [torch.randn_like(g) for g in first]
    expected = torch.autograd.grad(first, [*args, *seeds], outer, allow_unused=True)

    made = derived(found.graph, list(tensors))
    inputs = backward_arguments(made, list(tensors), list(scalars), seeds)
    second = derived(made.backward, inputs)
    numbers = [scalars[i] for i in made.scalars]
    places = [next(k for k, a in enumerate(args) if a is t) for t in tensors]
    again, pulled = run_backward(second, [t.detach() for t in inputs], numbers, [outer[k] for k in places])
    torch.testing.assert_close(again, [first[k].detach() for k in places], rtol=1e-9, atol=1e-11)
    pairs = [(inputs[i], g) for i, g in zip(second.wanted, pulled, strict=True) if g is not None]
    chained = torch.autograd.grad([t for t, _ in pairs], [*args, *seeds], [g for _, g in pairs], allow_unused=True)
    for got, want in zip(chained, expected, strict=True):
        assert want is None or got is not None
        if got is not None:
            torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want, rtol=1e-8, atol=1e-10)


def test_third_derivative_at_zero() -> None:
    def tanh(x):
        return torch.tanh(x)

    x = torch.tensor([0.0, 0.3], dtype=torch.float64, requires_grad=True)
    graph = traced(tanh, x).graph
    value: torch.Tensor = torch.ones(2, dtype=torch.float64)
    want = torch.tanh(x)
    for _ in range(3):
        (want,) = torch.autograd.grad(want.sum(), x, create_graph=True)
    made = derive(graph, graph.inputs)
    first = made.backward
    assert [type(s).__name__ for s in made.sources] == ["IncomingGradient", "ForwardOutput"]
    y = torch.tanh(x)
    # d/dy of g * (1 - y * y) twice, by the chain rule with y' = 1 - y * y.
    slope = (1 - y * y).detach()
    second = derive(first, [first.inputs[1]])
    _, (by_y,) = run_backward(second, [value, y.detach()], [], [value])
    assert by_y is not None
    torch.testing.assert_close(by_y, -2 * y.detach())
    third = derive(second.backward, [i for i in second.backward.inputs if second.backward[i].name == "_tanh"])
    seen = {"_tanh": y.detach()}
    arguments = [seen.get(second.backward[i].name, value) for i in second.backward.inputs]
    _, (by_y_twice,) = run_backward(third, arguments, [], [value])
    assert by_y_twice is not None
    torch.testing.assert_close(by_y_twice * slope * slope + by_y * -2 * y.detach() * slope, want.detach())


def test_prod_refuses_clearly() -> None:
    x, w = leaf(4, 6), leaf(6)
    made = derived(traced(prod, x, w).graph, [x, w])
    wanted = [i for i in made.backward.inputs if made.backward[i].name == "x"]
    with pytest.raises(SecondDerivative) as error:
        derive(made.backward, wanted)
    assert "the gradient of prod cannot be differentiated again" in str(error.value)
