# SPDX-License-Identifier: Apache-2.0
"""Persistent buffers: values of a row that are needed again after a reduction of the row, and where they are resolved.

A value with a reduced loop that is computed in stage s and read in a later stage must be kept, or computed again, across
the reduction. Its resolution points are those readers.
"""

from __future__ import annotations

import functools

import attrs

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind


@attrs.frozen
class PersistentBuffer:
    """A value kept across a reduction.

    Attributes:
        node: the value.
        resolution_points: the values of a later stage that read it, in order.
        inputs: graph inputs it can be computed from without a reduction; empty if it depends on one.
    """

    node: int
    resolution_points: tuple[int, ...]
    inputs: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def find_persistent_buffers(graph: Graph) -> tuple[PersistentBuffer, ...]:
    """Values with a reduced loop that a later stage reads, in graph order."""
    domains = domain_map(graph)
    found = find_reductions(graph)
    users = graph.users()
    buffers = []
    for node in graph:
        if not node.is_tensor or not found.classes & set(domains.classes(node.id)):
            continue
        if OPS[node.op].kind is Kind.REINDEX:
            continue
        stage = found.stage[node.id]
        later = tuple(u for u in users[node.id] if found.stage[u] > stage and OPS[graph[u].op].kind is not Kind.REDUCTION)
        if later:
            buffers.append(PersistentBuffer(node.id, later, _sources(graph, node.id) if stage == 0 else ()))
    return tuple(buffers)


def _sources(graph: Graph, node_id: int) -> tuple[int, ...]:
    seen: set[int] = set()
    stack = [node_id]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack.extend(graph[current].inputs)
    return tuple(i for i in graph.inputs if i in seen)
