# SPDX-License-Identifier: Apache-2.0
"""Gradients of normalisations over rows in shared memory: values of every form, what is chosen, what assembles."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import attrs
import pytest
import torch

import fusedsl
from fusedsl import executor
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.device import H200
from fusedsl.numba_cuda.interpreter import interpret
from fusedsl.numba_cuda.interpreter.errors import KernelFault
from fusedsl.numba_cuda.kernel import KernelSource
from fusedsl.schedulers import inner_outer_persistent
from fusedsl.schedulers.columns import ColumnParams
from fusedsl.schedulers.inner_outer_persistent import InnerOuterParams
from fusedsl.schedulers.inner_outer_shared import SharedRows
from tests.schedulers.support import meta, refusal, text_of, whole
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
    "two blocks, copied as a whole": (SharedRows(32, 4, 1, 2, 2, exact=True, resident=True, whole=True), 512),
    "four blocks of two warps, copied as a whole": (SharedRows(64, 4, 1, 1, 4, exact=True, whole=True), 1024),
    "two blocks of two warps, ragged": (SharedRows(64, 4, 1, 1, 2), 260),
    "four blocks, ragged": (SharedRows(32, 4, 1, 2, 4, resident=True), 900),
    "four blocks, two of them without columns": (SharedRows(32, 4, 1, 2, 4), 500),
}


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("form", list(FORMS))
def test_gradients_of_every_form(form: str, dtype: torch.dtype, device: str, forced) -> None:
    row, columns = FORMS[form]
    rows, blocks = (17, 3) if dtype == BF16 else (16, 5)
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


@pytest.mark.parametrize("form", ["a block of two warps", "two blocks of two warps, ragged"])
def test_the_order_of_blocks_and_threads_does_not_matter(form: str, forced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages of reductions a row, several rows a block: the barriers order everything."""
    row, columns = FORMS[form]
    forced(row, 3)
    x, y = torch.randn(2, 16, columns)
    fused = fusedsl.fuse(standardised)
    expected = fused(x, y)
    for order in ("reversed", 1, 2):
        monkeypatch.setattr(executor, "interpret", functools.partial(interpret, order=order))
        assert all(torch.equal(a, b) for a, b in zip(fused(x, y), expected, strict=True))


def standardised(x, y):
    """Two stages, a result a row, rows of three dims."""
    row = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5)
    return row * scale, scale, (row * scale * y).sum(0)


CLUSTER_FORM = "two blocks of two warps, ragged"
BROKEN = {
    "the mbarrier is not armed again": ("            mbarrier_expect(arrived, turn, 16)", "            pass"),
    "it is armed for too few bytes": (
        "            mbarrier_expect(arrived, turn, 16)",
        "            mbarrier_expect(arrived, turn, 12)",
    ),
    "only the first row waits": ("phase = phase ^ turn", "phase = phase"),
    "a phase every row": ("phase = phase ^ turn", "phase = 1 - phase"),
    "waits for the other row": ("mbarrier_wait(arrived, turn, phase)", "mbarrier_wait(arrived, 1 - turn, phase)"),
    "one mbarrier": ("arrived, turn", "arrived, 0"),
    "one place for parts": ("turn * 4", "0"),
    "parts are read from the other place": ("_smem, turn * 4, 4)", "_smem, (1 - turn) * 4, 4)"),
    "no barrier at first": ("    cluster_wait()\n", ""),
}


@pytest.mark.parametrize("order", ["forward", 1])
@pytest.mark.parametrize("fault", ["none", *BROKEN])
def test_the_exchange_needs_all_that_it_has(fault: str, order, forced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six or seven rows a cluster, one stage of reductions."""
    row, columns = FORMS[CLUSTER_FORM]
    forced(row, 3)

    def broken(source: KernelSource, *arguments) -> None:
        text = source.text
        if fault != "none" and "mbarrier" in text:
            text = text.replace(*BROKEN[fault])
            assert text != source.text
        interpret(attrs.evolve(source, text=text), *arguments, order=order)

    monkeypatch.setattr(executor, "interpret", broken)
    arguments = (*torch.randn(2, 20, columns), torch.randn(columns), torch.randn(20, 1))
    if fault == "none":
        found, expected = fusedsl.fuse(weighted)(*arguments), weighted(*arguments)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
    else:
        with pytest.raises(KernelFault):
            fusedsl.fuse(weighted)(*arguments)


def test_clusters_without_rows_end(device: str, forced) -> None:
    row, columns = FORMS[CLUSTER_FORM]
    forced(row, 24)
    arguments = (
        *torch.randn(2, 20, columns, device=device),
        *torch.randn(1, columns, device=device),
        torch.ones(20, 1, device=device),
    )
    for one, other in zip(fusedsl.fuse(weighted)(*arguments), weighted(*arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_partial_results_in_two_places_by_lanes(device: str, forced) -> None:
    """More than 32 parts of a row: a lane has a share of them."""
    row = SharedRows(512, 2, 1, 1, 4)
    forced(row, 1)
    arguments = (
        *torch.randn(2, 5, 3000, device=device),
        *torch.randn(1, 3000, device=device),
        torch.ones(5, 1, device=device),
    )
    with_sums = fusedsl.fuse(weighted)
    for one, other in zip(with_sums(*arguments), weighted(*arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("form", ["a block of two warps", "two blocks of two warps, ragged"])
def test_text(form: str, golden: Callable[[str], None]) -> None:
    row, columns = FORMS[form]
    problem = whole(weighted, *[meta(20, columns, dtype=BF16)] * 2, meta(columns, dtype=BF16), meta(20, 1))
    golden(text_of(inner_outer_persistent.schedule(problem, InnerOuterParams(row, OUTER, 4))))


def weighted(x, grad, weight, scale):
    row = grad.float() * weight
    inner = (row * x).mean(-1, keepdim=True)
    return ((row - x * inner) * scale).to(x.dtype), (grad * x * scale).sum(0), grad.float().sum(0)


def test_parameters_alone_decide_the_text() -> None:
    row = SharedRows(32, 4, 1, 2, 2)
    texts = set()
    for rows, columns, blocks in ((20, 300, 4), (40, 400, 4), (40, 400, 8)):
        problem = whole(weighted, *[meta(rows, columns)] * 2, meta(columns), meta(rows, 1))
        plan = inner_outer_persistent.schedule(problem, InnerOuterParams(row, OUTER, blocks))
        assert plan.launches[0].geometry.grid == (2 * blocks, 1, 1)
        texts.add(tuple(launch.source.text for launch in plan.launches))
    assert len(texts) == 1


def segments(function, arch: str, dtype: torch.dtype, rows: int, columns: int):
    """The backward segments of a norm."""
    count = 3 if function is layer_norm else 2
    arguments = [meta(rows, columns, dtype=dtype), *[meta(columns, dtype=dtype)] * (count - 1)]
    arguments = [torch.empty_like(a).requires_grad_() for a in arguments]
    return function.explain(*arguments, backward=True, arch=arch).backward.segments


CHOSEN = [
    ("H200", BF16, 4096, 16384, 1, 132),
    ("H200", torch.float16, 4096, 32768, 4, 62),
    ("H200", BF16, 2048, 65536, 8, 30),
    ("H200", BF16, 2048, 131072, 8, 15),
    ("H200", BF16, 1024, 262144, 16, 7),
    ("H200", torch.float32, 4096, 32768, 8, 30),
    ("H200", torch.float32, 2048, 65536, 8, 15),
    ("A100", BF16, 4096, 16384, 1, 108),
]


@pytest.mark.parametrize(("arch", "dtype", "rows", "columns", "cluster", "blocks"), CHOSEN)
def test_long_rows_are_one_segment_that_does_not_spill(
    arch: str, dtype: torch.dtype, rows: int, columns: int, cluster: int, blocks: int
) -> None:
    for function in (layer_norm, rms_norm):
        (segment,) = segments(function, arch, dtype, rows, columns)
        params = segment.params
        assert isinstance(params.row, SharedRows) and params.row.exact and params.row.resident
        assert (params.row.cluster, params.blocks) == (cluster, blocks)
        first, *finish = segment.plan.launches
        assert len(finish) == 1
        compiled = compile_kernel(first.source, {"H200": "sm_90a", "A100": "sm_80"}[arch])
        assert compiled.spill_bytes == 0 and compiled.registers <= 128
        smem = {"H200": 232448, "A100": 166912}[arch]
        assert compiled.smem_bytes + first.geometry.dynamic_smem_bytes <= smem


@pytest.mark.parametrize(
    ("columns", "functions"),
    [
        (10_240, (rms_norm,)),
        (16386, (layer_norm, rms_norm)),
        (40000, (layer_norm, rms_norm)),
        (200_008, (layer_norm,)),
        (389_992, (rms_norm,)),
    ],
)
def test_ragged_rows_do_not_spill(columns: int, functions) -> None:
    for function in functions:
        (segment,) = segments(function, "H200", BF16, 2048, columns)
        row = segment.params.row
        assert row.resident == (columns < 300_000)
        assert row.exact == (columns == 10_240) and row.held - row.tile * row.cluster < columns <= row.held
        assert compile_kernel(segment.plan.launches[0].source, "sm_90a").spill_bytes == 0


def test_clusters_are_resident_together() -> None:
    """As the driver says; a device that does not tell has groups of 16 multiprocessors or more."""
    assert [H200.resident_clusters(c, b) for c in (4, 8, 16) for b in (1, 2)] == [31, 62, 15, 30, 7, 14]
    device = attrs.evolve(H200, clusters=())
    counts = {(c, b): device.resident_clusters(c, b) for c in (1, 2, 4, 8, 16) for b in (1, 2)}
    assert counts == {
        (1, 1): 132, (2, 1): 66, (4, 1): 32, (8, 1): 16, (16, 1): 8,
        (1, 2): 264, (2, 2): 132, (4, 2): 64, (8, 2): 32, (16, 2): 16,
    }  # fmt: skip


def test_blocks_that_share_a_multiprocessor_fit_it() -> None:
    for function, dtype in itertools.product((layer_norm, rms_norm), (BF16, torch.float32)):
        (segment,) = segments(function, "H200", dtype, 2048, 32768)
        row, first = segment.params.row, segment.plan.launches[0]
        assert (row.threads, row.min_blocks, first.source.min_blocks) == (256, 2, 2)
        compiled = compile_kernel(first.source, "sm_90a")
        assert 2 * (compiled.smem_bytes + first.geometry.dynamic_smem_bytes + 1024) <= H200.smem_per_sm
        assert 2 * 256 * compiled.registers <= H200.registers_per_sm and compiled.spill_bytes == 0


def test_what_nothing_holds_falls_back() -> None:
    """No clusters; rows too long for 16 blocks; rows that cp.async cannot copy."""
    for arch, columns in (("A100", 65536), ("H200", 1 << 20), ("H200", 16385)):
        found = segments(layer_norm, arch, BF16, 2048, columns)
        assert len(found) > 1 and all(s.plan is not None for s in found)
    x = meta(2048, 16385, dtype=BF16)
    found = refusal("inner_outer_persistent", whole(centred.__wrapped__, x, x))
    assert found is not None and found.code == "row_length" and "16385" in found.reason
