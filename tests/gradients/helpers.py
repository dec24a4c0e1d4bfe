# SPDX-License-Identifier: Apache-2.0
"""Run derived graphs by evaluation and compare them with ``torch.autograd``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedsl.frontend.callables import lookup
from fusedsl.frontend.guards import compile_accessors
from fusedsl.gradients import Backward, ForwardInput, ForwardOutput, IncomingGradient, derive
from fusedsl.graph.evaluate import Numerics, evaluate
from fusedsl.graph.graph import Graph
from fusedsl.graph.verify import verify
from tests.frontend.callables.support import build, strip
from tests.frontend.tracing import bind, traced

Tensors = Sequence[torch.Tensor]


def leaf(*shape: int, dtype: torch.dtype = torch.float64, low: float | None = None, high: float = 1.0) -> torch.Tensor:
    """A random tensor that wants a gradient: normal, or uniform from ``low`` to ``high``."""
    normal, uniform = torch.randn(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64)
    values = normal if low is None else uniform * (high - low) + low
    return values.to(dtype).requires_grad_()


def run_backward(
    made: Backward, inputs: Tensors, scalars: Sequence[Any], incoming: Tensors, compute: Numerics = "kernel"
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Results of the function and gradients of the wanted inputs (None where not connected).

    Tensors of which only the shape is read are given as NaN.
    """
    verify(made.forward)
    verify(made.backward)
    forward = evaluate(made.forward, inputs, scalars, compute)
    assert len(forward) == len(made.forward.outputs)
    arguments = []
    for source, node_id in zip(made.sources, made.backward.inputs, strict=True):
        match source:
            case IncomingGradient(index):
                value = incoming[index]
            case ForwardInput(index, shape_only):
                value = torch.full_like(inputs[index], float("nan")) if shape_only else inputs[index]
            case ForwardOutput(index):
                value = forward[index]
        assert value.dtype is made.backward[node_id].tensor.dtype
        arguments.append(value)
    found = evaluate(made.backward, arguments, [scalars[i] for i in made.scalars], compute)
    return forward[: made.results], [None if k is None else found[k] for k in made.gradients]


def derived(graph: Graph, tensors: Tensors) -> Backward:
    """The derivation for the inputs whose tensors require grad."""
    return derive(graph, [i for i, t in zip(graph.inputs, tensors, strict=True) if t.requires_grad])


def seeds_for(outputs: Tensors) -> list[torch.Tensor]:
    return [torch.randn(y.shape, dtype=torch.float64).to(y.dtype) for y in outputs]


def compare(
    graph: Graph,
    tensors: Tensors,
    scalars: Sequence[Any],
    expected: Sequence[torch.Tensor],
    rtol: float,
    atol: float,
    values: bool = True,
) -> Backward:
    """Gradients of ``graph`` equal those of the eager results ``expected``, for random incoming gradients."""
    made = derived(graph, tensors)
    seeds = seeds_for(expected)
    wanted = [t for t in tensors if t.requires_grad]
    pairs = [(y, s) for y, s in zip(expected, seeds, strict=True) if y.requires_grad]
    assert [y.requires_grad for y in expected] == list(made.differentiable)
    right = torch.autograd.grad([y for y, _ in pairs], wanted, [s for _, s in pairs], allow_unused=True)
    outputs, gradients = run_backward(made, [t.detach() for t in tensors], scalars, seeds)
    if values:
        torch.testing.assert_close(outputs, [y.detach() for y in expected], rtol=rtol, atol=atol, equal_nan=True)
    for got, want, tensor in zip(gradients, right, wanted, strict=True):
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            assert got.dtype is tensor.dtype
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
    return made


def flat(result: Any) -> list[torch.Tensor]:
    items = list(result.values()) if isinstance(result, dict) else result
    return [items] if isinstance(items, torch.Tensor) else [x for item in items for x in flat(item)]


def check(fn: Callable[..., Any], *args: Any, rtol: float = 1e-9, atol: float = 1e-11, **kwargs: Any) -> Backward:
    """A user's function through the frontend; every result is a tensor that it computes."""
    found = traced(fn, *args, **kwargs)
    tensors, scalars = compile_accessors(found, fn)(bind(fn, *args, **kwargs).arguments)
    return compare(found.graph, list(tensors), list(scalars), flat(fn(*args, **kwargs)), rtol, atol)


def check_call(
    function: Callable[..., Any], *args: Any, rtol: float = 1e-9, atol: float = 1e-11, **kwargs: Any
) -> Backward:
    """One call of a torch function through its handler."""
    handler = lookup(function)
    assert handler is not None
    built = build(handler, *args, **kwargs)
    assert built is not NotImplemented
    expected = flat(function(*map(strip, args), **{k: strip(v) for k, v in kwargs.items()}))
    return compare(built.graph, built.tensors, built.scalars, expected, rtol, atol)
