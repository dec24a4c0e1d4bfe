# SPDX-License-Identifier: Apache-2.0
"""The domain map: which dims of which values are the same loop, and over which loops a value really varies.

Dims linked by elementwise producer-consumer edges form one class (union-find). Dims of extent 1 belong to no class:
they cost nothing and broadcast against anything. A reduction links its kept dims; the reduced dims stay classes of its
input. A value that was expanded along a loop has a dim of that class but does not vary over it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import attrs

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import Extent, Symbol


@attrs.frozen
class DomainMap:
    """Classes of dims of a graph.

    Attributes:
        dims: per node, per dim, the class or None for an extent of 1; empty for host scalars.
        extents: the extent of each class.
        varies: per node, the classes its elements differ along: those of its dims, less the ones it was expanded along.
    """

    dims: tuple[tuple[int | None, ...], ...]
    extents: tuple[Extent, ...]
    varies: tuple[frozenset[int], ...]

    def classes(self, node_id: int) -> tuple[int, ...]:
        """The classes of the dims of a value, in its dim order, expanded ones included."""
        return tuple(c for c in self.dims[node_id] if c is not None)

    def self_mapped(self, node_id: int) -> bool:
        """True if two dims of the value are the same loop (``x + x.T``)."""
        found = self.classes(node_id)
        return len(set(found)) != len(found)


def kept_dims(node: Node, rank: int) -> tuple[int, ...]:
    """The source dims that a reduction keeps, in order."""
    reduced = node.attribute("dims")
    return tuple(d for d in range(rank) if d not in reduced)


def class_sizes(domains: DomainMap, sizes: Mapping[Symbol, int]) -> tuple[int, ...]:
    """The run-time extent of every class."""
    return tuple(e if isinstance(e, int) else sizes[e] for e in domains.extents)


class _Classes:
    def __init__(self) -> None:
        self.parent: list[int] = []
        self.extent: list[Extent] = []

    def new(self, extent: Extent) -> int:
        self.parent.append(len(self.parent))
        self.extent.append(extent)
        return len(self.parent) - 1

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def join(self, a: int | None, b: int | None) -> None:
        if a is None or b is None:
            return
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)


@functools.lru_cache(maxsize=256)
def domain_map(graph: Graph) -> DomainMap:
    """Union-find over (node, dim). Opaque results and factories start classes of their own."""
    classes = _Classes()
    dims: list[tuple[int | None, ...]] = []

    for node in graph.nodes:
        shape = node.tensor.shape if node.is_tensor else ()
        mine = tuple(None if extent == 1 else classes.new(extent) for extent in shape)
        dims.append(mine)
        for source, read in _reads(graph, node):
            for mine_dim, source_dim in zip(mine, read, strict=True):
                if source_dim is not None:
                    classes.join(dims[source][source_dim], mine_dim)
    roots = sorted({classes.find(c) for found in dims for c in found if c is not None})
    index = {root: i for i, root in enumerate(roots)}
    numbered = tuple(tuple(None if c is None else index[classes.find(c)] for c in found) for found in dims)
    return DomainMap(numbered, tuple(classes.extent[root] for root in roots), _varying(graph, numbered))


def _reads(graph: Graph, node: Node) -> list[tuple[int, Sequence[int | None]]]:
    """Every tensor operand, with the dim of it that each dim of the node reads."""
    match OPS[node.op].kind:
        case Kind.POINTWISE | Kind.CAST:
            return [(i, range(node.tensor.rank)) for i in node.inputs if graph[i].is_tensor]
        case Kind.REINDEX:
            return [(node.inputs[0], node.attribute("dims"))]
        case Kind.REDUCTION:
            return [(node.inputs[0], kept_dims(node, graph[node.inputs[0]].tensor.rank))]
        case _:
            return []


def _varying(graph: Graph, dims: tuple[tuple[int | None, ...], ...]) -> tuple[frozenset[int], ...]:
    """Per node, the classes along which its elements differ."""
    found: list[frozenset[int]] = []
    for node in graph.nodes:
        kind = OPS[node.op].kind
        if node.op == "iota":
            found.append(frozenset({dims[node.id][node.attribute("dim")]} - {None}))
        elif node.op == "random":
            found.append(frozenset(c for c in dims[node.id] if c is not None))
        elif not node.is_tensor or kind is Kind.FACTORY:
            found.append(frozenset())
        elif kind in (Kind.INPUT, Kind.OPAQUE):
            found.append(frozenset(c for c in dims[node.id] if c is not None))
        else:
            sources = frozenset().union(*(found[i] for i in node.inputs))
            found.append(sources & frozenset(c for c in dims[node.id] if c is not None))
    return tuple(found)
