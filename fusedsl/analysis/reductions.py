# SPDX-License-Identifier: Apache-2.0
"""Reductions of a graph: which loops they close, the stage of every value, whether they agree, and their type.

Types depend on memory, not on axis numbers: ``sum(x, 0)`` of a transposed tensor reduces its innermost loop.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence

import attrs

from fusedsl.analysis.domains import DomainMap, domain_map
from fusedsl.analysis.edges import data_inputs, is_reduction
from fusedsl.graph.graph import Graph


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
        level = max((stage[i] + is_reduction(graph[i]) for i in data_inputs(node)), default=0)
        stage.append(level)
        if is_reduction(node):
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


class ReductionType(enum.Enum):
    """Where the reduced loops lie in memory; each type but NONE has a persistent scheduler."""

    NONE = "none"
    INNER = "inner"
    OUTER = "outer"
    INNER_OUTER = "inner-outer"


def reduces_innermost(graph: Graph, reduction: int, order: Sequence[int]) -> bool:
    """True if the innermost loop in memory of what is reduced is a reduced one.

    Args:
        graph: any graph.
        reduction: a reduction of it.
        order: all classes, outermost in memory first (see :func:`fusedsl.analysis.memory_order.memory_order`).
    """
    found = find_reductions(graph)
    real = domain_map(graph).varies[graph[reduction].inputs[0]]
    innermost = next((c for c in reversed(order) if c in real), None)
    return innermost is not None and innermost in found.reduced[found.nodes.index(reduction)]


def reduction_type(graph: Graph, order: Sequence[int]) -> ReductionType:
    """The type of all reductions together, for loops in this memory order."""
    inner = {reduces_innermost(graph, r, order) for r in find_reductions(graph).nodes}
    if not inner:
        return ReductionType.NONE
    if inner == {True, False}:
        return ReductionType.INNER_OUTER
    return ReductionType.INNER if inner == {True} else ReductionType.OUTER


def reference_reduction(graph: Graph, order: Sequence[int]) -> int:
    """The reduction that decides the tiles of all others: the first, or the first inner one of an inner-outer graph."""
    nodes = find_reductions(graph).nodes
    if reduction_type(graph, order) is ReductionType.INNER_OUTER:
        return next(r for r in nodes if reduces_innermost(graph, r, order))
    return nodes[0]


@attrs.frozen
class ReductionProperties:
    """Extents of the reference reduction, in elements.

    Attributes:
        innermost_reduced: the innermost loop in memory is reduced.
        dimensionality: alternations of kept and reduced loops, counted from 1.
        inner_numel: elements of the innermost group of loops of one kind.
        inner_ndims: loops in that group.
        reduction_numel: elements a result is reduced from.
        iteration_numel: results.
    """

    innermost_reduced: bool
    dimensionality: int
    inner_numel: int
    inner_ndims: int
    reduction_numel: int
    iteration_numel: int

    @property
    def is_3d(self) -> bool:
        """True for inner reductions whose reduced loops have a kept loop between them."""
        return self.innermost_reduced and self.reduction_numel != self.inner_numel

    @property
    def pattern(self) -> str:
        """The canonical merged form: ``[I, R]``, ``[R, I]``, ``[R, I, R]``, ``[I, R, I]`` or ``[R]``."""
        kinds = ("R", "I") if self.innermost_reduced else ("I", "R")
        return "[" + ", ".join(kinds[place % 2] for place in reversed(range(self.dimensionality))) + "]"


def reduction_properties(
    graph: Graph, order: Sequence[int], class_sizes: Sequence[int], reduction: int
) -> ReductionProperties:
    """Walk the loops of what is reduced from the innermost outwards.

    Args:
        graph: any graph.
        order: all classes, outermost in memory first.
        class_sizes: the extent of every class.
        reduction: usually the reference reduction.
    """
    found = find_reductions(graph)
    reduced = found.reduced[found.nodes.index(reduction)]
    real = domain_map(graph).varies[graph[reduction].inputs[0]]
    innermost = reduces_innermost(graph, reduction, order)
    current, dimensionality = innermost, 1
    inner_numel, inner_ndims = 1, 0
    numel = {True: 1, False: 1}
    for cls in (c for c in reversed(order) if c in real):
        kind = cls in reduced
        numel[kind] *= class_sizes[cls]
        if kind != current:
            dimensionality += 1
            current = kind
        elif dimensionality == 1:
            inner_numel *= class_sizes[cls]
            inner_ndims += 1
    return ReductionProperties(innermost, dimensionality, inner_numel, inner_ndims, numel[True], numel[False])
