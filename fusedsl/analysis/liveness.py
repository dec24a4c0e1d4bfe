# SPDX-License-Identifier: Apache-2.0
"""How many bytes of a row are kept at once: the largest sum over the points of the program.

A buffer is live at every value on a path from it to its resolution points, but not at itself: what is read last to
produce it can be overwritten. Buffers of independent branches are assumed not to overlap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import attrs

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.edges import between, is_reduction, is_structure, members
from fusedsl.analysis.persistent import find_persistent_buffers
from fusedsl.analysis.projection import find_derived, find_recomputes
from fusedsl.analysis.reductions import find_reductions
from fusedsl.analysis.storage_dtype import stored_bytes
from fusedsl.graph.graph import Graph


@attrs.frozen
class KeptValue:
    """A value kept across a reduction: a persistent buffer, or an argument kept in place of some.

    Attributes:
        node: the value.
        classes: the loops of one row of it.
        itemsize: bytes of an element where it is kept.
        resolution_points: what it is kept for.
    """

    node: int
    classes: frozenset[int]
    itemsize: int
    resolution_points: tuple[int, ...]

    def numel(self, class_sizes: Sequence[int]) -> int:
        """Elements of a row."""
        return math.prod(class_sizes[c] for c in self.classes)

    def bytes(self, class_sizes: Sequence[int]) -> int:
        """Bytes of a row."""
        return self.numel(class_sizes) * self.itemsize


@functools.lru_cache(maxsize=256)
def plain_values(graph: Graph) -> tuple[KeptValue, ...]:
    """What is kept without projection: the persistent buffers that are not computed from others, in graph order."""
    derived = find_derived(graph)
    buffers = {b.node: b for b in find_persistent_buffers(graph)}
    points = {node_id: set(b.resolution_points) for node_id, b in buffers.items()}
    for node_id, sources in derived.items():
        for source in sources:
            points[source] |= points[node_id]
    return tuple(
        _kept(graph, node_id, b.classes, points[node_id]) for node_id, b in buffers.items() if node_id not in derived
    )


@functools.lru_cache(maxsize=256)
def projected_values(graph: Graph) -> tuple[KeptValue, ...]:
    """What is kept with projection: arguments of projectable buffers, and the other buffers; empty without any."""
    buffers = find_persistent_buffers(graph)
    recomputes = find_recomputes(graph)
    if not any(r.projectable for r in recomputes):
        return ()
    varies = domain_map(graph).varies
    classes: dict[int, set[int]] = {}
    points: dict[int, set[int]] = {}
    for buffer, recompute in zip(buffers, recomputes, strict=True):
        for node_id in recompute.inputs if recompute.projectable else (buffer.node,):
            mine = varies[node_id] & buffer.classes
            classes.setdefault(node_id, set()).update(mine)
            points.setdefault(node_id, set()).update(buffer.resolution_points)
    return tuple(_kept(graph, n, frozenset(classes[n]), points[n]) for n in sorted(classes))


def _kept(graph: Graph, node_id: int, classes: frozenset[int], points: Iterable[int]) -> KeptValue:
    return KeptValue(node_id, classes, stored_bytes(graph)[node_id], tuple(sorted(points)))


@functools.lru_cache(maxsize=256)
def live_sets(graph: Graph, values: tuple[KeptValue, ...]) -> tuple[tuple[int, ...], ...]:
    """The largest sets of indices into ``values`` that are live at one point of the program."""
    live: dict[int, set[int]] = {}
    for index, value in enumerate(values):
        points = 0
        for point in value.resolution_points:
            points |= between(graph, value.node, point)
        for node_id in members(points & ~(1 << value.node)):
            live.setdefault(node_id, set()).add(index)
    found = {frozenset(s) for s in live.values()}
    largest = [s for s in found if not any(s < other for other in found)]
    return tuple(sorted(tuple(sorted(s)) for s in largest))


def live_bytes(graph: Graph, values: tuple[KeptValue, ...], class_sizes: Sequence[int]) -> int:
    """The most bytes that the values of one row take at once."""
    sizes = [value.bytes(class_sizes) for value in values]
    return max((sum(sizes[i] for i in live) for live in live_sets(graph, values)), default=0)


def outer_partial_bytes(graph: Graph, outer: Iterable[int], class_sizes: Sequence[int]) -> int:
    """Bytes of one row of partial results for each of the ``outer`` reductions."""
    varies, itemsize = domain_map(graph).varies, stored_bytes(graph)
    return sum(math.prod(class_sizes[c] for c in varies[r]) * itemsize[r] for r in outer)


@functools.lru_cache(maxsize=256)
def broadcast_over_rows(graph: Graph, reduction: int) -> frozenset[int]:
    """Values that all rows share, as weights are: they vary over reduced loops only and depend on no reduction.

    Args:
        graph: any graph.
        reduction: the inner reduction that decides what a row is.
    """
    varies = domain_map(graph).varies
    kept = varies[reduction]
    row = varies[graph[reduction].inputs[0]] - kept
    stage = find_reductions(graph).stage
    shared = (n.id for n in graph if not is_structure(n) and not is_reduction(n) and stage[n.id] == 0)
    return frozenset(i for i in shared if kept and varies[i] and varies[i] <= row)
