# SPDX-License-Identifier: Apache-2.0
"""Dropout masks: independent, new at every call, reproducible, the same wherever one call computes them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fusedsl
from fusedsl.graph.evaluate import evaluate


@fusedsl.fuse
def dropped(x: Tensor, p: float = 0.5) -> Tensor:
    return F.dropout(x, p)


@fusedsl.fuse
def dropped_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.dropout(x, 0.5), F.dropout(x, 0.5)


@fusedsl.fuse
def dropout_then_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.dropout(x, 0.3) + 1
    return y, F.layer_norm(y, (y.shape[-1],))


@fusedsl.fuse
def column_and_row_sums(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = F.dropout(x, 0.5)
    return y, y.sum(0), y.sum(1)


def agreement(a: Tensor, b: Tensor) -> float:
    return float(((a == 0) == (b == 0)).double().mean())


def test_masks_are_independent(device: str) -> None:
    x = torch.ones(64, 16, 32, device=device).transpose(0, 2)
    y = dropped(x)
    assert abs(float((y == 0).double().mean()) - 0.5) < 0.02
    for dim in range(3):
        for step in (1, 2, 4):
            size = y.shape[dim] - step
            assert abs(agreement(y.narrow(dim, 0, size), y.narrow(dim, step, size)) - 0.5) < 0.03
    first, second = dropped_twice(x)
    assert abs(agreement(first, second) - 0.5) < 0.03


def test_calls_differ_and_repeat_after_a_seed(device: str) -> None:
    x = torch.ones(40, 100, device=device)
    torch.manual_seed(4)
    first, second = dropped(x), dropped(x)
    assert abs(agreement(first, second) - 0.5) < 0.05
    torch.manual_seed(4)
    assert torch.equal(dropped(x), first) and torch.equal(dropped(x), second)
    torch.manual_seed(5)
    assert not torch.equal(dropped(x), first)


def test_one_call_has_one_mask(device: str) -> None:
    x = torch.randn(40, 96, device=device)
    y, norm = dropout_then_norm(x)
    torch.testing.assert_close(norm, F.layer_norm(y, (96,)), rtol=1e-4, atol=1e-5)
    y, columns, rows = column_and_row_sums(x)
    torch.testing.assert_close(columns, y.sum(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows, y.sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (7,), (5, 6), (3, 4, 5), (8, 64), (3, 1000), (2, 7, 8)])
def test_kernels_give_the_numbers_of_the_graph(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Every layout of the stream, in row-major order whatever the strides."""
    x = torch.randn(shape).to(dtype)
    for tensor in (x, x.t().contiguous().t() if x.dim() == 2 else x.expand(2, *shape)):
        graph = dropped.graph(tensor)
        torch.manual_seed(8)
        found = dropped(tensor)
        torch.manual_seed(8)
        seed = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))
        (wanted,) = evaluate(graph, [tensor], [seed], "kernel")
        torch.testing.assert_close(found, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(5,), (4096,), (1000, 1003), (2, 3, 4), (6,), (1 << 22,), (4099, 1024)])
def test_the_mask_is_torchs_own(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.ones(shape, device="cuda", dtype=dtype)
    for p in (0.5, 0.1):
        torch.cuda.manual_seed(21)
        wanted = F.dropout(x, p), F.dropout(x, p)
        torch.cuda.manual_seed(21)
        found = dropped(x, p), dropped(x, p)
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_captured_graph_is_refused() -> None:
    x = torch.ones(8, device="cuda")
    dropped(x)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(fusedsl.FuseError, match="CUDA graph"), torch.cuda.graph(graph):
        dropped(x)


def test_backward_and_checkpointing_use_the_forward_mask(device: str) -> None:
    @fusedsl.fuse
    def squared(x: Tensor) -> Tensor:
        return F.dropout(x * x, 0.5)

    for run in (squared, lambda x: checkpoint(squared, x, use_reentrant=False)):
        x = torch.randn(40, 50, device=device, requires_grad=True)
        y = run(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert abs(float((y == 0).double().mean()) - 0.5) < 0.05
        torch.testing.assert_close(gradient, torch.where(y == 0, 0.0, 4 * x.detach()))
