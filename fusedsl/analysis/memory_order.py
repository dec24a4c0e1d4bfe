# SPDX-License-Identifier: Apache-2.0
"""The order of a graph's loops in memory: that of its largest tensors, the logical one where nothing is laid out."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Protocol

from fusedsl.analysis.domains import domain_map
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import Symbol, extent_hint


class TensorLayout(Protocol):
    """Sizes and strides of a tensor, in elements."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[int, ...]: ...


def memory_order(graph: Graph, layouts: Mapping[int, TensorLayout]) -> tuple[int, ...]:
    """All classes, outermost in memory first.

    Tensors are asked in turn: those with the most loops first, of equals the larger, of equals outputs before inputs.
    What an earlier one says stands; a loop that it lacks is put just inside the next outer loop of the later one.

    Args:
        graph: any graph.
        layouts: of its inputs and outputs, or of some of them.
    """
    domains = domain_map(graph)
    logical = logical_order(graph)

    def loops(node_id: int) -> list[int]:
        layout = layouts[node_id]
        triples = zip(domains.dims[node_id], layout.shape, layout.strides, strict=True)
        strides = {c: stride for c, size, stride in triples if c is not None and size != 1 and stride}
        return sorted((c for c in logical if c in strides), key=lambda c: -strides[c])

    def numel(node_id: int) -> int:
        layout = layouts[node_id]
        return math.prod(n for n, stride in zip(layout.shape, layout.strides, strict=True) if stride)

    laid_out = {i: loops(i) for i in dict.fromkeys((*graph.outputs, *graph.inputs)) if i in layouts}
    order: list[int] = []
    for node_id in sorted(laid_out, key=lambda i: (-len(laid_out[i]), -numel(i))):
        _insert(order, laid_out[node_id])
    _insert(order, list(logical))
    return tuple(order)


def _insert(order: list[int], loops: list[int]) -> None:
    """Put the missing ones of ``loops`` (outermost first) into ``order``, each just inside the one before it."""
    known = [c for c in loops if c in order]
    place = order.index(known[0]) if known else len(order)
    for cls in loops:
        if cls in order:
            place = order.index(cls) + 1
        else:
            order.insert(place, cls)
            place += 1


@functools.lru_cache(maxsize=256)
def logical_order(graph: Graph) -> tuple[int, ...]:
    """All classes in dim order, by the rule of :func:`memory_order`: values of the most loops are asked first."""
    domains = domain_map(graph)
    order: list[int] = []
    for node in sorted(graph.nodes, key=lambda n: -len(domains.varies[n.id])):
        _insert(order, [c for c in dict.fromkeys(domains.classes(node.id)) if c in domains.varies[node.id]])
    return (*(c for c in range(len(domains.extents)) if c not in order), *order)


def symbol_sizes(graph: Graph, layouts: Mapping[int, TensorLayout]) -> dict[Symbol, int]:
    """The run-time size of every symbol; the size seen when tracing where no layout has it."""
    known: dict[Symbol, int] = {}
    for node_id, layout in layouts.items():
        for extent, size in zip(graph[node_id].tensor.shape, layout.shape, strict=True):
            if isinstance(extent, Symbol):
                known[extent] = size
    if all(isinstance(e, int) or e in known for e in domain_map(graph).extents):
        return known
    # The graph's own symbols: facts are shared by graphs that differ in the sizes seen.
    for node in graph:
        for extent in node.tensor.shape if node.is_tensor else ():
            if isinstance(extent, Symbol):
                known.setdefault(extent, extent_hint(extent))
    return known
