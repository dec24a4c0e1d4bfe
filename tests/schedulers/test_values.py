# SPDX-License-Identifier: Apache-2.0
"""Every kernel form gives eager's values: odd sizes, strides, dtypes, either side of each switch of form."""

from __future__ import annotations

import pytest
import torch

from tests.schedulers import programs
from tests.tolerance import assert_matches_eager

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 3, 7, 8, 31, 33, 64, 100, 128, 513, 1000, 1024, 2056])
def test_row_norms(device, columns, dtype):
    x = torch.randn(5, columns, device=device).to(dtype)
    w, b = torch.randn(2, columns, device=device).to(dtype)
    assert_matches_eager(programs.softmax, x)
    if columns > 1:
        assert_matches_eager(programs.layer_norm, x, w, b)


@pytest.mark.parametrize("columns", [32768 + 8, 32768 + 1, 40000])
def test_rows_that_registers_cannot_hold(device, columns):
    x = torch.randn(1, columns, device=device)
    assert_matches_eager(programs.softmax, x)


@pytest.mark.parametrize("shape", [(3, 5), (64, 8), (300, 17), (1000, 40), (4, 3, 5), (1, 1), (2, 4096)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reductions_of_each_dim(device, shape, dtype):
    x = torch.randn(shape, device=device).to(dtype)
    for program in (
        programs.row_sum,
        programs.column_sum,
        programs.total,
        programs.positions,
        programs.column_positions,
    ):
        assert_matches_eager(program, x)


@pytest.mark.parametrize("shape", [(3, 40, 5), (2, 7, 64), (4, 300, 1), (1, 9, 9)])
def test_reductions_of_a_middle_dim(device, shape):
    x = torch.randn(shape, device=device)
    assert_matches_eager(programs.middle, x)
    assert_matches_eager(programs.outer_and_inner, x)


def test_few_results_are_split_over_blocks(device):
    x = torch.randn(2, 40000, device=device)
    assert programs.row_sum.explain(x).segments[0].params.split > 1
    assert_matches_eager(programs.row_sum, x)
    assert_matches_eager(programs.total, x)
    assert_matches_eager(programs.positions, x)
    y = torch.randn(4000, 3, device=device)
    assert programs.column_sum.explain(y).segments[0].params.split > 1
    assert_matches_eager(programs.column_sum, y)
    assert_matches_eager(programs.column_positions, y)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_integer_reductions(device, dtype):
    x = torch.randint(0, 2 if dtype == torch.bool else 100, (9, 70), device=device).to(dtype)
    for program in (programs.row_sum, programs.column_sum, programs.total):
        assert_matches_eager(program, x)


@pytest.mark.parametrize("columns", [1, 3, 8, 40, 129, 256, 1024])
@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_bias_along_rows(device, rows, columns):
    x = torch.randn(rows, columns, device=device).bfloat16()
    assert_matches_eager(programs.gelu_bias, x, torch.randn(columns, device=device).bfloat16())


@pytest.mark.parametrize("numel", [1, 7, 255, 4096, 4097, 8200])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.int32])
def test_flat_sizes(device, numel, dtype):
    x = (torch.randn(numel, device=device) * 10).to(dtype)
    assert_matches_eager(programs.scale_shift, x)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[1:, 3:],
        lambda t: t[:, :1].expand(24, 40),
        lambda t: t[:1].expand(24, 40),
        lambda t: t[0, 0].expand(24, 40),
        lambda t: t.reshape(-1)[1:].reshape(1, -1),
        lambda t: t.unflatten(0, (4, 6)).transpose(0, 2),
        lambda t: t.reshape(2, 3, 4, 40).permute(3, 1, 0, 2),
        lambda t: t.reshape(2, 3, 4, 40).to(memory_format=torch.channels_last),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strides(device, view, dtype):
    x = view(torch.randn(24, 40, device=device).to(dtype))
    for program in (programs.scale_shift, programs.row_sum, programs.column_sum, programs.total, programs.softmax):
        result = assert_matches_eager(program, x)
        assert result.stride() == program.reference(x).stride() or result.numel() < 2, program.__name__


def test_outputs_beside_a_reduction(device):
    x = torch.randn(6, 50, device=device)
    assert_matches_eager(programs.statistics, x)


def test_what_no_scheduler_takes_whole_is_split(device):
    x, y = torch.randn(6, 20, device=device), torch.randn(9, 20, device=device)
    assert_matches_eager(programs.two_norms, x, y)
    assert len(programs.two_norms.explain(x, y).segments) > 1
    x = torch.randn(5, 8, 20, device=device)[:, 1:]
    assert_matches_eager(programs.apart, x)
    names = [s.scheduler for s in programs.apart.explain(x).segments]
    assert names.count("reduction") == 1
    assert "eager" not in names
