# SPDX-License-Identifier: Apache-2.0
"""Random small functions: the graph keeps the rules and means what eager torch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusedsl.frontend.callables import TensorValue, lookup
from fusedsl.graph.builder import Builder
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.verify import verify

UNARY = (
    torch.abs,
    torch.sin,
    torch.exp,
    torch.sigmoid,
    torch.floor,
    torch.relu,
    torch.square,
    torch.tanh,
    torch.logical_not,
)
BINARY = (torch.add, torch.mul, torch.maximum, torch.eq, torch.lt, torch.hypot, torch.logical_and, torch.atan2)
REDUCING = (torch.sum, torch.amax, torch.amin, torch.any)
DTYPES = (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool)
SHAPES = ((), (1,), (3,), (2, 1), (2, 3), (1, 3), (0, 3))

Step = tuple[str, Callable[..., Any], int, int, bool]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("unary"), st.sampled_from(UNARY), st.integers(0, 9), st.just(0), st.just(False)),
        st.tuples(st.just("binary"), st.sampled_from(BINARY), st.integers(0, 9), st.integers(0, 9), st.just(False)),
        st.tuples(st.just("reduce"), st.sampled_from(REDUCING), st.integers(0, 9), st.integers(-2, 1), st.booleans()),
    ),
    min_size=1,
    max_size=8,
)
inputs = st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=1, max_size=3)


def sample(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2).to(dtype)


@settings(max_examples=150, deadline=None)
@given(inputs, steps)
def test_random_graph(kinds: list[tuple[torch.dtype, tuple[int, ...]]], program: list[Step]) -> None:
    tensors = [sample(dtype, shape, seed) for seed, (dtype, shape) in enumerate(kinds)]
    builder = Builder("random")
    values: list[Any] = [TensorValue(builder, builder.input(f"x{i}", t.dtype, t.shape)) for i, t in enumerate(tensors)]
    eager = list(tensors)
    for kind, function, a, b, keepdim in program:
        left, right = a % len(eager), b % len(eager)
        operands = {"unary": (left,), "binary": (left, right), "reduce": (left,)}[kind]
        options: tuple[Any, ...] = (b, keepdim) if kind == "reduce" else ()
        try:
            wanted = function(*(eager[i] for i in operands), *options)
        except (RuntimeError, IndexError):
            continue
        handler = lookup(function)
        assert handler is not None
        values.append(handler(builder, *(values[i] for i in operands), *options))
        eager.append(wanted)
    graph = verify(builder.finish([v.id for v in values]))
    for found, wanted in zip(evaluate(graph, tensors), eager, strict=True):
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
