# SPDX-License-Identifier: Apache-2.0
"""16-bit gradients are within eager's own error; 32-bit arithmetic in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.guards import compile_accessors
from tests.frontend.tracing import bind, traced
from tests.gradients.helpers import derived, flat, leaf, run_backward, seeds_for
from tests.tolerance import assert_within


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def written_layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5) * weight + bias


def rms_norm(x, weight, bias):
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def softmax(x, weight, bias):
    return F.softmax(x * weight + bias, -1)


def log_softmax(x, weight, bias):
    return F.log_softmax(x, -1)


def gelu(x, weight, bias):
    return F.gelu(x + bias) * weight


def swiglu(x, weight, bias):
    return F.silu(x) * weight + torch.tanh(bias)


def gradients(fn: Callable[..., Any], args: list[torch.Tensor], seeds: list[torch.Tensor]) -> list[torch.Tensor | None]:
    return list(torch.autograd.grad(flat(fn(*args)), args, seeds, allow_unused=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("fn", [layer_norm, written_layer_norm, rms_norm, softmax, log_softmax, gelu, swiglu])
def test_within_the_error_of_eager(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    args = [leaf(33, 65, dtype=dtype), leaf(65, dtype=dtype), leaf(65, dtype=dtype)]
    found = traced(fn, *args)
    tensors, scalars = compile_accessors(found, fn)(bind(fn, *args).arguments)
    seeds = seeds_for(flat(fn(*args)))
    exact_args = [a.detach().double().requires_grad_() for a in args]
    truth = gradients(fn, exact_args, [s.double() for s in seeds])
    eager = gradients(fn, args, seeds)
    made = derived(found.graph, list(tensors))
    _, got = run_backward(made, [t.detach() for t in tensors], list(scalars), seeds)
    wanted = [next(k for k, a in enumerate(args) if a is t) for t in tensors if t.requires_grad]
    for value, place in zip(got, wanted, strict=True):
        if value is not None:
            assert_within(value, eager[place], truth[place])


def bits_apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distance of two bfloat16 tensors in units in the last place."""

    def ordered(x: torch.Tensor) -> torch.Tensor:
        bits = x.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (ordered(a) - ordered(b)).abs()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_bfloat16_is_right_to_the_last_place(approximate: str) -> None:
    def gelu_none(x):
        return F.gelu(x)

    def gelu_tanh(x):
        return F.gelu(x, approximate="tanh")

    fn = gelu_none if approximate == "none" else gelu_tanh
    x = torch.cat([torch.linspace(-6, 6, 10000), torch.tensor([-1e4, -200.0, 200.0, 1e4])]).bfloat16().requires_grad_()
    made = derived(traced(fn, x).graph, [x])
    _, (got,) = run_backward(made, [x.detach()], [], [torch.ones_like(x)])
    exact = x.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(fn(exact).sum(), exact)
    assert got is not None
    assert int(bits_apart(got, truth.bfloat16()).max()) <= 1
    assert got[-4:].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_weight_gradients_are_summed_in_float32() -> None:
    def scaled(x, weight):
        return x * weight

    x = torch.ones(4096, 4).bfloat16()
    weight = torch.ones(4).bfloat16().requires_grad_()
    made = derived(traced(scaled, x, weight).graph, [x, weight])
    _, (got,) = run_backward(made, [x, weight.detach()], [], [torch.ones(4096, 4).bfloat16()])
    assert got is not None
    assert got.tolist() == [4096.0] * 4


def test_gradients_pass_explicit_casts() -> None:
    def cast(x):
        return (x.to(torch.bfloat16) * 3).float().to(torch.float64)

    x = torch.linspace(-2, 2, 7).requires_grad_()
    made = derived(traced(cast, x).graph, [x])
    _, (got,) = run_backward(made, [x.detach()], [], [torch.full((7,), 1.0, dtype=torch.float64)])
    assert got is not None
    assert got.dtype is torch.float32
    assert got.tolist() == [3.0] * 7
