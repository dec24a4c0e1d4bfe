# SPDX-License-Identifier: Apache-2.0
"""Programs: what a segment says of itself, values across segment boundaries, and that new sizes compile nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.numba_cuda.device import H200
from fusedsl.pipeline import Program, plan_graph
from fusedsl.programs import layout_of
from tests.tolerance import assert_matches_eager

BF16 = torch.bfloat16


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@fusedsl.fuse
def softmax(x):
    return F.softmax(x, -1)


@fusedsl.fuse
def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


@fusedsl.fuse
def gelu_bias(x, bias):
    return F.gelu(x + bias)


@fusedsl.fuse
def scale(x, factor):
    return x * factor


@fusedsl.fuse
def row_sum(x):
    return x.sum(-1)


@fusedsl.fuse
def column_sum(x):
    return x.sum(0)


# what a segment says ------------------------------------------------------------------------------------------------


def test_reductions_of_a_segment():
    (segment,) = softmax.explain(meta(64, 1024, dtype=BF16), arch="H200").segments
    largest, total = segment.reductions
    assert (largest.op, largest.type, largest.stage) == ("amax", "inner", 1)
    assert (total.op, total.type, total.stage) == ("sum", "inner", 2)
    assert largest.roles == ("reference", "normalization")
    assert total.roles == ("follower", "normalization")


def test_a_reduction_whose_result_only_leaves():
    (segment,) = column_sum.explain(meta(64, 1024), arch="H200").segments
    (reduction,) = segment.reductions
    assert (reduction.type, reduction.roles) == ("outer", ("reference", "terminal"))
    assert segment.persistent_buffers == ()


def test_persistent_buffers_of_a_segment():
    """bfloat16 rows of 1024: the centred row is kept as what it is computed from."""
    segment = layer_norm.explain(meta(64, 1024, dtype=BF16), *[meta(1024, dtype=BF16)] * 2, arch="H200").segments[0]
    sizes = {buffer.name: buffer.bytes for buffer in segment.persistent_buffers}
    dtypes = [buffer.dtype for buffer in segment.persistent_buffers]
    assert list(sizes.values()) == [4096] * len(sizes)
    assert dtypes == [torch.float32] * len(sizes)
    for buffer in segment.persistent_buffers:
        assert buffer.projected
        assert buffer.projected_to == ("x",)
        assert buffer.resolution_points
    assert "keeping the arguments takes 2048 bytes a row" in segment.persistent_buffers[0].reason


def test_a_buffer_that_is_an_argument_cannot_be_projected():
    (segment,) = fusedsl.fuse(centred).explain(meta(64, 256), arch="H200").segments
    (buffer,) = segment.persistent_buffers
    assert (buffer.name, buffer.bytes, buffer.projected, buffer.projected_to) == ("x", 1024, False, ())
    assert buffer.reason == "x is an argument itself"


def centred(x):
    return x - x.sum(-1, keepdim=True)


def test_exponentials_are_not_computed_again_in_short_rows():
    for columns, projected in ((1024, False), (100_000, True)):
        (segment,) = softmax.explain(meta(640, columns, dtype=BF16), arch="H200").segments
        buffer = segment.persistent_buffers[-1]
        assert (buffer.bytes, buffer.projected) == (4 * columns, projected)


def test_explain_prints_what_the_analysis_found():
    explanation = layer_norm.explain(meta(64, 1024, dtype=BF16), *[meta(1024, dtype=BF16)] * 2, arch="H200")
    (segment,) = explanation.segments
    text = str(explanation)
    for reduction in segment.reductions:
        assert f"    {reduction.name} = {reduction.op}(" in text
    for buffer in segment.persistent_buffers:
        assert f"{buffer.bytes} bytes (float32), resolved at {', '.join(buffer.resolution_points)}" in text
    for line in str(segment.facts).splitlines():
        assert f"  {line}\n" in text
    assert "  in the kernel: " in text


def test_facts_are_not_computed_for_a_call(monkeypatch):
    def never(*args):
        raise AssertionError("the analysis ran for a call")

    monkeypatch.setattr("fusedsl.pipeline.analyse", never)
    x = torch.randn(3, 40)
    torch.testing.assert_close(fusedsl.fuse(centred)(x), centred(x))


def test_equal_functions_keep_their_own_names():
    """Names are no part of a graph's equality, so nothing that carries them may be shared."""

    def first() -> object:
        @fusedsl.fuse
        def fn(x):
            alpha = x * 2.5
            return torch.special.i0(alpha)

        return fn

    def second() -> object:
        @fusedsl.fuse
        def fn(x):
            beta = x * 2.5
            return torch.special.i0(beta)

        return fn

    texts = [str(make().explain(meta(4, 6), arch="H200")) for make in (first, second)]
    assert "alpha" in texts[0] and "beta" not in texts[0]
    assert "beta" in texts[1] and "alpha" not in texts[1]


# values across boundaries -------------------------------------------------------------------------------------------


@fusedsl.fuse
def expanded_for_eager(x):
    return torch.special.i0(x.sum(-1, keepdim=True).expand(x.shape))


@fusedsl.fuse
def expanded_and_summed(x):
    return (x.sum(-1, keepdim=True).expand(x.shape) * 1.5).sum(-1)


@fusedsl.fuse
def filled_and_summed(x):
    return torch.full_like(x, 2.0).sum(-1), torch.special.i0(x)


@fusedsl.fuse
def upcast_twice(x):
    y = x.float()
    return y.sum(0), torch.special.i0(y), y * 2 + 1


@pytest.mark.parametrize("program", [expanded_for_eager, expanded_and_summed, filled_and_summed, upcast_twice])
def test_segments_with_a_loop_that_only_another_one_reads(device, program):
    """The size of a loop reaches segments none of whose tensors has it."""
    for columns in (6, 9):
        assert_matches_eager(program, torch.randn(4, columns, device=device))


def test_few_very_long_rows(device):
    """Rows that nothing holds: reductions that split a row, then the epilogue."""
    x = torch.randn(1, 9000, device=device, dtype=torch.float64)
    assert_matches_eager(softmax, x)


# new sizes ----------------------------------------------------------------------------------------------------------

BATCHES = (3, 8, 64, 100, 128, 1000, 1024, 4096, 5000, 100_000)
CASES = {
    "pointwise": (scale, lambda b: [meta(b, 1024, dtype=BF16)], (2.0,)),
    "pointwise with a bias": (gelu_bias, lambda b: [meta(b, 1024, dtype=BF16), meta(1024, dtype=BF16)], ()),
    "softmax": (softmax, lambda b: [meta(b, 1024, dtype=BF16)], ()),
    "odd rows": (softmax, lambda b: [meta(b, 999)], ()),
    "long rows": (softmax, lambda b: [meta(b, 65536, dtype=BF16)], ()),
    "layer norm": (layer_norm, lambda b: [meta(b, 4096), meta(4096), meta(4096)], ()),
    "row sums": (row_sum, lambda b: [meta(b + 200, 1024)], ()),
}


def _plan(fn, tensors, *scalars) -> Program:
    graph = fn.graph(*tensors, *scalars)
    return plan_graph(graph, {i: layout_of(x) for i, x in zip(graph.inputs, tensors, strict=True)}, H200, "default")


@pytest.mark.parametrize("case", list(CASES))
def test_a_new_batch_size_gives_the_same_kernels(case):
    fn, tensors, scalars = CASES[case]
    programs = [_plan(fn, tensors(b), *scalars) for b in BATCHES]
    found = {tuple(launch.source for s in p.segments for launch in s.plan.launches) for p in programs}
    assert len(found) == 1


def test_a_new_batch_size_compiles_nothing():
    fusedsl.reset_stats()
    first = layer_norm.compile(meta(16, 512), meta(512), meta(512), arch="H200")
    before = fusedsl.stats()
    second = layer_norm.compile(meta(300, 512), meta(512), meta(512), arch="H200")
    after = fusedsl.stats()
    assert [kernel.cubin for kernel in first] == [kernel.cubin for kernel in second]
    assert (after.traces, after.compilations, after.disk_hits) == (before.traces, before.compilations, before.disk_hits)
    assert after.plans == before.plans + 1
