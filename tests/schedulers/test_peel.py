# SPDX-License-Identifier: Apache-2.0
"""Rows that begin at any alignment: every form gives eager's values, with accesses of 16 bytes."""

from __future__ import annotations

import itertools
import re

import attrs
import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.schedulers import inner_outer_persistent, inner_persistent, reduction
from fusedsl.schedulers.peel import find_grid, row_vector
from fusedsl.schedulers.row_params import RowParams
from fusedsl.schedulers.space import iteration_space
from tests.schedulers.support import meta, whole
from tests.tolerance import assert_matches_eager, assert_within

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def softmax(x):
    return F.softmax(x, -1)


def rms_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def cross_entropy(x, target):
    return F.cross_entropy(x, target, reduction="none")


def row_sum(x):
    return x.sum(-1)


def places(x):
    return x.argmax(-1), x.argmin(-1)


def extremes(x):
    return x.amax(-1), x.amin(-1), (x != x).any(-1)


def masked_softmax(x, keep, bias):
    return torch.where(keep, x.float() + bias, -1e9).softmax(-1)


def apart(x):
    """Reduced loops with a kept one in between."""
    return x.sum((0, 2)), x.amax((0, 2))


def whitened(x):
    return x - x.mean((0, 2), keepdim=True)


def tensors(device, dtype, *shapes):
    """Tensors of their own memory, so that each is aligned."""
    return [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def peeled(function, *args) -> list[bool]:
    """Whether each segment's rows are peeled."""
    return [getattr(s.params, "peeled", False) for s in fusedsl.fuse(function).explain(*args).segments]


#: Row lengths and dtypes; float16 takes the paths of bfloat16, so a length of each kind will do.
LENGTHS = [
    *itertools.product([1, 3, 7, 9, 31, 127, 129, 257, 1023, 1025, 4097, 5003], [BF16, F32]),
    *itertools.product([9, 257, 4097], [F16]),
]


@pytest.mark.parametrize(("columns", "dtype"), LENGTHS)
def test_values(device, columns, dtype):
    x, weight, bias = tensors(device, dtype, (3, columns), (columns,), (columns,))
    target = torch.randint(0, columns, (3,), device=device)
    calls = [(softmax, x), (rms_norm, x, weight), (cross_entropy, x, target), (row_sum, x), (places, x), (extremes, x)]
    for function, *args in [*calls, *([(layer_norm, x, weight, bias)] if columns > 1 else [])]:
        assert_matches_eager(fusedsl.fuse(function), *args)
    if columns % 2 and columns >= (32 if dtype == F32 else 128):
        assert peeled(softmax, x) == peeled(layer_norm, x, weight, bias) == peeled(row_sum, x) == [True]


FORMS = {
    "registers": (softmax, inner_persistent, RowParams(64, 1, 8, 1, peeled=True)),
    "registers, several rows": (softmax, inner_persistent, RowParams(32, 2, 8, 2, peeled=True)),
    "registers, nothing ahead": (softmax, inner_persistent, RowParams(64, 1, 8, 1, prefetch=False, peeled=True)),
    "registers, cluster": (softmax, inner_persistent, RowParams(32, 1, 8, 1, cluster=2, peeled=True)),
    "registers, cluster with idle blocks": (softmax, inner_persistent, RowParams(32, 1, 8, 2, cluster=4, peeled=True)),
    "shared": (softmax, inner_persistent, RowParams(32, 1, 8, 1, "shared", peeled=True)),
    "shared, cluster": (softmax, inner_persistent, RowParams(32, 1, 8, 1, "shared", cluster=2, peeled=True)),
    "stream": (softmax, inner_persistent, RowParams(16, 1, 8, 2, "stream", peeled=True)),
    "sums, several rows": (row_sum, reduction, RowParams(16, 2, 8, 1, "stream", peeled=True)),
    "sums, split": (row_sum, reduction, RowParams(16, 1, 8, 1, "stream", split=3, peeled=True)),
    "places, registers": (places, reduction, RowParams(32, 2, 8, 2, peeled=True)),
    "places, stream": (places, reduction, RowParams(16, 1, 8, 1, "stream", peeled=True)),
    "places, split": (places, reduction, RowParams(16, 1, 8, 1, "stream", split=2, peeled=True)),
}


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("columns", [257, 262, 265, 511])
def test_every_form(device, form, columns, monkeypatch):
    function, scheduler, params = FORMS[form]
    monkeypatch.setattr(scheduler, "compute_heuristics", lambda problem: params)
    fused = fusedsl.fuse(function)
    x = torch.randn(9, columns, device=device).to(BF16)
    assert [s.params for s in fused.explain(x).segments] == [params]
    assert_matches_eager(fused, x)


def softmax_and_logsumexp(x):
    return torch.softmax(x, -1), torch.logsumexp(x, -1)


@pytest.mark.parametrize("form", ["registers", "registers, cluster", "shared", "shared, cluster", "stream"])
def test_results_of_rows_are_written_once_for_each(device, form, monkeypatch):
    """Wherever a row's first chunk begins."""
    params = FORMS[form][2]
    monkeypatch.setattr(inner_persistent, "compute_heuristics", lambda problem: params)
    assert_matches_eager(fusedsl.fuse(softmax_and_logsumexp), torch.randn(9, 257, device=device).to(BF16))


@pytest.mark.parametrize("form", ["registers", "shared", "stream"])
def test_weights_lie_across_the_chunks(device, form, monkeypatch):
    params = FORMS[form][2]
    monkeypatch.setattr(inner_persistent, "compute_heuristics", lambda problem: params)
    for columns in (257, 271):
        x, weight, bias = tensors(device, BF16, (9, columns), (columns,), (columns,))
        fused = fusedsl.fuse(layer_norm)
        assert "load_across(" in fused.source(x, weight, bias)
        assert_matches_eager(fused, x, weight, bias)


def test_positions_do_not_count_the_head(device):
    x = torch.zeros(8, 257, device=device, dtype=BF16)
    for row, column in enumerate((0, 1, 6, 7, 8, 250, 255, 256)):
        x[row, column] = 1
    found, _ = fusedsl.fuse(places)(x)
    assert peeled(places, x) == [True]
    assert found.tolist() == [0, 1, 6, 7, 8, 250, 255, 256]
    ties, first = fusedsl.fuse(places)(torch.ones_like(x))
    assert ties.tolist() == first.tolist() == [0] * 8


def test_neighbouring_rows_are_neither_used_nor_written(device):
    """Each row between rows of NaN and infinities; every element is written once (the interpreter checks)."""
    x = torch.randn(7, 257, device=device)
    x[::2] = float("nan")
    x[3, :] = torch.where(torch.arange(257, device=device) % 2 == 0, float("inf"), -float("inf"))
    for function in (softmax, row_sum, extremes):
        assert_matches_eager(fusedsl.fuse(function), x)


@pytest.mark.parametrize(
    ("view", "is_peeled"),
    [
        (lambda t: t[:, :257], True),  # rows 263 apart
        (lambda t: t[::2, :257], True),
        (lambda t: t[:, 1:258], False),  # the first address is not aligned
        (lambda t: t.flatten()[: 6 * 264].view(6, 264)[:, :257], True),  # aligned rows with a ragged end
        (lambda t: t.flatten()[: 6 * 263].view(2, 3, 263).transpose(0, 1), True),
        (lambda t: t.flatten()[: 4 * 263].view(2, 2, 263)[:, :, :200], True),
        (lambda t: t[:1, :257].expand(5, 257), False),  # one row for all
    ],
)
def test_strides(device, view, is_peeled):
    x = view(torch.randn(12, 263, device=device).to(BF16))
    for function in (softmax, row_sum, places):
        assert_matches_eager(fusedsl.fuse(function), x)
    assert peeled(row_sum, x)[0] == is_peeled


def test_tensors_of_several_widths(device):
    x = torch.randn(4, 519, device=device).to(BF16)
    bias = torch.randn(4, 519, device=device)
    keep = torch.rand(4, 519, device=device) > 0.3
    assert peeled(masked_softmax, x, keep, bias) == [True]
    assert_matches_eager(fusedsl.fuse(masked_softmax), x, keep, bias)
    one = torch.randn(519, device=device)
    assert peeled(masked_softmax, x, keep, one) == [True]
    assert_matches_eager(fusedsl.fuse(masked_softmax), x, keep, one)
    assert_matches_eager(fusedsl.fuse(masked_softmax), x, keep[:1], bias)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.bool])
def test_other_dtypes(device, dtype):
    x = (torch.randn(3, 517, device=device) * 9).to(dtype)
    assert peeled(row_sum, x) == [True]
    assert_matches_eager(fusedsl.fuse(row_sum), x)


def test_a_single_row_with_a_ragged_end(device):
    def total(x):
        return x.sum(), x.amax()

    x = torch.randint(-9, 9, (100003,), device=device).float()
    assert peeled(total, x) == [True]
    assert "head = 0" in fusedsl.fuse(total).source(x)
    assert [v.item() for v in fusedsl.fuse(total)(x)] == [x.sum().item(), x.amax().item()]


@pytest.mark.parametrize("shape", [(3, 5, 67), (2, 4, 130), (5, 3, 33)])
def test_reduced_loops_with_a_kept_one_between(device, shape):
    x = torch.randn(shape, device=device)
    assert peeled(apart, x) == [True] if shape[-1] % 2 else True
    assert_matches_eager(fusedsl.fuse(apart), x)
    assert_matches_eager(fusedsl.fuse(whitened), x)
    assert_matches_eager(fusedsl.fuse(apart), x.to(BF16))


def test_positions_and_random_numbers_along_a_row(device, monkeypatch):
    def sloped(x):
        return F.softmax(x + torch.arange(x.shape[-1], device=x.device) * 0.01, -1)

    def dropped(x):
        return F.dropout(F.softmax(x, -1), 0.5)

    x = torch.randn(5, 257, device=device)
    assert peeled(sloped, x) == peeled(dropped, x) == [True]
    assert_matches_eager(fusedsl.fuse(sloped), x)
    torch.manual_seed(3)
    found = fusedsl.fuse(dropped)(x)
    monkeypatch.setattr(inner_persistent, "compute_heuristics", lambda problem: RowParams(64, 1, 1, 5))
    torch.manual_seed(3)
    plain = fusedsl.fuse(dropped)(x)
    assert torch.equal(found == 0, plain == 0)
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("columns", "blocks"), [(129, None), (129, 8), (257, 8), (1025, 8)])
def test_gradients(device, columns, dtype, blocks, monkeypatch):
    """Rows of a block begin alike, so the sums over rows stay with their threads."""
    found, seen = inner_outer_persistent.compute_heuristics, []

    def heuristics(problem):
        params = found(problem)
        seen.append(params.row.peeled)
        return params if blocks is None else attrs.evolve(params, blocks=blocks)

    monkeypatch.setattr(inner_outer_persistent, "compute_heuristics", heuristics)
    x, grad, weight, bias = tensors(device, dtype, (19, columns), (19, columns), (columns,), (columns,))
    for function, arguments in ((layer_norm, (x, weight, bias)), (rms_norm, (x, weight))):
        fused = fusedsl.fuse(function)
        wanted = [a.clone().requires_grad_() for a in arguments]
        (segment,) = fused.explain(*wanted, backward=True).backward.segments
        assert segment.scheduler == "inner_outer_persistent"
        results = [_gradients(f, a, g) for f, a, g in _trio(fused, arguments, grad)]
        for one, eager, truth in zip(*results, strict=True):
            assert_within(one, eager, truth)
    assert seen
    assert all(seen)


def _trio(fused, arguments, grad):
    double = [a.double() for a in arguments]
    return (fused, arguments, grad), (fused.reference, arguments, grad), (fused.reference, double, grad.double())


def _gradients(function, arguments, grad):
    leaves = [a.clone().requires_grad_() for a in arguments]
    function(*leaves).backward(grad)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("function", "shapes", "vectors"),
    [(softmax, [(64, 4097)], (4, 4)), (rms_norm, [(64, 4097), (4097,)], (6, 2)), (row_sum, [(64, 3001)], (2, 0))],
)
def test_accesses_have_sixteen_bytes(function, shapes, vectors, arch):
    """Two or four chunks a thread and the edge; a weight's chunk is put together from two."""
    args = [meta(*shape, dtype=BF16) for shape in shapes]
    (kernel,) = fusedsl.fuse(function).compile(*args, arch=arch)
    assert (kernel.ptx.count("ld.global.v4.b32"), kernel.ptx.count("st.global.v4.b32")) == vectors
    assert len(re.findall(r"ld\.global\.(?!v4)", kernel.ptx)) == len(shapes)
    assert kernel.spill_bytes == kernel.local_bytes == 0
    assert kernel.registers <= 64


def test_what_is_not_in_step_is_not_peeled():
    def added(x, y):
        return F.softmax(x + y, -1)

    def width(*shapes, dtypes=(BF16, BF16), most=16):
        args = [meta(*s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
        return row_vector(iteration_space(whole(added, *args)), most)

    assert width((6, 257), (6, 257)) == (8, True)
    assert width((6, 257), (257,), dtypes=(BF16, F32)) == (8, True)
    assert width((6, 257), (6, 257), most=4) == (4, True)
    assert width((6, 256), (6, 256)) == (8, False)
    assert width((6, 260), (6, 260)) == (4, False)  # accesses of 8 bytes do
    assert width((6, 127), (6, 127)) == (1, False)  # too short
    assert width((2, 3, 257), (2, 1, 257)) == (1, False)  # the second tensor's rows begin elsewhere
    space = iteration_space(whole(added, meta(6, 257), meta(6, 257)))
    grid = find_grid(space, 4)
    assert grid is not None
    assert grid.across == frozenset()
