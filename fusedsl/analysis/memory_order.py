# SPDX-License-Identifier: Apache-2.0
"""The order of a graph's loops in memory: that of the largest tensor, or the logical one where nothing is laid out yet."""

from __future__ import annotations

import functools
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

    The reference is the tensor with the most loops, then the most elements; outputs come before inputs. Loops that it does
    not have go outermost, loops of equal stride keep their logical order.

    Args:
        graph: any graph.
        layouts: of its inputs and outputs, or of some of them.
    """
    domains = domain_map(graph)
    laid_out = [i for i in dict.fromkeys((*graph.outputs, *graph.inputs)) if i in layouts]
    if not laid_out:
        return logical_order(graph)

    def strides(node_id: int) -> dict[int, int]:
        layout = layouts[node_id]
        triples = zip(domains.dims[node_id], layout.shape, layout.strides, strict=True)
        return {c: stride for c, size, stride in triples if c is not None and size != 1 and stride}

    def coverage(node_id: int) -> tuple[int, int]:
        numel = 1
        for size, stride in zip(layouts[node_id].shape, layouts[node_id].strides, strict=True):
            numel *= size if stride else 1
        return len(strides(node_id)), numel

    # max() keeps the first of equals.
    reference = strides(max(laid_out, key=coverage))
    order = logical_order(graph)
    return tuple(sorted(order, key=lambda c: (c in reference, -reference.get(c, 0))))


@functools.lru_cache(maxsize=256)
def logical_order(graph: Graph) -> tuple[int, ...]:
    """All classes in the dim order of the value that varies over the most of them; the others outermost."""
    domains = domain_map(graph)
    count = len(domains.extents)
    widest = max(graph.nodes, key=lambda n: len(domains.varies[n.id]), default=None)
    listed = () if widest is None else tuple(dict.fromkeys(domains.classes(widest.id)))
    return (*(c for c in range(count) if c not in listed), *listed)


def symbol_sizes(graph: Graph, layouts: Mapping[int, TensorLayout]) -> dict[Symbol, int]:
    """The run-time size of every symbol; the size seen when tracing where no layout has it."""
    domains = domain_map(graph)
    known = {e: extent_hint(e) for e in domains.extents if isinstance(e, Symbol)}
    for node_id, layout in layouts.items():
        for extent, size in zip(graph[node_id].tensor.shape, layout.shape, strict=True):
            if isinstance(extent, Symbol):
                known[extent] = size
    return known
