# SPDX-License-Identifier: Apache-2.0
"""Resolution points of a persistent buffer: where a path from it that avoids reductions meets a path through one.

The buffer must be kept at least until its last resolution point. The forward walk is tried first; where no single op
sees both sides (they meet only by sharing a third value) the walk in both directions finds the point.
"""

from __future__ import annotations

from collections import deque

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.edges import between, data_inputs, downstream, is_reduction, upstream
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph


def find_resolution_points(graph: Graph, buffer: int) -> tuple[int, ...]:
    """Resolution points of ``buffer`` in graph order; empty if it needs not be kept."""
    return resolve_forward(graph, buffer) or resolve_both_ways(graph, buffer)


def resolve_forward(graph: Graph, buffer: int) -> tuple[int, ...]:
    """Results of ops that read both something computed from ``buffer`` and something from a later reduction."""
    reduced: set[int] = set()
    carried = {buffer}
    points: list[int] = []
    for node in graph.nodes[buffer + 1 :]:
        sources = set(data_inputs(node))
        if is_reduction(node):
            if not any(upstream(graph)[node.id] >> point & 1 for point in points):
                reduced.add(node.id)
        elif sources & carried:
            carried.add(node.id)
            if sources & reduced:
                points.append(node.id)
        elif sources & reduced:
            reduced.add(node.id)
    return tuple(points)


def resolve_both_ways(graph: Graph, buffer: int) -> tuple[int, ...]:
    """Results that depend on a reduction of ``buffer`` and share a loop, over any neighbours, with a reader of it."""
    users = graph.users()
    points: set[int] = set()
    found = find_reductions(graph)
    for reduction, classes in zip(found.nodes, found.reduced, strict=True):
        path = between(graph, buffer, reduction)
        if not path or any(upstream(graph)[reduction] >> point & 1 for point in points):
            continue
        dependent = downstream(graph)[reduction] & ~(1 << reduction)
        if dependent:
            start = [u for u in users[buffer] if graph[u].op != "size" and not path >> u & 1]
            points |= _meet(graph, users, start, path, dependent, classes)
    return tuple(sorted(points))


def _meet(
    graph: Graph,
    users: dict[int, tuple[int, ...]],
    start: list[int],
    path: int,
    dependent: int,
    classes: frozenset[int],
) -> set[int]:
    """The first members of ``dependent`` met when walking over producers and consumers that have one of ``classes``."""
    domains = domain_map(graph)
    points: set[int] = set()
    visited = set(start)
    queue = deque(start)
    while queue:
        current = queue.popleft()
        if dependent >> current & 1:
            points.add(current)
            continue
        for near in (*graph[current].inputs, *users[current]):
            if near not in visited and not path >> near & 1 and classes & set(domains.classes(near)):
                visited.add(near)
                queue.append(near)
    return points
