# SPDX-License-Identifier: Apache-2.0
"""How graphs are split: the expected segments of known patterns, what crosses a boundary, which merge comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.analysis.merge import find_segments
from fusedsl.analysis.segment import Subgraph, extract
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph
from fusedsl.numba_cuda.device import H200
from fusedsl.pipeline import Program, plan_graph
from fusedsl.programs import layout_of
from tests.analysis import dsl

BF16 = torch.bfloat16


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _program(fn: Callable[..., Any], *args: torch.Tensor) -> Program:
    graph = fusedsl.fuse(fn).graph(*args)
    return plan_graph(graph, {i: layout_of(x) for i, x in zip(graph.inputs, args, strict=True)}, H200, "default")


def _names(program: Program) -> list[str]:
    return [segment.scheduler for segment in program.segments]


def softmax(x):
    return F.softmax(x, -1)


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def rms_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight)


def softmax_backward(y, g):
    return y * (g - (y * g).sum(-1, keepdim=True))


def rms_norm_backward_of_x(x, weight, g):
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    wg = weight * g
    return scale * (wg - x * scale * scale * (wg * x).mean(-1, keepdim=True))


def lookup_and_mean(x, index):
    return F.softmax(x, -1).gather(-1, index[:, None]).squeeze(-1).mean(0)


def rows_then_columns(x):
    return (x - x.sum(-1, keepdim=True)).sum(0)


def matmul_and_epilogue(x, weight, bias):
    return F.gelu(x @ weight + bias)


def norm_and_matmul(x, weight):
    return F.rms_norm(x, (x.shape[-1],)) @ weight


def unrelated(x, y):
    return x * 2 + 1, y.exp()


def no_kernel_text(x):
    return torch.special.i0(x * 2) + 1


def whole_row_pair(x):
    return x.sum(-1), x * 2


def centred_channels(x):
    return x - x.mean((0, 2), keepdim=True)


def branches(x):
    return x.exp(), x.sin(), x.sum(0), x.amax(0)


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (softmax, [_meta(64, 1024)], ["inner_persistent"]),
        (layer_norm, [_meta(64, 1024), _meta(1024), _meta(1024)], ["inner_persistent"]),
        (rms_norm, [_meta(64, 1024), _meta(1024)], ["inner_persistent"]),
        (softmax_backward, [_meta(64, 1024), _meta(64, 1024)], ["inner_persistent"]),
        (rms_norm_backward_of_x, [_meta(64, 1024), _meta(1024), _meta(64, 1024)], ["inner_persistent"]),
        (rows_then_columns, [_meta(64, 1024)], ["inner_outer_persistent"]),
        (matmul_and_epilogue, [_meta(64, 32), _meta(32, 16), _meta(16)], ["eager", "pointwise"]),
        (norm_and_matmul, [_meta(64, 32), _meta(32, 16)], ["inner_persistent", "eager"]),
        (unrelated, [_meta(64, 32), _meta(64, 32)], ["pointwise", "pointwise"]),
        (no_kernel_text, [_meta(64, 32)], ["pointwise", "eager", "pointwise"]),
        (whole_row_pair, [_meta(64, 32)], ["inner_persistent"]),
        (branches, [_meta(64, 32)], ["outer_persistent"]),
    ],
)
def test_expected_segments(fn, args, expected):
    assert _names(_program(fn, *args)) == expected


@pytest.mark.parametrize("arch", ["H200", "A100"])
@pytest.mark.parametrize("rows", [1, 4096])
def test_rows_too_long_for_any_storage(rows, arch):
    """Many rows are streamed in one kernel; few are shared by the blocks of a cooperative grid."""
    x = _meta(rows, 4 << 20, dtype=torch.float32)
    (segment,) = fusedsl.fuse(softmax).explain(x, arch=arch).segments
    assert segment.scheduler == "inner_persistent"
    assert (segment.params.storage, segment.params.grid > 1) == ("stream", rows == 1)


def test_a_lookup_in_a_row_is_the_end_of_its_segment():
    """The mean over rows reduces another loop, so only one number a row crosses."""
    program = _program(lookup_and_mean, _meta(64, 1024), _meta(64, dtype=torch.int64))
    assert _names(program) == ["inner_persistent", "reduction"]
    (crossing,) = program.segments[0].graph.outputs
    assert program.segments[0].graph[crossing].tensor.rank == 1


def upcast_twice(x):
    y = x.float()
    return y.sum(0), torch.special.i0(x), y * 2 + 1


def test_an_upcast_is_copied_so_that_the_narrow_value_crosses():
    program = _program(upcast_twice, _meta(64, 32, dtype=BF16))
    assert sorted(_names(program)) == ["eager", "outer_persistent"]
    for segment in program.segments:
        assert [segment.graph[i].tensor.dtype for i in segment.graph.inputs] == [BF16]


def narrow_between(x, weight):
    return (x.float() * 2).to(BF16) @ weight


def test_a_downcast_belongs_to_the_segment_before_the_boundary():
    program = _program(narrow_between, _meta(64, 32, dtype=BF16), _meta(32, 16, dtype=BF16))
    assert _names(program) == ["pointwise", "eager"]
    (output,) = program.segments[0].graph.outputs
    assert program.segments[0].graph[output].tensor.dtype is BF16


def broadcast_between(x, y):
    return torch.special.i0(x.sum(-1, keepdim=True)) + y


def test_what_crosses_is_not_expanded():
    program = _program(broadcast_between, _meta(64, 32), _meta(64, 32))
    assert _names(program) == ["reduction", "eager", "pointwise"]
    for origin in (segment.origin[segment.graph.outputs[0]] for segment in program.segments[:2]):
        assert program.allocations[origin].numel == 64


def test_segments_of_one_shape_hold_for_another_only_if_the_schedulers_agree():
    """Few long rows of two pieces are split, many are not, in whatever order the shapes are seen."""
    graph = fusedsl.fuse(centred_channels).graph(_meta(2, 64, 1024))

    def names(rows: int) -> list[str]:
        return _names(plan_graph(graph, {graph.inputs[0]: layout_of(_meta(2, rows, 4 << 20))}, H200, "default"))

    assert names(2) == names(2) != ["inner_persistent"]
    assert names(4096) == ["inner_persistent"]
    assert names(2) != ["inner_persistent"]


# the search itself -------------------------------------------------------------------------------------------------


def _diamond() -> Graph:
    """``a`` is read by ``b`` and ``c``, which meet in ``d``."""
    s = dsl.Sketch()
    x = s.input("x", torch.float32)
    s.a = s.exp(x)
    s.b = s.rsqrt(s.a)
    s.c = s.exp(s.a)
    s.d = s.b + s.c
    return s.finish(s.d)


def _chain() -> Graph:
    s = dsl.Sketch()
    value = s.input("x", torch.float32)
    for place in range(4):
        value = s.copy(value)
        setattr(s, f"v{place}", value)
    return s.finish(value)


def _split(
    graph: Graph, accept: Callable[[Subgraph], bool], bytes_of: Callable[[int], int] = lambda node_id: 1
) -> list[set[str]]:
    found = find_segments(graph, accept, bytes_of)
    assert found.holds(graph, accept)
    return [{graph[i].name for i in members} for members in found.segments]


def _at_most(count: int) -> Callable[[Subgraph], bool]:
    return lambda part: sum(node.op != "input" for node in part.graph) <= count


def test_the_whole_graph_is_tried_first():
    assert _split(_diamond(), lambda part: True) == [{"a", "b", "c", "d"}]


def test_nothing_stands_between_the_ops_of_a_segment():
    """Whatever pairs are taken, the order of segments is one in which all can run."""
    for count in (1, 2, 3):
        graph = _diamond()
        segments = _split(graph, _at_most(count))
        assert sorted(name for names in segments for name in names) == ["a", "b", "c", "d"]
        assert all(len(names) <= count for names in segments)
        done = {"x"}
        for names in segments:
            members = [node for node in graph if node.name in names]
            assert all(graph[i].name in done | names for node in members for i in node.inputs)
            done |= names


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        ("v0", [{"v0", "v1"}, {"v2", "v3"}]),
        ("v1", [{"v0"}, {"v1", "v2"}, {"v3"}]),
        ("v2", [{"v0", "v1"}, {"v2", "v3"}]),
    ],
)
def test_the_pair_that_saves_most_merges_first(largest, expected):
    """In a chain of four where at most two may meet, the largest value never crosses a boundary."""
    graph = _chain()
    assert _split(graph, _at_most(2), lambda i: 100 if graph[i].name == largest else 1) == expected


def test_siblings_that_read_one_value_merge():
    s = dsl.Sketch()
    x, y = s.input("x", torch.float32), s.input("y", torch.float32, 3, 5)
    s.a, s.b, s.c = s.exp(x), s.rsqrt(x), s.exp(y)
    graph = s.finish(s.a, s.b, s.c)
    assert sorted(map(sorted, _split(graph, _at_most(2)))) == [["a", "b"], ["c"]]


def test_what_nothing_runs_stays_alone():
    graph = _diamond()
    assert {"b"} in _split(graph, lambda part: all(node.op != "rsqrt" for node in part.graph))


def test_segments_together_compute_the_graph():
    """Every segment evaluated on what the ones before gave is the function."""
    args = [torch.randn(6, 5, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64), torch.randn(4)]
    program = _program(matmul_and_epilogue, *args)
    values = dict(zip(program.graph.inputs, args, strict=True))
    for segment in program.segments:
        assert not segment.graph.scalars
        results = evaluate(segment.graph, [values[segment.origin[i]] for i in segment.graph.inputs])
        values.update({segment.origin[o]: r for o, r in zip(segment.graph.outputs, results, strict=True)})
    torch.testing.assert_close(values[program.graph.outputs[0]], matmul_and_epilogue(*args))


def test_extract_gives_what_others_read():
    graph = _diamond()
    members = tuple(dsl.id_of(graph, name) for name in "ab")
    part = extract(graph, members)
    assert [part.graph[o].name for o in part.graph.outputs] == ["a", "b"]
    assert [part.graph[i].name for i in part.graph.inputs] == ["x"]
