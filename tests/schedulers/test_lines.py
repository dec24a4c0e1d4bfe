# SPDX-License-Identifier: Apache-2.0
"""Rows of two reduced loops with a kept one between (batch norm of NCHW) stay in registers."""

from __future__ import annotations

import pytest
import torch

import fusedsl
from fusedsl.schedulers import inner_persistent
from fusedsl.schedulers.row_params import RowParams
from tests.schedulers.support import meta
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def batch_norm(x, weight, bias):
    var, mean = torch.var_mean(x, (0, 2), correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5) * weight[:, None] + bias[:, None]


def weighted(x, outer, inner):
    """Operands that vary along one of the two loops."""
    row = x * outer[:, None, None] + inner
    return row - row.amax((0, 2), keepdim=True)


@fusedsl.fuse
def softmax(x):
    return torch.exp(x - x.amax((0, 2), keepdim=True)) / torch.exp(x - x.amax((0, 2), keepdim=True)).sum(
        (0, 2), keepdim=True
    )


@fusedsl.fuse
def placed(x):
    return x - x.permute(1, 0, 2).flatten(1).argmax(-1)[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(8, 3, 49), (5, 2, 8), (3, 2, 130), (16, 2, 64), (9, 1, 12), (40, 2, 100), (2, 3, 257), (33, 2, 4)]
)
def test_values(device, shape, dtype):
    x = torch.randn(shape, device=device).to(dtype)
    weight, bias = torch.randn(2, shape[1], device=device).to(dtype)
    assert_matches_eager(batch_norm, x, weight, bias)
    outer, inner = torch.randn(shape[0], device=device).to(dtype), torch.randn(shape[2], device=device).to(dtype)
    assert_matches_eager(fusedsl.fuse(weighted), x, outer, inner)
    assert_matches_eager(softmax, x)
    (segment,) = softmax.explain(x).segments
    if shape[-1] == 257:  # one line takes a block's threads
        assert segment.params.peeled
    else:
        assert segment.params.storage == "register"
        assert segment.params.lines > 1 or shape[1] == 1


def test_four_dims_and_other_orders(device):
    x = torch.randn(4, 3, 6, 8, device=device)

    def normed(x):
        return x - x.mean((0, 2, 3), keepdim=True)

    for view in (x, x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3), x[:, :, ::2], x[..., 1:]):
        assert_matches_eager(fusedsl.fuse(normed), view)
    assert fusedsl.fuse(normed).explain(x).segments[0].params.lines > 1


def test_rows_that_registers_cannot_hold_are_streamed(device, monkeypatch):
    x = meta(512, 64, 1024)
    assert softmax.explain(x, arch="H200").segments[0].params.storage == "stream"
    for params in (RowParams(32, 1, 1, 2, "stream"), RowParams(32, 1, 4, 2, "stream", peeled=True)):
        monkeypatch.setattr(inner_persistent, "compute_heuristics", lambda problem, params=params: params)
        y = torch.randn(3, 2, 131, device=device)
        assert_matches_eager(fusedsl.fuse(weighted), y, y[:, 0, 0].clone(), y[0, 0].clone())


def test_positions_are_streamed(device):
    x = torch.randn(6, 3, 20, device=device)
    assert_matches_eager(placed, x)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("shape", "dtype"), [((64, 64, 512), torch.bfloat16), ((32, 64, 512), torch.float32)])
def test_a_row_is_read_once(shape, dtype, arch):
    """The longest rows that registers hold: a load and a store a chunk, nothing spilled."""
    args = [meta(*shape, dtype=dtype), meta(shape[1], dtype=dtype), meta(shape[1], dtype=dtype)]
    params = batch_norm.explain(*args, arch="H200").segments[0].params
    (kernel,) = batch_norm.compile(*args, arch=arch)
    assert params.threads == 512
    assert kernel.ptx.count("ld.global.v4.b32") == kernel.ptx.count("st.global.v4.b32") == params.batch
    assert kernel.spill_bytes == kernel.local_bytes == 0
