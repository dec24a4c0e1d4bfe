# SPDX-License-Identifier: Apache-2.0
"""Persistent buffers, their resolution points, what they are projected to, and the bytes of a row, graph by graph."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from fusedsl.analysis.conflicts import find_conflicts
from fusedsl.analysis.domains import class_sizes, domain_map
from fusedsl.analysis.edges import find_reads, is_structure
from fusedsl.analysis.facts import analyse
from fusedsl.analysis.liveness import live_bytes, plain_values, projected_values
from fusedsl.analysis.memory_order import symbol_sizes
from fusedsl.analysis.persistent import find_persistence, find_persistent_buffers
from fusedsl.analysis.projection import find_derived, find_recomputes
from fusedsl.analysis.reductions import find_reductions
from fusedsl.analysis.resolution import resolve_both_ways, resolve_forward
from fusedsl.graph.graph import Graph
from fusedsl.numba_cuda.device import H200
from tests.analysis import graphs
from tests.analysis.dsl import ROW, Sketch, id_of, name_of

Buffers = dict[str, set[str]]

EXPECTED: dict[Callable[[], Graph], Buffers] = {
    graphs.copied_row: {"t1": {"t5"}},
    graphs.cast_row: {"t1": {"t5"}},
    graphs.two_in_a_chain: {"t1": {"t9"}, "t7": {"t13"}},
    graphs.copy_of_a_buffer: {"t1": {"t6"}, "t2": {"t8"}},
    graphs.buffer_and_input: {"t4": {"t9"}, "t1": {"t8"}},
    graphs.issue_1123: {"t3": {"t7"}},
    graphs.issue_1123_comment: {"t2": {"t6"}},
    graphs.several_scopes: {"t3": {"t6", "t10"}, "t7": {"t10"}, "t12": {"t15", "t20"}, "t17": {"t20"}},
    graphs.chain_of_producers: {"t7": {"t10", "t14", "t18"}, "t11": {"t14", "t18"}, "t15": {"t18"}},
    graphs.softmax: {"xf": {"s1"}, "e": {"o"}},
    graphs.rms_norm: {"xf": {"n"}},
    graphs.layer_norm_shared: {"xf": {"cc"}, "cc": {"o"}},
    graphs.layer_norm_twice: {"xf": {"c1", "c2"}},
    graphs.cast_of_a_mask: {"t3": {"t6"}},
    graphs.three_normalizations: {"t2": {"div"}, "t6": {"div"}, "t10": {"t13"}},
    graphs.row_of_scalars_shared: {"t5": {"out"}},
    graphs.column_argument: {"t5": {"out"}},
    graphs.only_a_row_of_scalars: {},
    graphs.two_views: {},
    graphs.two_outputs: {},
    graphs.broadcast_against_another: {},
    graphs.vouched_later: {"t2": {"t7"}},
    graphs.rms_norm_backward: {"g": {"z"}, "xh": {"t"}},
    graphs.inner_and_outer: {"x": {"y"}},
}


@pytest.mark.parametrize("build", EXPECTED, ids=lambda f: f.__name__)
def test_buffers_and_resolution_points(build: Callable[[], Graph]) -> None:
    graph = build()
    found = {
        name_of(graph, b.node): {_plain(name_of(graph, p)) for p in b.resolution_points}
        for b in find_persistent_buffers(graph)
    }
    assert found == EXPECTED[build]


def _plain(name: str) -> str:
    """``_div`` and ``_div_1`` are both ``div``."""
    return name.lstrip("_").split("_")[0] if name.startswith("_") else name


#: projectable buffers, arguments kept in their place, plain and projected bits of an element of the row.
PROJECTED: dict[Callable[[], Graph], tuple[set[str], set[str], int, int]] = {
    graphs.copied_row: ({"t1"}, {"t0"}, 32, 32),
    graphs.cast_row: ({"t1"}, {"t0"}, 32, 16),
    graphs.two_in_a_chain: ({"t1", "t7"}, {"t0", "t5"}, 64, 32),
    graphs.copy_of_a_buffer: ({"t1", "t2"}, {"t0"}, 32, 16),
    graphs.buffer_and_input: ({"t4"}, {"t0", "t1"}, 48, 32),
    graphs.several_scopes: ({"t3", "t7", "t12", "t17"}, {"t0", "t1", "t2"}, 64, 96),
    graphs.chain_of_producers: ({"t7", "t11", "t15"}, {"t0", "t1", "t2"}, 32, 48),
    graphs.softmax: ({"xf", "e"}, {"x"}, 32, 16),
    graphs.rms_norm: ({"xf"}, {"x"}, 32, 16),
    graphs.layer_norm_shared: ({"xf", "cc"}, {"x"}, 32, 16),
    graphs.layer_norm_twice: ({"xf"}, {"x"}, 32, 16),
    graphs.cast_of_a_mask: ({"t3"}, {"t0"}, 8, 32),
    graphs.three_normalizations: ({"t2", "t6", "t10"}, {"t0"}, 32, 16),
    graphs.column_argument: ({"t5"}, {"x"}, 32, 16),
    graphs.inner_and_outer: (set(), set(), 32, 0),
    graphs.rms_norm_backward: ({"g", "xh"}, {"dy", "x", "w"}, 64, 48),
}


@pytest.mark.parametrize("build", PROJECTED, ids=lambda f: f.__name__)
def test_projection_to_arguments(build: Callable[[], Graph]) -> None:
    graph = build()
    recomputes = [r for r in find_recomputes(graph) if r.projectable]
    sizes = class_sizes(domain_map(graph), symbol_sizes(graph, {}))
    bits = [live_bytes(graph, values(graph), sizes) * 8 / ROW for values in (plain_values, projected_values)]
    assert (
        {name_of(graph, r.buffer) for r in recomputes},
        {name_of(graph, i) for r in recomputes for i in r.inputs},
        *bits,
    ) == PROJECTED[build]


def test_a_buffer_computed_from_buffers_is_not_kept() -> None:
    graph = graphs.chain_of_producers()
    t7, t11, t15 = (id_of(graph, n) for n in ("t7", "t11", "t15"))
    assert find_derived(graph) == {t11: (t7,), t15: (t7,)}
    (kept,) = plain_values(graph)
    assert (kept.node, {name_of(graph, p) for p in kept.resolution_points}) == (t7, {"t10", "t14", "t18"})


def test_an_up_cast_of_a_computed_value_is_kept_narrow_and_derived() -> None:
    graph = graphs.cast_twice()
    assert [name_of(graph, b.node) for b in find_persistent_buffers(graph)] == ["t3", "t4"]
    (kept,) = plain_values(graph)
    assert (name_of(graph, kept.node), kept.itemsize) == ("t3", 2)
    sizes = class_sizes(domain_map(graph), symbol_sizes(graph, {}))
    assert live_bytes(graph, (kept,), sizes) == 2 * ROW


def test_recompute_restarts_at_the_full_rank_broadcast() -> None:
    graph = graphs.broadcast_in_two_steps()
    recompute = next(r for r in find_recomputes(graph) if name_of(graph, r.buffer) == "t6")
    assert [name_of(graph, i) for i in recompute.restarts] == ["t4"]


def test_later_normalizations_restart_at_earlier_row_scalars() -> None:
    graph = graphs.three_normalizations()
    restarts = {name_of(graph, r.buffer): [name_of(graph, i) for i in r.restarts] for r in find_recomputes(graph)}
    assert restarts == {"t2": [], "t6": ["b1"], "t10": ["b1", "b2"]}


def test_a_row_of_scalars_is_not_cacheable_when_rows_are_reduced_too() -> None:
    graph = graphs.row_of_scalars_recomputed()
    found = find_persistence(graph)
    assert [name_of(graph, b.node) for b in found.buffers] == ["x"]
    assert [name_of(graph, i) for i in found.not_cacheable] == ["a"]


def test_a_buffer_of_an_argument_that_is_not_cacheable_is_not_projectable() -> None:
    graph = graphs.row_of_scalars_shared()
    (recompute,) = find_recomputes(graph)
    assert recompute.refusal is not None
    assert (recompute.refusal.code, name_of(graph, recompute.refusal.node or 0)) == ("input_not_cacheable", "a")


def test_a_lookup_reads_memory_and_does_not_make_its_table_persistent() -> None:
    graph = graphs.looked_up()
    assert "taken" not in {name_of(graph, b.node) for b in find_persistent_buffers(graph)}
    (buffer,) = find_persistent_buffers(graph)
    assert name_of(graph, buffer.node) == "x"


def test_random_numbers_are_recorded() -> None:
    graph = graphs.dropout_before_layer_norm()
    (recompute,) = find_recomputes(graph)
    assert (name_of(graph, recompute.buffer), recompute.projectable, recompute.random) == ("t2", True, True)


def test_exponentials_are_recorded() -> None:
    graph = graphs.softmax()
    dear = {name_of(graph, r.buffer): r.dear for r in find_recomputes(graph)}
    assert dear == {"xf": (), "e": ("exp",)}


@pytest.mark.parametrize(
    ("build", "buffer", "point"), [(graphs.issue_1123, "t3", "t7"), (graphs.issue_1123_comment, "t2", "t6")]
)
def test_only_the_walk_in_both_directions_resolves_issue_1123(
    build: Callable[[], Graph], buffer: str, point: str
) -> None:
    graph = build()
    node_id = id_of(graph, buffer)
    assert resolve_forward(graph, node_id) == ()
    assert [name_of(graph, p) for p in resolve_both_ways(graph, node_id)] == [point]


def test_issue_1123_keeps_the_narrower_of_two_candidates() -> None:
    graph = graphs.issue_1123()
    bytes_ = [4] * len(graph.nodes)
    t2, t3 = id_of(graph, "t2"), id_of(graph, "t3")
    assert set(find_conflicts(graph, bytes_)) == {t3}
    bytes_[t2] = 2
    assert set(find_conflicts(graph, bytes_)) == {t2}


def test_rows_that_wait_for_each_other_are_not_both_streamed() -> None:
    graph = graphs.waiting_for_each_other()
    assert find_conflicts(graph, [4] * len(graph.nodes)).keys() == {id_of(graph, "x")}


# the same by another definition ------------------------------------------------------------


def _live_across_passes(graph: Graph) -> set[str]:
    """Values of a row read in two passes when every op runs as late as its readers allow."""
    found = find_reductions(graph)
    varies = domain_map(graph).varies
    readers: dict[int, set[int]] = {n.id: set() for n in graph}
    for node, reads in zip(graph, find_reads(graph), strict=True):
        if node.is_tensor and not is_structure(node):
            for read in reads:
                readers[read.source].add(node.id)
    runs = list(found.stage)
    for node in reversed(graph.nodes):
        if node.id not in found.nodes and readers[node.id]:
            runs[node.id] = min(runs[r] for r in readers[node.id])
    return {
        n.name
        for n in graph
        if n.id not in found.nodes and varies[n.id] & found.classes and len({runs[r] for r in readers[n.id]}) > 1
    }


@pytest.mark.parametrize(
    "build",
    [f for f in EXPECTED if not f.__name__.startswith(("issue_1123", "only_a_row", "rms_norm_backward"))],
    ids=lambda f: f.__name__,
)
def test_buffers_are_the_values_live_across_passes(build: Callable[[], Graph]) -> None:
    """Where no conflict can be blamed on two values, both definitions agree."""
    graph = build()
    assert _live_across_passes(graph) == {name_of(graph, b.node) for b in find_persistent_buffers(graph)}


def _random_graph(seed: int) -> Graph:
    choose = random.Random(seed)
    g = Sketch()
    values = list(g.inputs("x y", choose.choice([torch.float32, torch.bfloat16])))
    for _ in range(choose.randint(3, 14)):
        a, b = choose.choice(values), choose.choice(values)
        match choose.randrange(5):
            case 0 | 1:
                values.append(a + b)
            case 2:
                values.append(g.exp(a))
            case 3:
                values.append(g.b(g.s(a), values[0]))
            case 4:
                values.append(a - g.b(g.s(b, op="amax"), values[0]))
    return g.finish(*values[-choose.randint(1, 3) :])


@pytest.mark.parametrize("seed", range(60))
def test_facts_of_random_graphs_are_consistent(seed: int) -> None:
    graph = _random_graph(seed)
    facts = analyse(graph, {}, H200)
    varies = domain_map(graph).varies
    assert str(facts)
    for buffer, recompute in zip(facts.buffers, facts.recomputes, strict=True):
        assert all(p > buffer.node for p in buffer.resolution_points)
        assert buffer.classes <= varies[buffer.node]
        # Whatever the chain reads is an op of it, an argument of it, a free row scalar, or no tensor.
        known = {*recompute.ops, *recompute.inputs, *recompute.restarts}
        assert not recompute.projectable or all(
            i in known for op in recompute.ops for i in graph[op].inputs if graph[i].is_tensor
        )
        assert all(not varies[i] & buffer.classes for i in recompute.restarts)
    assert (facts.plain_bytes > 0) == bool(facts.buffers)
    assert facts.kept_bytes <= facts.plain_bytes
