# SPDX-License-Identifier: Apache-2.0
"""Gradients of normalisations over rows in shared memory: values of every form, what is chosen, what assembles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusedsl
from fusedsl.schedulers import inner_outer_persistent
from fusedsl.schedulers.columns import ColumnParams
from fusedsl.schedulers.inner_outer_persistent import InnerOuterParams
from fusedsl.schedulers.inner_outer_shared import SharedRows
from tests.schedulers.test_inner_outer import centred, gradients, layer_norm, only_sums, rms_norm
from tests.tolerance import assert_within

BF16 = torch.bfloat16
OUTER = ColumnParams(32, 8, 1, 2)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Callable[[SharedRows, int], None]:
    """From here on the scheduler chooses these parameters."""

    def force(row: SharedRows, blocks: int) -> None:
        params = InnerOuterParams(row, OUTER, blocks)
        monkeypatch.setattr(inner_outer_persistent, "compute_heuristics", lambda problem: params)

    return force


#: Parameters and a number of columns that they hold.
FORMS = {
    "a block, exact": (SharedRows(32, 4, 1, 2, exact=True), 256),
    "a block, ragged": (SharedRows(32, 4, 2, 2, resident=True), 300),
    "a block of two warps": (SharedRows(64, 4, 1, 2, resident=True), 500),
    "one tile": (SharedRows(32, 2, 2, 1), 122),
    "two blocks, exact": (SharedRows(32, 4, 1, 2, 2, exact=True, resident=True), 512),
    "two blocks of two warps, ragged": (SharedRows(64, 4, 1, 1, 2), 260),
    "four blocks, ragged": (SharedRows(32, 4, 1, 2, 4, resident=True), 900),
    "four blocks, two of them without columns": (SharedRows(32, 4, 1, 2, 4), 500),
}


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("form", list(FORMS))
def test_gradients_of_every_form(form: str, dtype: torch.dtype, device: str, forced) -> None:
    row, columns = FORMS[form]
    rows, blocks = (17, 3) if dtype == BF16 else (5, 2)
    forced(row, blocks)
    x, grad = torch.randn(2, rows, columns, device=device).to(dtype)
    weight, bias = torch.randn(2, columns, device=device).to(dtype)
    fn, arguments = (layer_norm, (x, weight, bias)) if dtype == BF16 else (rms_norm, (x, weight))
    function = fusedsl.fuse(fn.__wrapped__)
    wanted = [a.clone().requires_grad_() for a in arguments]
    (segment,) = function.explain(*wanted, backward=True).backward.segments
    assert segment.scheduler == "inner_outer_persistent" and segment.params.row == row
    found = gradients(function, arguments, grad)
    eager = gradients(function.reference, arguments, grad)
    truth = gradients(function.reference, [a.double() for a in arguments], grad.double())
    for one, its_eager, its_truth in zip(found, eager, truth, strict=True):
        assert_within(one, its_eager, its_truth)
    again = gradients(function, arguments, grad)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("form", list(FORMS))
def test_other_graphs(form: str, device: str, forced) -> None:
    """Stages before the outer sums, and nothing of a row stored."""
    row, columns = FORMS[form]
    forced(row, 3)
    x, y = torch.randn(2, 16, columns, device=device)
    for fn, arguments in ((centred.__wrapped__, (x, y)), (only_sums.__wrapped__, (x,)), (standardised, (x, y))):
        fused = fusedsl.fuse(fn)
        (segment,) = fused.explain(*arguments).segments
        assert segment.scheduler == "inner_outer_persistent" and segment.params.row == row
        truth = fn(*(a.double() for a in arguments))
        for one, its_eager, its_truth in zip(fused(*arguments), fn(*arguments), truth, strict=True):
            assert_within(one, its_eager, its_truth)


def standardised(x, y):
    """Two stages, a result a row, rows of three dims."""
    row = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5)
    return row * scale, scale, (row * scale * y).sum(0)


def test_rows_of_several_loops(device: str, forced) -> None:
    forced(SharedRows(32, 4, 1, 2, 2), 4)
    x, grad = torch.randn(2, 3, 7, 252, device=device)
    weight, bias = torch.randn(2, 252, device=device)
    fused = fusedsl.fuse(layer_norm.__wrapped__)
    strided = torch.randn(3, 9, 300, device=device)[:, 1:8, :252]
    for arguments in ((x, weight, bias), (strided, weight, bias)):
        found = gradients(fused, arguments, grad)
        for one, expected in zip(found, gradients(layer_norm.reference, arguments, grad), strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)
