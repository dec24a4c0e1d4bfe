# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic that wraps, and launch grids that do not reach: large row counts, axes and tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


@fusedsl.fuse
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


@fusedsl.fuse
def scale_and_shift(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * a + b


@pytest.mark.gpu
@pytest.mark.big
def test_row_offset_past_2_31_elements() -> None:
    rows = 2**23 + 16
    x = torch.zeros(rows, 256, dtype=torch.bfloat16, device="cuda")
    x[-1] = 1
    y = rms_norm(x, torch.ones(256, dtype=torch.bfloat16, device="cuda"))
    torch.testing.assert_close(y[-1].float(), torch.ones(256, device="cuda"), rtol=0, atol=0.01)
    assert int(torch.count_nonzero(y[-16:-1])) == 0
    assert int(torch.count_nonzero(y[0])) == 0


@pytest.mark.gpu
@pytest.mark.big
def test_exactly_2_31_elements_then_one_row_more() -> None:
    for rows, columns in ((131072, 16384), (4194305, 512)):
        x = torch.zeros(rows, columns, dtype=torch.float16, device="cuda")
        x[-1] = torch.randn(columns, device="cuda").half()
        x[0] = 2
        weight = torch.ones(columns, dtype=torch.float16, device="cuda")
        y = rms_norm(x, weight)
        expected = F.rms_norm(x[[0, -1]], (columns,), weight, 1e-6)
        torch.testing.assert_close(y[[0, -1]], expected, rtol=2e-3, atol=2e-3)
        assert int(torch.count_nonzero(y[-9:-1])) == 0
        del x, y
        torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.big
def test_pointwise_past_2_31_elements_with_strides() -> None:
    """The index width follows from the strides, not from the number of elements."""
    base = torch.zeros(2**31 + 64, dtype=torch.int8, device="cuda")
    x = base[:: 2**28]
    x.copy_(torch.arange(x.numel(), dtype=torch.int8, device="cuda"))
    fused = fusedsl.fuse(lambda_free_double)
    torch.testing.assert_close(fused(x), x + x)


def lambda_free_double(x: Tensor) -> Tensor:
    return x + x


@pytest.mark.parametrize(
    "rows",
    [
        3,
        pytest.param(65535, marks=pytest.mark.gpu),
        pytest.param(65536, marks=pytest.mark.gpu),
        pytest.param(65537, marks=pytest.mark.gpu),
    ],
)
def test_row_counts_around_the_grid_limit(rows: int, nan_memory: Callable[[], None]) -> None:
    device = "cpu" if rows < 100 else "cuda"
    x, weight, bias = (torch.randn(shape, device=device) for shape in ((rows, 8), (8,), (8,)))
    nan_memory()
    assert_matches_eager(layer_norm, x, weight, bias)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_big_axis_in_any_position(device: str, position: int, nan_memory: Callable[[], None]) -> None:
    big = 70000 if device == "cuda" else 9
    shape = [3, 3, 3]
    shape[2] = 5
    shape[position] = big
    outer = [1, 1, 1]
    outer[position] = big
    x, a, b = (torch.randn(s, device=device) for s in (shape, outer, shape[2:]))
    nan_memory()
    assert_matches_eager(scale_and_shift, x, a, b)


def test_big_axes_are_planned_without_a_gpu() -> None:
    """Every position of an axis past the grid limit gets a plan, whatever machine this is."""
    for shape in ((70000, 3, 5), (3, 70000, 5), (3, 5, 70000), (2**23 + 16, 256), (4194305, 512)):
        x = torch.empty(shape, dtype=torch.float16, device="meta")
        row = torch.empty(shape[-1], dtype=torch.float16, device="meta")
        assert len(rms_norm.explain(x, row).segments) == 1
        assert len(scale_and_shift.explain(x, row, row).segments) == 1
