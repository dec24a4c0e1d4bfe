# SPDX-License-Identifier: Apache-2.0
"""Promotion, explicit casts, integer sums, rounding order, and float64 that nobody asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fusedsl
from tests.tolerance import assert_matches_eager

FLOATS = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", FLOATS)
def test_python_scalars_do_not_widen_the_result(device: str, dtype: torch.dtype) -> None:
    def scalars(m: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return torch.where(m, 0.0, x), torch.where(m, 1.0, 0.0) * x, x / 3, x * 2.5, x + True, torch.where(m, -0.0, 0.0)

    x = torch.randn(5, 7, device=device).to(dtype)
    results = assert_matches_eager(fusedsl.fuse(scalars), x > 0, x)
    kept = [0, 2, 3, 4]
    assert [results[i].dtype for i in kept] == [dtype] * len(kept)
    assert results[5].dtype == torch.float32


def test_explicit_round_trip_cast_rounds(device: str) -> None:
    def rounding_error(x: Tensor) -> Tensor:
        return (x.to(torch.bfloat16).float()) * 1.0 - x

    x = torch.tensor([1.01, 2.02, 3.03], device=device)
    y = fusedsl.fuse(rounding_error)(x)
    torch.testing.assert_close(y.cpu(), torch.tensor([-0.0022, -0.0044, 0.0013]), rtol=0, atol=1e-4)
    assert_matches_eager(fusedsl.fuse(rounding_error), x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integer_sums_are_int64(device: str, dtype: torch.dtype) -> None:
    def total(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.sum(), x.sum(0), x.prod(1)

    x = torch.full((3, 100), 100, device=device).to(dtype)
    result = fusedsl.fuse(total)(x)
    for actual, expected in zip(result, total(x), strict=True):
        assert actual.dtype == torch.int64
        torch.testing.assert_close(actual, expected)
    assert int(result[0]) == (300 if dtype == torch.bool else 30000)


def test_mean_of_integers_is_an_error(device: str) -> None:
    def mean(x: Tensor) -> Tensor:
        return x.mean()

    with pytest.raises((fusedsl.FuseError, RuntimeError), match=r"(?i)float|dtype"):
        fusedsl.fuse(mean)(torch.ones(4, dtype=torch.int32, device=device))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))


def third(x: Tensor) -> Tensor:
    return x / 3


def square(x: Tensor) -> Tensor:
    return x**2


def root(x: Tensor) -> Tensor:
    return torch.sqrt(x) + 1e-5


def norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("function", [gelu_tanh, third, square, root, norm])
def test_no_float64_arithmetic_in_a_narrow_kernel(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    for kernel in fusedsl.fuse(function).compile(torch.empty(64, 256, dtype=dtype, device="meta"), arch="sm_90a"):
        guilty = [line for line in kernel.ptx.splitlines() if ".f64" in line]
        assert not guilty, guilty[:5]


def weight_after_rounding(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    n = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)
    return n.to(torch.bfloat16) * w


def weight_before_rounding(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    n = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)
    return (n * w.float()).to(torch.bfloat16)


def test_the_written_order_of_rounding_is_kept(device: str) -> None:
    shape = (4, 4096) if device == "cuda" else (2, 512)
    x = torch.randn(shape, device=device).bfloat16()
    w = (torch.rand(shape[1], device=device) + 0.5).bfloat16()
    late, early = fusedsl.fuse(weight_after_rounding)(x, w), fusedsl.fuse(weight_before_rounding)(x, w)
    for fused, eager in ((late, weight_after_rounding(x, w)), (early, weight_before_rounding(x, w))):
        assert float((fused == eager).float().mean()) >= 0.999
    assert float((late != early).float().mean()) > 0.15
