# SPDX-License-Identifier: Apache-2.0
"""Persistent buffers: values of a row that are needed again after a reduction of the row, and where they are resolved.

Such a value stays somewhere from its first use to its last resolution point, or is computed again from something that
stays. Arguments of the graph that fit are reported too: keeping them saves reading them again.
"""

from __future__ import annotations

import functools

import attrs

from fusedsl.analysis.conflicts import find_conflicts
from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.edges import is_reduction
from fusedsl.analysis.reductions import find_reductions
from fusedsl.analysis.resolution import find_resolution_points
from fusedsl.analysis.storage_dtype import stored_bytes
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind


@attrs.frozen
class PersistentBuffer:
    """A value kept across a reduction.

    Attributes:
        node: the value.
        classes: its loops that a reduction splits; their extents give the size of what is kept.
        resolution_points: the results it is kept for, in order.
    """

    node: int
    classes: frozenset[int]
    resolution_points: tuple[int, ...]


@attrs.frozen
class PersistentBuffers:
    """Persistent buffers of a graph.

    Attributes:
        buffers: in graph order.
        not_cacheable: values that fit but have only a part of the reduced loops, so their elements belong to several
            threads; they are read or computed once a use.
    """

    buffers: tuple[PersistentBuffer, ...]
    not_cacheable: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def find_persistence(graph: Graph) -> PersistentBuffers:
    """The persistent buffers of a graph, and the values that fit but cannot be kept."""
    if not find_reductions(graph).nodes:
        return PersistentBuffers((), ())
    buffers = []
    not_cacheable = []
    for node_id, classes in sorted(find_conflicts(graph, stored_bytes(graph)).items()):
        if OPS[graph[node_id].op].kind is Kind.FACTORY:
            continue  # positions are made again at no cost
        if not is_cacheable(graph, node_id):
            not_cacheable.append(node_id)
        elif points := find_resolution_points(graph, node_id):
            buffers.append(PersistentBuffer(node_id, classes, points))
    return PersistentBuffers(tuple(buffers), tuple(not_cacheable))


def find_persistent_buffers(graph: Graph) -> tuple[PersistentBuffer, ...]:
    """The persistent buffers of a graph, in graph order."""
    return find_persistence(graph).buffers


def is_cacheable(graph: Graph, node_id: int) -> bool:
    """True if the next reductions below a value close all or none of its loops of theirs.

    All loops of a reduction are spread over threads as one; a value with some of them lies otherwise than its readers.
    """
    found = find_reductions(graph)
    closed = dict(zip(found.nodes, found.reduced, strict=True))
    mine = domain_map(graph).varies[node_id]
    return all(not closed[r] & mine or closed[r] <= mine for r in next_reductions(graph, node_id))


def next_reductions(graph: Graph, node_id: int) -> tuple[int, ...]:
    """The reductions that depend on a value with no other reduction in between, in order."""
    reached = {node_id}
    found = []
    for node in graph.nodes[node_id + 1 :]:
        if any(i in reached for i in node.inputs):
            if is_reduction(node):
                found.append(node.id)
            else:
                reached.add(node.id)
    return tuple(found)
