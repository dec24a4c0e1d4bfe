# SPDX-License-Identifier: Apache-2.0
"""Types, properties, roles and pattern checks of reductions."""

from __future__ import annotations

import attrs
import pytest
import torch

from fusedsl.analysis.domains import class_sizes, domain_map
from fusedsl.analysis.memory_order import logical_order, memory_order, symbol_sizes
from fusedsl.analysis.patterns import (
    check_broadcasts,
    check_inner_outer,
    check_persistent,
    check_same_loops,
)
from fusedsl.analysis.reductions import (
    ReductionType,
    find_reductions,
    reduction_properties,
    reduction_type,
    reference_reduction,
)
from fusedsl.graph.graph import Graph
from tests.analysis import graphs
from tests.analysis.dsl import Sketch, id_of, name_of

F = torch.float32
INNER, OUTER, INNER_OUTER = ReductionType.INNER, ReductionType.OUTER, ReductionType.INNER_OUTER


@attrs.frozen
class Layout:
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _sum(shape: tuple[int, ...], *dims: int) -> Graph:
    g = Sketch()
    g.r = g.s(g.input("x", F, *shape), *dims)
    return g.finish(g.r)


@pytest.mark.parametrize(
    ("shape", "dims", "pattern", "dimensionality", "inner", "is_3d", "reduced", "kept"),
    [
        ((4, 6), (1,), "[I, R]", 2, 6, False, 6, 4),
        ((2, 3, 4, 5), (2, 3), "[I, R]", 2, 20, False, 20, 6),
        ((4, 6), (0,), "[R, I]", 2, 6, False, 4, 6),
        ((2, 3, 4), (0, 2), "[R, I, R]", 3, 4, True, 8, 3),
        ((2, 3, 4), (1,), "[I, R, I]", 3, 4, False, 3, 8),
        ((6,), (0,), "[R]", 1, 6, False, 6, 1),
        ((2, 3), (0, 1), "[R]", 1, 6, False, 6, 1),
        ((2, 3, 1), (1,), "[I, R]", 2, 3, False, 3, 2),
        ((2, 3, 4, 5), (0, 2), "[R, I, R, I]", 4, 5, False, 8, 15),
    ],
)
def test_properties(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    pattern: str,
    dimensionality: int,
    inner: int,
    is_3d: bool,
    reduced: int,
    kept: int,
) -> None:
    graph = _sum(shape, *dims)
    sizes = class_sizes(domain_map(graph), symbol_sizes(graph, {}))
    found = reduction_properties(graph, logical_order(graph), sizes, find_reductions(graph).nodes[0])
    assert (found.pattern, found.dimensionality, found.inner_numel) == (pattern, dimensionality, inner)
    assert (found.is_3d, found.reduction_numel, found.iteration_numel) == (is_3d, reduced, kept)


def test_the_type_depends_on_memory_not_on_axis_numbers() -> None:
    graph = _sum((4, 6), 0)
    x = graph.inputs[0]
    assert reduction_type(graph, memory_order(graph, {x: Layout((4, 6), (6, 1))})) is OUTER
    assert reduction_type(graph, memory_order(graph, {x: Layout((4, 6), (1, 4))})) is INNER


def test_run_time_sizes_replace_those_seen_when_tracing() -> None:
    graph = _sum((4, 6), 1)
    sizes = class_sizes(domain_map(graph), symbol_sizes(graph, {graph.inputs[0]: Layout((40, 60), (60, 1))}))
    assert sorted(sizes) == [40, 60]


def test_each_tensor_orders_its_own_loops() -> None:
    graph = graphs.waiting_for_each_other()
    x, y = graph.inputs
    packed, turned = Layout((16, 1024), (1024, 1)), Layout((16, 1024), (1, 16))
    for layouts in ({}, {x: packed, y: packed}):
        assert reduction_type(graph, memory_order(graph, layouts)) is INNER
    assert reduction_type(graph, memory_order(graph, {x: turned, y: turned})) is OUTER


def test_types_of_several_reductions() -> None:
    both = graphs.inner_and_outer()
    order = logical_order(both)
    assert reduction_type(both, order) is INNER_OUTER
    assert reduction_type(graphs.softmax(), logical_order(graphs.softmax())) is INNER
    assert reduction_type(graphs.add_back((4, 6), 0), logical_order(graphs.add_back((4, 6), 0))) is OUTER
    g = Sketch()
    g.y = g.input("x", F) * 2
    assert reduction_type(g.finish(g.y), ()) is ReductionType.NONE


def test_the_reference_of_an_inner_outer_graph_is_its_first_inner_reduction() -> None:
    g = Sketch()
    x = g.input("x", F)
    g.outer = g.s(x, 0)
    g.inner = g.s(x, 1)
    g.y = x + g.b(g.inner, x)
    graph = g.finish(g.outer, g.y)
    assert name_of(graph, reference_reduction(graph, logical_order(graph))) == "inner"


def test_stages_follow_chains_of_reductions_and_ignore_sizes() -> None:
    graph = graphs.layer_norm_shared()
    found = find_reductions(graph)
    assert [len(s) for s in found.stages] == [1, 1]
    g = Sketch()
    x = g.input("x", F)
    y = x / g.b(g.s(x), x)
    from fusedsl.graph.types import ScalarType

    count = g.add("size", [y.id], ScalarType("int"), dim=1)
    g.r = g.add("mul", [g.s(x, op="amax").id, count.id], g.s(x).type)
    graph = g.finish(g.r)
    assert find_reductions(graph).stage[id_of(graph, "r")] == 1


# checks ------------------------------------------------------------


def _code(refusal: object) -> str | None:
    return getattr(refusal, "code", None)


@pytest.mark.parametrize(
    ("graph", "wanted", "code"),
    [
        (graphs.add_back((16, 64)), INNER, None),
        (graphs.add_back((4, 6, 8, 10), 0, 2, 3), INNER, None),
        (graphs.add_back((4, 6, 8, 10), 1, 2, 3), INNER, None),
        (graphs.add_back((16, 64), 0), INNER, "type_mismatch"),
        (graphs.add_back((16, 64), 0), OUTER, None),
        (graphs.inner_and_outer(), INNER, "type_mismatch"),
        (graphs.vouched_later(), INNER, None),
        (graphs.row_of_scalars_recomputed(), INNER, None),
        (graphs.row_of_scalars_shared(), INNER, None),
        (graphs.column_argument(), INNER, None),
        (graphs.only_a_row_of_scalars(), INNER, "no_persistent_buffer"),
        (graphs.two_views(), INNER, "no_persistent_buffer"),
        (graphs.two_outputs(), INNER, "no_persistent_buffer"),
        (graphs.softmax(), INNER, None),
        (graphs.rms_norm(), INNER, None),
        (graphs.broadcast_against_another(), INNER, "output_dim_not_covered"),
    ],
)
def test_persistent_checks(graph: Graph, wanted: ReductionType, code: str | None) -> None:
    assert _code(check_persistent(graph, wanted)) == code


def test_no_reduction_is_refused_first() -> None:
    g = Sketch()
    g.y = g.input("x", F) * 2
    assert _code(check_persistent(g.finish(g.y), INNER)) == "no_reduction_op"
    assert _code(check_inner_outer(g.finish(g.y))) == "no_reduction_op"


def test_reductions_over_different_loops_are_refused_with_both_extents() -> None:
    g = Sketch()
    x = g.input("x", F, 4, 6, 8)
    g.r1 = g.s(x, 2)
    g.r2 = g.s(x, 1, 2)
    g.y = x + g.b(g.r1, x) + g.b(g.r2, x, 1, 2)
    refusal = check_persistent(g.finish(g.y), INNER)
    assert _code(refusal) == "unmapped_multi_reduction"
    assert "(x.2 and x.1, x.2)" in str(refusal)


def test_reductions_of_different_ranks_are_refused() -> None:
    g = Sketch()
    x = g.input("x", F, 4, 6)
    g.r1 = g.s(x)
    g.y = x + g.b(g.r1, x)
    g.r2 = g.s(g.r1)
    refusal = check_persistent(g.finish(g.y, g.r2), INNER)
    assert _code(refusal) == "rank_mismatch"
    assert str(refusal) == "r1 reduces a value of 2 loops, r2 one of 1"


def test_an_output_with_a_loop_of_its_own_is_refused() -> None:
    g = Sketch()
    x, z = g.input("x", F, 4, 6), g.input("z", F, 4, 5)
    g.r = g.s(x)
    g.y = x + g.b(g.r, x)
    g.out2 = z + g.b(g.r, z)
    graph = g.finish(g.y, g.out2)
    refusal = check_persistent(graph, INNER)
    assert _code(refusal) == "output_dim_not_covered"
    assert str(refusal) == "out2 has the loop z.1, which the reduction r never sees"


def test_a_result_broadcast_along_a_loop_that_nothing_reduced_has_is_refused() -> None:
    refused = check_broadcasts(graphs.broadcast_against_another())
    assert _code(refused) == "bad_post_reduction_broadcast"
    assert check_broadcasts(graphs.vouched_later()) is None
    assert check_broadcasts(graphs.softmax()) is None


def test_permuted_views_of_the_same_loops_agree() -> None:
    g = Sketch()
    x = g.input("x", F, 4, 6)
    g.r1 = g.s(x, 1)
    turned = g.reindex(x, (1, 0), x.type.shape[::-1])
    g.r2 = g.s(turned, 0)
    graph = g.finish(g.r1, g.r2)
    assert check_same_loops(graph, find_reductions(graph).nodes) is None


@pytest.mark.parametrize(
    ("graph", "code"),
    [
        (graphs.inner_and_outer(), None),
        (graphs.mixed((8, 16, 32), (2,), (0, 1)), None),
        (graphs.mixed((8, 16, 32), (2,), (0,)), "axis_mismatch"),
        (graphs.mixed((8, 16, 32), (0, 2), (1,)), "layout"),
        (graphs.rms_norm_backward(), None),
        (graphs.softmax(), "type_mismatch"),
    ],
)
def test_inner_outer_checks(graph: Graph, code: str | None) -> None:
    assert _code(check_inner_outer(graph)) == code


def test_inner_and_outer_reductions_of_unrelated_arguments_are_refused() -> None:
    g = Sketch()
    x, z = g.input("x", F, 4, 6), g.input("z", F, 4, 6)
    g.y = x + g.b(g.s(x), x)
    g.w = g.s(z, 0)
    assert _code(check_inner_outer(g.finish(g.y, g.w))) == "no_shared_input"


def test_an_outer_result_used_with_a_row_result_is_refused() -> None:
    g = Sketch()
    x = g.input("x", F, 4, 6)
    g.y = x + g.b(g.s(x), x)
    g.w = g.s(x, 0)
    g.z = g.y * g.b(g.w, x, 0)
    graph = g.finish(g.z)
    refusal = check_inner_outer(graph)
    assert _code(refusal) == "shared_consumer"
    assert "the result of the outer reduction w" in str(refusal)


def test_outer_results_used_together_are_refused() -> None:
    g = Sketch()
    x = g.input("x", F, 4, 6)
    g.y = x + g.b(g.s(x), x)
    g.w1 = g.s(x * 2, 0)
    g.w2 = g.s(x * 3, 0)
    g.both = g.w1 + g.w2
    assert _code(check_inner_outer(g.finish(g.y, g.both))) == "shared_consumer"
    assert check_inner_outer(g.finish(g.y, g.w1, g.w2)) is None
