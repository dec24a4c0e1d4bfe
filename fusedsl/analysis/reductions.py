# SPDX-License-Identifier: Apache-2.0
"""Reductions of a graph: which loops they close, the stage of every value, and whether they agree."""

from __future__ import annotations

import functools

import attrs

from fusedsl.analysis.domains import DomainMap, domain_map
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind


@attrs.frozen
class Reductions:
    """Facts about the reductions of a graph.

    Attributes:
        nodes: ids of the reductions, in topological order.
        reduced: per reduction, the classes it reduces.
        classes: all reduced classes.
        stage: per node of the graph, the number of reductions on the longest chain above it: a kernel passes over the
            data once a stage.
        stages: reductions grouped by stage; those of one stage need one barrier.
    """

    nodes: tuple[int, ...]
    reduced: tuple[frozenset[int], ...]
    classes: frozenset[int]
    stage: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]

    @property
    def agree(self) -> bool:
        """True if every reduction closes the same loops."""
        return all(r == self.classes for r in self.reduced)


@functools.lru_cache(maxsize=256)
def find_reductions(graph: Graph) -> Reductions:
    """Reductions, the classes they reduce and the stage of every node."""
    domains: DomainMap = domain_map(graph)
    nodes: list[int] = []
    reduced: list[frozenset[int]] = []
    stage: list[int] = []
    for node in graph.nodes:
        level = max((stage[i] + (OPS[graph[i].op].kind is Kind.REDUCTION) for i in node.inputs), default=0)
        stage.append(level)
        if OPS[node.op].kind is Kind.REDUCTION:
            source = domains.dims[node.inputs[0]]
            nodes.append(node.id)
            reduced.append(frozenset(c for d in node.attribute("dims") if (c := source[d]) is not None))
    count = max((stage[i] for i in nodes), default=-1) + 1
    return Reductions(
        tuple(nodes),
        tuple(reduced),
        frozenset().union(*reduced) if reduced else frozenset(),
        tuple(stage),
        tuple(tuple(i for i in nodes if stage[i] == s) for s in range(count)),
    )
