# SPDX-License-Identifier: Apache-2.0
"""NaN, infinities, subnormals and cancellation: as torch has them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from tests.tolerance import assert_matches_eager, assert_within

NAN, INF = float("nan"), float("inf")


def test_fully_masked_rows_are_nan(device: str) -> None:
    def masked(x: Tensor) -> tuple[Tensor, ...]:
        return torch.softmax(x, -1), F.log_softmax(x, -1), torch.logsumexp(x, -1)

    x = torch.tensor([[-INF, -INF], [0.0, -INF], [INF, 1.0]], device=device)
    soft, _, log_sum = assert_matches_eager(fusedsl.fuse(masked), x)
    expected = torch.tensor([[NAN, NAN], [1.0, 0.0], [NAN, NAN]])
    torch.testing.assert_close(soft.cpu(), expected, equal_nan=True)
    assert float(log_sum[0]) == -INF and float(log_sum[2]) == INF


def test_minimum_maximum_and_clamp_propagate_nan(device: str) -> None:
    def pointwise(x: Tensor, one: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.maximum(x, one),
            torch.minimum(x, one),
            torch.clamp(x, 0, 1),
            torch.relu(x),
            torch.fmax(x, one),
            torch.fmin(x, one),
        )

    x, one = torch.tensor([NAN, 2.0, -2.0], device=device), torch.ones(3, device=device)
    results = fusedsl.fuse(pointwise)(x, one)
    for actual, expected in zip(results, pointwise(x, one), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=0, atol=0)
    assert [bool(r[0].isnan()) for r in results] == [True, True, True, True, False, False]


@pytest.mark.parametrize("columns", [3, 33, 64])
def test_reductions_propagate_nan_from_any_lane(device: str, columns: int) -> None:
    def extremes(x: Tensor) -> tuple[Tensor, ...]:
        return x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1), x.sum(-1)

    places = sorted({0, columns // 2, columns - 1})
    x = torch.randn(len(places) + 1, columns, device=device)
    for row, place in enumerate(places):
        x[row, place] = NAN
    results = fusedsl.fuse(extremes)(x)
    for actual, expected in zip(results[:4], extremes(x)[:4], strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=0, atol=0)
    assert results[2].tolist()[:-1] == places
    assert bool(results[4][:-1].isnan().all()) and bool(results[4][-1].isfinite())


@pytest.mark.parametrize("mean", [0.0, 100.0, 1e3, 1e4, 1e6])
def test_variance_survives_a_large_mean(device: str, mean: float) -> None:
    def layer_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), None, None, 1e-5)

    def written_out(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)

    x = (mean + torch.arange(16) * 1e-3)[None].to(device)
    truth = layer_norm(x.double())
    eager = layer_norm(x)
    for function in (layer_norm, written_out):
        y = fusedsl.fuse(function)(x)
        assert bool(y.isfinite().all())
        # in float32 the mean alone is off by up to half a unit in its last place
        allowed = 2 * float((eager - truth).abs().max()) + 2**-24 * max(mean, 1e-3) * 320
        assert float((y - truth).abs().max()) <= allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_subnormals_are_kept(device: str, dtype: torch.dtype) -> None:
    def scaled(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 0.5, F.silu(x), x + 0.0

    smallest = 1e-40 if dtype == torch.float32 else 3.7e-40  # bfloat16 has 7 bits fewer
    x = torch.tensor([smallest, -3e-39, 1e-39], device=device).to(dtype)
    results = fusedsl.fuse(scaled)(x)
    for actual, expected in zip(results, scaled(x.double()), strict=True):
        torch.testing.assert_close(actual, expected.to(dtype), rtol=0, atol=2e-45 if dtype == torch.float32 else 1e-40)
        assert bool((actual != 0).all())


def test_gelu_of_large_arguments(device: str) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.gelu(x), F.gelu(x, approximate="tanh")

    x = torch.tensor([-1e4, -200.0, -6.0, -0.0, 0.0, 6.0, 200.0, 1e4], device=device)
    for actual, eager, truth in zip(fusedsl.fuse(both)(x), both(x), both(x.double()), strict=True):
        assert_within(actual, eager, truth)
