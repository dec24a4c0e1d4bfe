# SPDX-License-Identifier: Apache-2.0
"""Few long rows shared by the blocks of a cooperative grid: values, the choice, what assembles."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.schedulers import inner_persistent
from fusedsl.schedulers.row_params import RowParams
from tests.schedulers.support import meta, refusal, whole
from tests.tolerance import assert_within

BF16 = torch.bfloat16


def batch_norm(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)


def softmax(x):
    return F.softmax(x, -1)


def statistics(x):
    return x - x.amax(-1, keepdim=True), x.sum(-1), x.argmax(-1)


FORMS = {
    "two blocks": RowParams(32, 1, 2, 1, "stream", grid=2),
    "more blocks than work": RowParams(64, 1, 4, 1, "stream", grid=5),
    "many blocks": RowParams(32, 1, 1, 2, "stream", grid=40, min_blocks=2),
}


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_values(form: str, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_persistent, "compute_heuristics", lambda problem: FORMS[form])
    weight, bias = torch.randn(2, 3, device=device)
    image = torch.randn(6, 3, 4, 12, device=device).to(dtype)
    for function, args in (
        (batch_norm, (image, weight, bias)),
        (softmax, (torch.randn(2, 300, device=device).to(dtype),)),
        (softmax, (torch.randn(444, device=device).to(dtype),)),
        (statistics, (torch.randn(2, 300, device=device).to(dtype),)),
    ):
        fused = fusedsl.fuse(function)
        assert {s.scheduler for s in fused.explain(*args).segments} == {"inner_persistent"}
        found, eager, truth = fused(*args), function(*args), function(*(a.double() for a in args))
        again = fused(*args)
        for one, other, its_eager, its_truth in zip(*map(_several, (found, again, eager, truth)), strict=True):
            assert_within(one, its_eager, its_truth)
            assert torch.equal(one, other)


def _several(result: object) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


@pytest.mark.parametrize("arch", ["H200", "A100"])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("batch", "channels", "size"), [(256, 64, 56), (64, 96, 112), (32, 64, 28)])
def test_batch_norm_of_contiguous_images(arch: str, dtype: torch.dtype, batch: int, channels: int, size: int) -> None:
    """One kernel forward and one backward; all blocks are resident at once and occupy the GPU; nothing spills."""
    x = meta(batch, channels, size, size, dtype=dtype).requires_grad_()
    weight, bias = meta(channels).requires_grad_(), meta(channels).requires_grad_()
    explained = fusedsl.fuse(batch_norm).explain(x, weight, bias, arch=arch, backward=True)
    for (segment,) in (explained.segments, explained.backward.segments):
        (launch,) = segment.plan.launches
        device, params = segment.problem.device, segment.params
        blocks = launch.geometry.grid[0] * launch.geometry.grid[1]
        assert params.grid > 1
        assert launch.geometry.cooperative
        assert device.multiprocessors // 2 <= blocks <= device.multiprocessors * params.min_blocks
        kernel = compile_kernel(launch.source, device.arch)
        assert kernel.spill_bytes == 0
        assert kernel.registers * params.threads * params.min_blocks <= device.registers_per_sm


def test_one_long_row_is_shared() -> None:
    params = inner_persistent.compute_heuristics(whole(softmax, meta(1 << 24)))
    assert (params.storage, params.grid) == ("stream", 264)


def test_many_rows_and_short_ones_are_not_shared() -> None:
    assert inner_persistent.compute_heuristics(whole(softmax, meta(132, 1 << 23))).grid == 1
    assert inner_persistent.compute_heuristics(whole(softmax, meta(2, 20_000))).grid == 1


def test_rows_that_cannot_be_shared_well_are_refused() -> None:
    """Two images of two channels: their rows have two pieces each."""
    x = meta(2, 2, 2048, 2048)
    found = refusal("inner_persistent", whole(batch_norm, x, meta(2), meta(2)))
    assert found is not None
    assert found.code == "not_enough_blocks"
