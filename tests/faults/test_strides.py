# SPDX-License-Identifier: Apache-2.0
"""Layouts: a kernel made for one stride or alignment is not used for another; the result has eager's strides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


@fusedsl.fuse
def row_norm(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)


def test_contiguous_then_expanded_sliced_and_transposed(device: str) -> None:
    sine_here = fusedsl.fuse(sine.__wrapped__)
    inputs = [
        torch.randn(3, 3, device=device),
        torch.tensor(0.5, device=device).expand(3, 3),
        torch.randn(3, 6, device=device)[:, ::2],
        torch.randn(3, 3, device=device).t(),
    ]
    for x in [*inputs, *inputs]:
        assert_matches_eager(sine_here, x)
    torch.testing.assert_close(sine_here(inputs[1]), torch.full((3, 3), 0.479425538604203, device=device))


def layouts(device: str) -> dict[str, Tensor]:
    """Inputs whose rows or axes are not packed."""
    return {
        "padded rows": torch.randn(16, 16, device=device)[:, :8],
        "transposed 3-D": torch.randn(3, 4, 5, device=device).transpose(0, 1),
        "channels last": torch.randn(2, 3, 4, 5, device=device).contiguous(memory_format=torch.channels_last),
        "expanded": torch.randn(4, 1, 5, device=device).expand(4, 3, 5),
        "permuted": torch.randn(2, 3, 4, 5, device=device).permute(3, 1, 0, 2),
        "negative offset": torch.randn(40, device=device)[7:31].view(4, 6),
    }


@pytest.mark.parametrize("layout", list(layouts("cpu")))
def test_output_values_and_strides_follow_eager(device: str, layout: str) -> None:
    x = layouts(device)[layout]
    y = assert_matches_eager(sine, x)
    assert y.stride() == torch.sin(x).stride()
    assert_matches_eager(row_norm, x)


def test_padded_rows_and_channels_last_have_eager_strides(device: str) -> None:
    assert sine(layouts(device)["padded rows"]).stride() == (8, 1)
    assert sine(layouts(device)["channels last"]).stride() == (60, 1, 15, 3)


def expanded_inside(a: Tensor, m: Tensor, b: Tensor) -> Tensor:
    return m.expand(2, 128) * a + b


def broadcast_implicitly(a: Tensor, m: Tensor, b: Tensor) -> Tensor:
    return m * a + b


@pytest.mark.parametrize("function", [expanded_inside, broadcast_implicitly])
def test_expand_of_a_size_one_axis_inside_the_function(device: str, function: Callable[..., Tensor]) -> None:
    a, m, b = (torch.randn(s, device=device) for s in ((2, 128), (2, 1), (2, 128)))
    torch.testing.assert_close(fusedsl.fuse(function)(a, m, b), function(a, m, b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tail", [float("nan"), float("inf"), 3e38])
def test_memory_after_the_row_never_enters_a_reduction(device: str, tail: float) -> None:
    columns = 1000 if device == "cuda" else 100
    buffer = torch.full((1, 4096), tail, device=device)
    x = buffer[:, :columns]
    x.copy_(torch.randn(1, columns))
    other = torch.randn(1, columns, device=device)

    def reductions(x: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return torch.softmax(x, -1), F.log_softmax(x, -1), x.mean(-1), x.amax(-1), (x * other).sum(-1)

    for y in assert_matches_eager(fusedsl.fuse(reductions), x, other):
        assert bool(torch.isfinite(y).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_aligned_call_then_misaligned_view(device: str, dtype: torch.dtype) -> None:
    size = 64 * 64 + 64 if device == "cuda" else 8 * 8 + 8
    pointwise, norm = fusedsl.fuse(sine.__wrapped__), fusedsl.fuse(row_norm.__wrapped__)
    for offset in (0, 1, 3, 4):
        x = torch.randn(size + offset, device=device).to(dtype)[offset:]
        assert_matches_eager(pointwise, x)
        assert_matches_eager(norm, x.view(8, -1))


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 7])
def test_rows_that_start_off_the_vector_boundary(device: str, columns: int) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    x = torch.randn(1, columns + 2, device=device, dtype=torch.float16)[:, 1 : columns + 1]
    assert_matches_eager(fusedsl.fuse(double), x)
    assert_matches_eager(row_norm, torch.randn(5, columns, device=device, dtype=torch.float16))
