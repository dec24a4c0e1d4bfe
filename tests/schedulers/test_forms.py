# SPDX-License-Identifier: Apache-2.0
"""The text of every form a kernel can take, for given parameters, and that parameters alone decide it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch
import torch.nn.functional as F

from fusedsl.schedulers import inner_persistent, pointwise, reduction
from fusedsl.schedulers.base import Problem
from fusedsl.schedulers.columns import ColumnParams
from fusedsl.schedulers.pointwise import PointwiseParams
from fusedsl.schedulers.row_params import RowParams
from tests.schedulers.support import meta, text_of, whole

BF16 = torch.bfloat16


def scale(x, factor):
    return x * factor


def gelu_bias(x, bias):
    return F.gelu(x + bias)


def softmax(x):
    return F.softmax(x, -1)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def centred_planes(x, weight):
    return (x - x.mean((0, 2), keepdim=True)) * weight


def row_sum(x):
    return x.sum(-1)


def row_argmax(x):
    return x.argmax(-1)


def column_sum(x):
    return x.sum(0)


def flat() -> Problem:
    return whole(scale, meta(100, 8, dtype=BF16), 2.0)


def nested() -> Problem:
    return whole(gelu_bias, meta(100, 64, dtype=BF16), meta(64, dtype=BF16))


def rows(length: int = 256) -> Problem:
    return whole(softmax, meta(100, length, dtype=BF16))


def odd_rows() -> Problem:
    return whole(layer_norm, meta(100, 257, dtype=BF16), meta(257, dtype=BF16), meta(257))


def planes() -> Problem:
    return whole(centred_planes, meta(100, 6, 52), meta(52))


def normed_rows() -> Problem:
    return whole(layer_norm, meta(100, 250), meta(250), meta(250))


def summed_rows() -> Problem:
    return whole(row_sum, meta(100, 4096, dtype=BF16))


def places() -> Problem:
    return whole(row_argmax, meta(100, 300))


def summed_columns() -> Problem:
    return whole(column_sum, meta(4096, 100, dtype=BF16))


FORMS = {
    "pointwise, one loop": (pointwise, flat, PointwiseParams(128, vector=8, batch=2)),
    "pointwise, several loops": (pointwise, nested, PointwiseParams(8, lines=16, vector=8, batch=2, exact=True)),
    "rows, registers": (inner_persistent, rows, RowParams(32, 2, 8, 1, exact=True)),
    "rows, registers, masked, over warps": (inner_persistent, normed_rows, RowParams(64, 1, 2, 2)),
    "rows, registers, cluster": (
        inner_persistent,
        lambda: rows(2048),
        RowParams(64, 1, 8, 2, exact=True, cluster=2),
    ),
    "rows, registers, peeled": (inner_persistent, odd_rows, RowParams(64, 1, 8, 1, peeled=True)),
    "rows, shared memory, cluster, peeled": (
        inner_persistent,
        lambda: rows(2049),
        RowParams(64, 1, 8, 2, "shared", cluster=2, peeled=True),
    ),
    "rows of two loops": (inner_persistent, planes, RowParams(64, 1, 4, 2, lines=4)),
    "rows, shared memory": (inner_persistent, rows, RowParams(64, 1, 8, 1, "shared")),
    "rows, shared memory, cluster": (
        inner_persistent,
        lambda: rows(2048),
        RowParams(64, 1, 8, 2, "shared", True, cluster=2),
    ),
    "rows, over a grid": (inner_persistent, rows, RowParams(64, 1, 1, 1, "stream", grid=3)),
    "rows, streamed": (inner_persistent, rows, RowParams(64, 1, 8, 2, "stream")),
    "row sums": (reduction, summed_rows, RowParams(128, 1, 8, 1, "stream")),
    "row sums, split": (reduction, summed_rows, RowParams(128, 1, 8, 1, "stream", split=4)),
    "row argmax, split": (reduction, places, RowParams(32, 1, 4, 1, "stream", split=2)),
    "column sums": (reduction, summed_columns, ColumnParams(16, 16, 2, 4)),
    "column sums, split": (reduction, summed_columns, ColumnParams(16, 16, 2, 4, split=8)),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_text(form: str, golden: Callable[[str], None]) -> None:
    scheduler, problem, params = FORMS[form]
    golden(text_of(scheduler.schedule(problem(), params)))


@pytest.mark.parametrize("form", list(FORMS))
def test_the_same_parameters_give_the_same_text(form: str) -> None:
    scheduler, problem, params = FORMS[form]
    assert scheduler.schedule(problem(), params) == scheduler.schedule(problem(), params)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("pointwise, one loop", {"threads": 64}),
        ("pointwise, one loop", {"vector": 4}),
        ("pointwise, one loop", {"batch": 1}),
        ("pointwise, several loops", {"lines": 8}),
        ("pointwise, several loops", {"exact": False}),
        ("rows, registers", {"rows": 4}),
        ("rows, registers", {"exact": False}),
        ("rows, registers", {"storage": "stream"}),
        ("rows, registers, masked, over warps", {"prefetch": False}),
        ("rows, shared memory, cluster", {"cluster": 4}),
        ("rows, registers, peeled", {"vector": 4}),
        ("row sums", {"split": 2}),
        ("row sums", {"batch": 2}),
        ("column sums", {"lines": 8}),
        ("column sums", {"split": 2}),
    ],
)
def test_other_parameters_give_another_text(form: str, change: dict[str, object]) -> None:
    scheduler, problem, params = FORMS[form]
    changed = attrs.evolve(params, **change)
    texts = [launch.source.text.split("\n", 2)[2] for launch in scheduler.schedule(problem(), params).launches]
    others = [launch.source.text.split("\n", 2)[2] for launch in scheduler.schedule(problem(), changed).launches]
    assert texts != others  # without the header, which prints the parameters


@pytest.mark.parametrize("form", list(FORMS))
def test_no_extent_is_in_the_text(form: str) -> None:
    """The same parameters serve another number of rows with the same text: sizes are arguments."""
    scheduler, problem, params = FORMS[form]
    first = problem()
    second = with_rows(first, 17)
    one, other = scheduler.schedule(first, params), scheduler.schedule(second, params)
    assert [launch.source for launch in one.launches] == [launch.source for launch in other.launches]
    assert one != other


def with_rows(problem: Problem, rows: int) -> Problem:
    """The problem with another extent of the first dim of its first argument."""
    graph = problem.graph
    extent = graph[graph.inputs[0]].tensor.shape[0]
    layouts = {
        i: attrs.evolve(layout, shape=(rows, *layout.shape[1:])) if graph[i].tensor.shape[:1] == (extent,) else layout
        for i, layout in problem.layouts.items()
    }
    return attrs.evolve(problem, layouts=layouts)
