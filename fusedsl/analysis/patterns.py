# SPDX-License-Identifier: Apache-2.0
"""Which reductions can share one kernel: checks of the structure of a graph, each giving a refusal or None.

``check_persistent`` and ``check_inner_outer`` run them in the order in which a person wants to hear of the problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.edges import data_inputs, downstream, members, upstream
from fusedsl.analysis.memory_order import logical_order
from fusedsl.analysis.persistent import find_persistence
from fusedsl.analysis.reductions import (
    ReductionType,
    find_reductions,
    reduces_innermost,
    reduction_type,
    reference_reduction,
)
from fusedsl.analysis.refusal import Refusal
from fusedsl.graph.graph import Graph


def check_persistent(graph: Graph, wanted: ReductionType, order: Sequence[int] | None = None) -> Refusal | None:
    """The checks of inner persistent and outer persistent kernels.

    Args:
        graph: a segment.
        wanted: ``INNER`` or ``OUTER``.
        order: its loops, outermost in memory first; None: the logical order.
    """
    order = logical_order(graph) if order is None else order
    return (
        check_reductions(graph)
        or check_coverage(graph, order)
        or check_type(graph, wanted, order)
        or check_ranks(graph)
        or check_same_loops(graph, find_reductions(graph).nodes)
        or check_buffers(graph)
        or check_broadcasts(graph)
    )


def check_inner_outer(graph: Graph, order: Sequence[int] | None = None) -> Refusal | None:
    """The checks of inner-outer persistent kernels."""
    order = logical_order(graph) if order is None else order
    refusal = check_reductions(graph) or check_type(graph, ReductionType.INNER_OUTER, order)
    if refusal is not None:
        return refusal
    inner, outer = split_by_type(graph, order)
    return (
        check_nesting(graph, order)
        or check_shared_input(graph, inner, outer)
        or check_separate_results(graph, inner, outer)
        or check_ranks(graph)
        or check_complementary(graph, inner, outer)
        or check_same_loops(graph, inner)
        or check_same_loops(graph, outer)
        or check_buffers(graph)
        or check_broadcasts(graph)
    )


def split_by_type(graph: Graph, order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The reductions that close the innermost loop in memory, and the others."""
    nodes = find_reductions(graph).nodes
    inner = tuple(r for r in nodes if reduces_innermost(graph, r, order))
    return inner, tuple(r for r in nodes if r not in inner)


def _reduced(graph: Graph, reduction: int) -> frozenset[int]:
    found = find_reductions(graph)
    return found.reduced[found.nodes.index(reduction)]


def _extents(graph: Graph, classes: frozenset[int]) -> str:
    return ", ".join(str(domain_map(graph).extents[c]) for c in sorted(classes)) or "none"


def check_reductions(graph: Graph) -> Refusal | None:
    """There is a reduction and a tensor argument."""
    if not find_reductions(graph).nodes:
        return Refusal("no_reduction_op", "the segment has no reduction")
    if not graph.inputs:
        return Refusal("no_tensor_input", "the segment reads no tensor")
    return None


def check_coverage(graph: Graph, order: Sequence[int]) -> Refusal | None:
    """The reference reduction has every loop of every output."""
    domains = domain_map(graph)
    reference = reference_reduction(graph, order)
    covered = frozenset(domains.classes(graph[reference].inputs[0]))
    for output in graph.outputs:
        missing = frozenset(domains.classes(output)) - covered
        if missing:
            reason = (
                f"{graph[output].name} has the loop {_extents(graph, missing)}, "
                f"which the reduction {graph[reference].name} never sees"
            )
            return Refusal("output_dim_not_covered", reason, output)
    return None


def check_type(graph: Graph, wanted: ReductionType, order: Sequence[int]) -> Refusal | None:
    """The reductions are of the wanted type."""
    found = reduction_type(graph, order)
    if found is wanted:
        return None
    return Refusal("type_mismatch", f"the reductions are {found.value} in memory; this needs {wanted.value}")


def check_ranks(graph: Graph) -> Refusal | None:
    """All reductions read values of equally many loops."""
    varies = domain_map(graph).varies
    for a, b in pairwise(find_reductions(graph).nodes):
        one, other = len(varies[graph[a].inputs[0]]), len(varies[graph[b].inputs[0]])
        if one != other:
            reason = f"{graph[a].name} reduces a value of {one} loops, {graph[b].name} one of {other}"
            return Refusal("rank_mismatch", reason, b)
    return None


def check_same_loops(graph: Graph, reductions: Sequence[int]) -> Refusal | None:
    """The given reductions run over the same loops and close the same of them."""
    varies = domain_map(graph).varies
    for a, b in pairwise(reductions):
        if _reduced(graph, a) != _reduced(graph, b) or varies[graph[a].inputs[0]] != varies[graph[b].inputs[0]]:
            reason = (
                f"the reductions {graph[a].name} and {graph[b].name} close different loops "
                f"({_extents(graph, _reduced(graph, a))} and {_extents(graph, _reduced(graph, b))}); "
                "one kernel needs the same"
            )
            return Refusal("unmapped_multi_reduction", reason, b)
    return None


def check_buffers(graph: Graph) -> Refusal | None:
    """Something of a row is needed again after a reduction of it."""
    found = find_persistence(graph)
    if found.buffers:
        return None
    reason = "no value of the row is needed after a reduction of it"
    if found.not_cacheable:
        names = ", ".join(graph[i].name for i in found.not_cacheable)
        reason += f" ({names} would be, but has only a part of the reduced loops)"
    return Refusal("no_persistent_buffer", reason)


def check_broadcasts(graph: Graph) -> Refusal | None:
    """What a result is broadcast along is a loop that some value above a reduction really has."""
    domains = domain_map(graph)
    reductions = find_reductions(graph).nodes
    feeds = 0
    for r in reductions:
        feeds |= upstream(graph)[r] & ~(1 << r)
    for node in graph:
        if not node.is_tensor or feeds >> node.id & 1:
            continue
        after = [i for i in node.inputs if any(upstream(graph)[i] >> r & 1 for r in reductions)]
        resolved = {
            c for i in after for c in domains.classes(i) if c in domains.varies[node.id] and c not in domains.varies[i]
        }
        for cls in sorted(resolved):
            if not _vouched(graph, node.id, cls, feeds):
                reason = (
                    f"{node.name} broadcasts the result of a reduction along the loop {domains.extents[cls]}, "
                    "which nothing above a reduction has"
                )
                return Refusal("bad_post_reduction_broadcast", reason, node.id)
    return None


def _vouched(graph: Graph, node_id: int, cls: int, feeds: int) -> bool:
    """True if ``node_id``, or something computed from it over ``cls``, reads a value with ``cls`` above a reduction."""
    varies = domain_map(graph).varies
    above = 0
    for reader in members(downstream(graph)[node_id]):
        if cls in varies[reader]:
            above |= upstream(graph)[reader]
    return any(cls in varies[i] for i in members(above & feeds))


def check_nesting(graph: Graph, order: Sequence[int]) -> Refusal | None:
    """Inner reductions close all loops inside their kept ones; outer reductions all loops outside them."""
    varies = domain_map(graph).varies
    for reduction in find_reductions(graph).nodes:
        real = varies[graph[reduction].inputs[0]]
        kinds = [c in _reduced(graph, reduction) for c in order if c in real]
        if (kinds != sorted(kinds) and kinds != sorted(kinds, reverse=True)) or len(set(kinds)) != 2:
            reason = (
                f"{graph[reduction].name} has kept and reduced loops mixed; "
                "beside one of the other type its reduced loops must lie all inside or all outside the kept ones"
            )
            return Refusal("layout", reason, reduction)
    return None


def check_shared_input(graph: Graph, inner: Sequence[int], outer: Sequence[int]) -> Refusal | None:
    """Inner and outer reductions read a common argument."""
    arguments = sum(1 << i for i in graph.inputs)
    masks = [0, 0]
    for place, reductions in enumerate((inner, outer)):
        for r in reductions:
            masks[place] |= upstream(graph)[r] & arguments
    if masks[0] & masks[1]:
        return None
    return Refusal("no_shared_input", "the inner and the outer reductions read no common argument", outer[0])


def check_separate_results(graph: Graph, inner: Sequence[int], outer: Sequence[int]) -> Refusal | None:
    """Results of outer reductions meet neither the inner part nor each other: they are finished after the last row."""
    seen = _flood(graph, inner, frozenset(outer))
    for reduction in outer:
        visited = _flood(graph, [reduction], frozenset(data_inputs(graph[reduction])))
        common = sorted(visited & seen)
        if common:
            reason = (
                f"the result of the outer reduction {graph[reduction].name} is used together with "
                f"{graph[common[0]].name}, before all rows have been seen"
            )
            return Refusal("shared_consumer", reason, common[0])
        seen |= visited
    return None


def _flood(graph: Graph, start: Sequence[int], never: frozenset[int]) -> frozenset[int]:
    """All tensors connected with ``start`` over producers and consumers without entering ``never``."""
    users = graph.users()
    visited = set(start)
    stack = list(start)
    while stack:
        current = stack.pop()
        readers = (u for u in users[current] if graph[u].op != "size")
        for near in (*data_inputs(graph[current]), *readers):
            if graph[near].is_tensor and near not in visited and near not in never:
                visited.add(near)
                stack.append(near)
    return frozenset(visited)


def check_complementary(graph: Graph, inner: Sequence[int], outer: Sequence[int]) -> Refusal | None:
    """What inner reductions close, outer ones keep, and the reverse."""
    varies = domain_map(graph).varies
    reference = inner[0]
    closed = _reduced(graph, reference)
    kept = varies[reference]
    for reduction in (*inner[1:], *outer):
        wanted = closed if reduction in inner else kept
        if _reduced(graph, reduction) != wanted:
            reason = (
                f"{graph[reduction].name} closes the loops {_extents(graph, _reduced(graph, reduction))}; "
                f"beside {graph[reference].name} it must close {_extents(graph, wanted)}"
            )
            return Refusal("axis_mismatch", reason, reduction)
    return None
