# SPDX-License-Identifier: Apache-2.0
"""Sizes 0 and 1, sizes that are no multiple of anything, and rows longer than shared memory or registers hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), None, None, 1e-5)


@fusedsl.fuse
def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def test_reductions_of_zero_size_tensors(device: str) -> None:
    def reductions(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(1), x.sum(2), x.mean(2), torch.softmax(x, 2), x.prod(2), x.sum()

    x = torch.zeros(3, 4, 0, 5, device=device)
    one, two, three, four, five, six = assert_matches_eager(fusedsl.fuse(reductions), x)
    assert one.shape == (3, 0, 5)
    assert two.shape == (3, 4, 5) and int(two.count_nonzero()) == 0
    assert bool(three.isnan().all())
    assert four.shape == (3, 4, 0, 5)
    assert bool((five == 1).all())
    assert float(six) == 0.0


def test_maximum_over_nothing_is_an_error(device: str) -> None:
    def maximum(x: Tensor) -> Tensor:
        return x.amax(2)

    with pytest.raises((fusedsl.FuseError, IndexError), match="size"):
        fusedsl.fuse(maximum)(torch.zeros(3, 4, 0, 5, device=device))


def test_two_reductions_over_different_axes_of_an_empty_tensor(device: str) -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * y).sum(1), (x + y).sum(0)

    x, y = torch.randn(5, 0, device=device), torch.randn(5, 0, device=device)
    rows, columns = fusedsl.fuse(both)(x, y)
    torch.testing.assert_close(rows, torch.zeros(5, device=device))
    assert columns.shape == (0,)


@pytest.mark.parametrize(
    ("left", "right"), [((3, 1), (3,)), ((1, 3), (0, 3)), ((), (4,)), ((2, 1, 4), (3, 1)), ((1,), ()), ((1, 1), (1,))]
)
def test_broadcast_of_size_one_and_zero_axes(device: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y * 2

    x, y = torch.randn(left, device=device), torch.randn(right, device=device)
    assert_matches_eager(fusedsl.fuse(add), x, y)


@pytest.mark.parametrize(("heads", "length", "width"), [(1, 2, 128), (2, 1, 2), (1, 1, 2), (2, 2, 8)])
def test_rotary_embedding_with_a_single_head(device: str, heads: int, length: int, width: int) -> None:
    """The halves are rotated by the caller, since joining tensors is not a pointwise op."""

    def rope(k: Tensor, rotated: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return k * cos + rotated * sin

    k = torch.randn(1, heads, length, width, device=device)
    rotated = torch.cat((-k[..., width // 2 :], k[..., : width // 2]), -1)
    cos, sin = torch.randn(1, 1, length, width, device=device), torch.randn(1, 1, length, width, device=device)
    out = assert_matches_eager(fusedsl.fuse(rope), k, rotated, cos, sin)
    assert not torch.equal(out, k)


@pytest.mark.parametrize("columns", [3, 17, 127, 129, 1000, 1023, 1025])
def test_padding_lanes_do_not_enter_the_variance(device: str, columns: int) -> None:
    assert_matches_eager(layer_norm, torch.randn(2, columns, device=device) + 10)


def test_layer_norm_of_three_values(device: str) -> None:
    y = layer_norm(torch.tensor([[10.0, 11.0, 12.0]], device=device))
    torch.testing.assert_close(y.cpu(), torch.tensor([[-1.2247, 0.0, 1.2247]]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("columns", [12287, 12288, 12289])
def test_rows_around_48_kib(columns: int) -> None:
    """The kernel assembles without spilling, whatever it asks of shared memory."""
    for kernel in layer_norm.compile(torch.empty(2, columns, device="meta"), arch="sm_90a"):
        assert kernel.spill_bytes == 0
        assert kernel.smem_bytes <= 227 * 1024


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [12287, 12288, 12289, 65536, 262144, 1000003])
def test_long_rows_need_no_resource_error(columns: int, nan_memory: Callable[[], None]) -> None:
    x = torch.randn(2, columns, device="cuda")
    nan_memory()
    assert_matches_eager(softmax, x)
    assert_matches_eager(layer_norm, x)


def test_long_rows_are_planned_without_a_gpu() -> None:
    for columns in (65536, 262144, 1000003):
        for function in (softmax, layer_norm):
            assert function.explain(torch.empty(2, columns, device="meta"), arch="H200").segments
