# SPDX-License-Identifier: Apache-2.0
"""Columns whose reductions meet them again: every form of the kernel, moments in one pass, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.schedulers import outer_persistent
from fusedsl.schedulers.column_params import PersistentColumnParams
from tests.schedulers.support import meta, refusal, text_of, whole
from tests.tolerance import assert_within

BF16 = torch.bfloat16


def standardise(x, weight, bias, eps=1e-5):
    wide = x.float() if x.dtype == torch.bfloat16 else x
    mean = wide.mean(0)
    variance = ((wide - mean) ** 2).mean(0)
    return ((wide - mean) * torch.rsqrt(variance + eps) * weight + bias).to(x.dtype), mean, variance


def column_softmax(x):
    return F.softmax(x, 0)


def standardise_gradient(x, grad, weight, mean, rstd):
    wide, outer = (x.float(), grad.float()) if x.dtype == torch.bfloat16 else (x, grad)
    normal = (wide - mean) * rstd
    bias_grad, weight_grad = outer.sum(0), (outer * normal).sum(0)
    count = x.shape[0]
    inner = (weight * rstd) * (outer - bias_grad / count - normal * weight_grad / count)
    return inner.to(x.dtype), weight_grad, bias_grad


def bias_gradient(x, grad):
    inner = grad * torch.sigmoid(x)
    return inner, inner.float().sum(0)


def scaled_by_place(x):
    return x / (x.argmax(0) + 1), x - x.amin(0)


def middle(x):
    return x - x.mean(1, keepdim=True)


def arguments(name: str, rows: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x = torch.randn(rows, columns).to(dtype)
    vectors = tuple(torch.randn(columns) for _ in range(3))
    return {
        "standardise": (x, *vectors[:2]),
        "column_softmax": (x,),
        "standardise_gradient": (x, torch.randn(rows, columns).to(dtype), vectors[0], vectors[1], vectors[2].abs()),
        "bias_gradient": (x, torch.randn(rows, columns).to(dtype)),
        "scaled_by_place": (x,),
        "middle": (torch.randn(3, rows, columns).to(dtype),),
    }[name]


FUNCTIONS = {
    f.__name__: f for f in (standardise, column_softmax, standardise_gradient, bias_gradient, scaled_by_place, middle)
}


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Callable[[PersistentColumnParams], None]:
    """From here on the scheduler chooses these parameters."""
    return lambda params: monkeypatch.setattr(outer_persistent, "compute_heuristics", lambda problem: params)


FORMS = {
    "resident": PersistentColumnParams(2, 4, 4, 2, resident=64, stages=3),
    "partly resident": PersistentColumnParams(2, 4, 4, 2, resident=24, stages=2),
    "nothing stays": PersistentColumnParams(2, 4, 4, 1, resident=12, stages=3),
    "one copy under way": PersistentColumnParams(2, 4, 4, 2, resident=16),
    "read again": PersistentColumnParams(2, 4, 4, 2),
    "one line": PersistentColumnParams(4, 1, 2, 2, resident=6, stages=2),
    "lines of a warp": PersistentColumnParams(4, 8, 4, 2, resident=32, stages=2),
    "exact": PersistentColumnParams(1, 64, 4, 1, resident=64, exact=True),
    "one element": PersistentColumnParams(16, 2),
    "blocks": PersistentColumnParams(2, 4, 4, 2, blocks=3, resident=16, stages=2),
    "blocks, partly resident": PersistentColumnParams(2, 2, 4, 1, blocks=4, resident=6, stages=2),
    "blocks, whole chunks": PersistentColumnParams(2, 1, 4, 5, blocks=3, resident=10, stages=1),
    "blocks, one line": PersistentColumnParams(4, 1, 2, 2, blocks=2),
    "blocks, many lines": PersistentColumnParams(1, 32, 4, 1, blocks=2, resident=32),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
@pytest.mark.parametrize("form", list(FORMS))
def test_values_of_every_form(form: str, name: str, device: str, forced) -> None:
    fn, fused = FUNCTIONS[name], fusedsl.fuse(FUNCTIONS[name])
    forced(FORMS[form])
    for dtype in (BF16, torch.float32) if "partly" in form else (BF16,):
        args = tuple(x.to(device) for x in arguments(name, 45, 20, dtype))
        wide = tuple(x.double() for x in args)
        assert [s.scheduler for s in fused.explain(*args).segments] == ["outer_persistent"]
        found = _several(fused(*args))
        eager, truth = _several(fn(*args)), _several(fn(*wide))
        for one, its_eager, its_truth in zip(found, eager, truth, strict=True):
            assert_within(one, its_eager, its_truth)
        again = _several(fused(*args))
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def _several(result: object) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


@pytest.mark.parametrize("form", ["partly resident", "blocks, partly resident"])
def test_moments_of_hard_columns(form: str, device: str, forced) -> None:
    """Far from zero, in steps, constant: squares about the mean lose nothing, whatever comes first."""
    forced(FORMS[form])
    x = torch.randn(45, 20) + 1e4
    x[:20, 1] = 0.0
    x[:, 2] = 3.0
    x[10:, 3] = 1e6
    x[0, 4] = x[30, 5] = x[44, 6] = 1e6
    x[0, 7] = -1e9
    x = x.to(device)
    args = (x, torch.ones(20, device=device), torch.zeros(20, device=device))
    found = fusedsl.fuse(standardise)(*args)
    truth, eager = standardise(*(a.double() for a in args)), standardise(*args)
    for one, its_eager, its_truth in zip(found, eager, truth, strict=True):
        assert_within(one, its_eager, its_truth)


@pytest.mark.parametrize("rows", [2, 3, 7, 20])
def test_moments_of_a_part_of_a_chunk(rows: int, device: str, forced) -> None:
    """Threads whose only tile has padding: it takes no part in the shift."""
    forced(PersistentColumnParams(2, 4, 4, 8, resident=32))
    args = tuple(a.to(device) for a in (torch.randn(rows + 1, 20) + 1e4, torch.ones(20), torch.zeros(20)))
    found, truth = fusedsl.fuse(standardise)(*args), standardise(*(a.double() for a in args))
    # Means of parts are rounded to 1e-3; a shift of a part of the mean would make squares wrong by several units.
    torch.testing.assert_close(found[2].double(), truth[2], rtol=5e-3, atol=5e-3)


def centred_integers(x):
    mean = x.sum(0) / x.shape[0]
    offset = x - mean
    return offset, (offset * offset).sum(0)


def test_integers_are_summed_as_integers(device: str, forced) -> None:
    """Their sum is exact and not taken together with the squares: int64 has no mean."""
    forced(FORMS["blocks, partly resident"])
    x = torch.randint(-1000, 1000, (45, 20)).to(device)
    fused = fusedsl.fuse(centred_integers)
    assert [s.scheduler for s in fused.explain(x).segments] == ["outer_persistent"]
    for one, expected in zip(fused(x), centred_integers(x), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-4)


def test_an_infinite_element_makes_the_mean_infinite(device: str, forced) -> None:
    forced(FORMS["blocks, partly resident"])
    x = torch.randn(45, 20)
    x[13, 4] = float("inf")
    x[14, 5] = float("nan")
    args = tuple(a.to(device) for a in (x, torch.ones(20), torch.zeros(20)))
    found, eager = fusedsl.fuse(standardise)(*args), standardise(*args)
    torch.testing.assert_close(found[1], eager[1], equal_nan=True)
    torch.testing.assert_close(found[2].isnan(), eager[2].isnan())


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 1000])
@pytest.mark.parametrize("columns", [2, 3, 24, 130])
def test_chosen_parameters(rows: int, columns: int, device: str) -> None:
    args = tuple(x.to(device) for x in arguments("standardise", rows, columns, BF16))
    fused = fusedsl.fuse(standardise)
    if rows > 1:
        assert [s.scheduler for s in fused.explain(*args).segments] == ["outer_persistent"]
    for one, its_eager, its_truth in zip(
        fused(*args), standardise(*args), standardise(*(x.double() for x in args)), strict=True
    ):
        assert_within(one, its_eager, its_truth)


@pytest.mark.gpu
def test_grid_barriers_in_captured_graphs_and_on_several_streams() -> None:
    fused = fusedsl.fuse(standardise)
    args = tuple(x.cuda() for x in arguments("standardise", 100_000, 64, BF16))
    assert fused.explain(*args).segments[0].params.blocks > 1
    expected = fused(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fused(*args)
    streams = [torch.cuda.Stream() for _ in range(3)]
    found = []
    for turn in range(6):
        graph.replay()
        with torch.cuda.stream(streams[turn % 3]):
            found.append(fused(*args))
    torch.cuda.synchronize()
    for results in (captured, *found):
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def chosen(rows: int, columns: int, fn: Callable[..., object] = standardise) -> PersistentColumnParams:
    x = meta(rows, columns, dtype=BF16)
    args = {standardise: (x, meta(columns), meta(columns)), column_softmax: (x,)}[fn]
    return outer_persistent.compute_heuristics(whole(fn, *args))


@pytest.mark.parametrize(
    ("rows", "columns"), [(802816, 64), (50176, 1024), (50176, 512), (12544, 2048), (401408, 64), (8192, 8192)]
)
def test_large_tensors_occupy_the_gpu(rows: int, columns: int) -> None:
    """The grid is resident at once and has at least 95 % of the multiprocessors; a tensor of 51 MB stays in part."""
    params = chosen(rows, columns)
    blocks = -(-columns // params.columns) * params.blocks
    assert 125 <= blocks <= 132
    assert params.threads * params.lines == 512
    assert params.threads * params.vector * 2 >= 128
    if rows * columns <= 26_000_000:
        assert params.resident * params.blocks * 5 >= rows * 2


def test_small_tensors_have_no_barrier_of_blocks() -> None:
    assert chosen(1000, 100).blocks == 1
    assert chosen(64, 4096).blocks == 1
    assert chosen(2, 1 << 20).blocks == 1


def test_what_needs_no_result_is_stored_in_the_first_pass() -> None:
    x = meta(100_000, 64, dtype=BF16)
    problem = whole(bias_gradient, x, x)
    params = outer_persistent.compute_heuristics(problem)
    assert params.resident == params.stages * params.chunk
    text = outer_persistent.schedule(problem, params).launches[0].source.text
    assert text.count("in range(whole):") == 1
    assert "back" not in text


def test_many_columns_have_no_barrier_of_blocks() -> None:
    params = chosen(4096, 131072)
    assert params.blocks == 1


def test_few_rows_have_few_lines() -> None:
    params = chosen(2, 1 << 20)
    assert params.lines == 1
    assert params.batch == 2


@pytest.mark.parametrize("rows", [12_544, 33_000, 60_000])
def test_another_number_of_rows_gives_the_same_text(rows: int) -> None:
    one_problem, one_params = _planned(50_000, 1024)
    other_problem, params = _planned(rows, 1024)
    for found in (one_params, params):
        assert found.blocks > 1
        assert found.resident
    one = outer_persistent.schedule(one_problem, one_params).launches[0].source
    assert one == outer_persistent.schedule(other_problem, params).launches[0].source


def _planned(rows: int, columns: int):
    problem = whole(standardise, meta(rows, columns, dtype=BF16), meta(columns), meta(columns))
    return problem, outer_persistent.compute_heuristics(problem)


def row_softmax(x):
    return F.softmax(x, -1)


def two_loops(x, y):
    return (x + y[:, None]) - (x + y[:, None]).mean((0, 1))


def test_refusals() -> None:
    inner = refusal("outer_persistent", whole(row_softmax, meta(20, 30)))
    assert inner is not None
    assert inner.code == "type_mismatch"
    apart = refusal("outer_persistent", whole(two_loops, meta(5, 6, 8), meta(5, 8)))
    assert apart is not None
    assert apart.code == "layout"
    plain = refusal("outer_persistent", whole(lambda_free_sum, meta(20, 30)))
    assert plain is not None
    assert plain.code == "no_persistent_buffer"


def lambda_free_sum(x):
    return x.sum(0)


@fusedsl.fuse
def batch_norm(x, mean, variance, weight, bias):
    return F.batch_norm(x, mean, variance, weight, bias, True, 0.1, 1e-5)


@pytest.mark.parametrize("form", ["partly resident", "blocks, partly resident", "blocks, one line"])
def test_batch_norm_and_its_gradient_are_a_kernel_each(form: str, device: str, forced) -> None:
    forced(FORMS[form])
    fused = fusedsl.fuse(batch_norm.__wrapped__)
    x = torch.randn(3, 20, 3, 5).to(memory_format=torch.channels_last)
    grad = torch.randn(3, 20, 3, 5).to(memory_format=torch.channels_last)
    results = []
    for function, dtype in ((fused, torch.float32), (fused.reference, torch.float32), (fused.reference, torch.float64)):
        torch.manual_seed(1)
        leaves = [t.to(device, dtype, copy=True).requires_grad_() for t in (x, torch.rand(20), torch.randn(20))]
        statistics = [torch.randn(20).to(device, dtype), torch.rand(20).to(device, dtype)]
        found = function(leaves[0], *statistics, *leaves[1:])
        if function is fused:
            explained = fused.explain(leaves[0], *statistics, *leaves[1:], backward=True)
            assert [s.scheduler for s in explained.segments] == ["outer_persistent"]
            assert [s.scheduler for s in explained.backward.segments] == ["outer_persistent"]
        found.backward(grad.to(device, dtype))
        results.append([found.detach(), *statistics, *(leaf.grad for leaf in leaves)])
    for one, its_eager, its_truth in zip(*results, strict=True):
        assert_within(one, its_eager, its_truth)


@pytest.mark.parametrize("form", ["partly resident", "blocks, partly resident"])
def test_text(form: str, golden: Callable[[str], None]) -> None:
    x = meta(45, 20, dtype=BF16)
    golden(text_of(outer_persistent.schedule(whole(standardise, x, meta(20), meta(20)), FORMS[form])))
