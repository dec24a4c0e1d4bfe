# SPDX-License-Identifier: Apache-2.0
"""Who reads whom: sets of nodes as bit masks, and reads that look through broadcasts and permutations.

A ``reindex`` moves no data, so it neither holds a value nor computes one: its readers read its source. The ``size`` of
a tensor is known without its data, so it is no dependence either.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import attrs

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind


@attrs.frozen
class Read:
    """One operand of a node.

    Attributes:
        source: the node whose data is read; never a ``reindex``.
        dims: per dim of the operand as the reader sees it, the dim of ``source``, or None where it was expanded.
    """

    source: int
    dims: tuple[int | None, ...]


def is_structure(node: Node) -> bool:
    """True for nodes that move no data."""
    return OPS[node.op].kind is Kind.REINDEX


def is_reduction(node: Node) -> bool:
    return OPS[node.op].kind is Kind.REDUCTION


def look_through(node: Node, read: Read) -> Read:
    """What reading a ``reindex`` of ``read`` means."""
    return Read(read.source, tuple(None if d is None else read.dims[d] for d in node.attribute("dims")))


@functools.lru_cache(maxsize=256)
def find_reads(graph: Graph) -> tuple[tuple[Read, ...], ...]:
    """Per node its tensor operands, with every ``reindex`` between looked through."""
    seen: list[Read] = []  # per node, what reading it means
    reads: list[tuple[Read, ...]] = []
    for node in graph:
        tensors = [i for i in data_inputs(node) if graph[i].is_tensor]
        reads.append(tuple(seen[i] for i in tensors))
        if is_structure(node):
            seen.append(look_through(node, seen[tensors[0]]))
        else:
            rank = node.tensor.rank if node.is_tensor else 0
            seen.append(Read(node.id, tuple(range(rank))))
    return tuple(reads)


def data_inputs(node: Node) -> tuple[int, ...]:
    """The nodes whose data a node needs."""
    return () if node.op == "size" else node.inputs


@functools.lru_cache(maxsize=256)
def upstream(graph: Graph) -> tuple[int, ...]:
    """Per node, the bit mask of the nodes it depends on, itself included."""
    masks: list[int] = []
    for node in graph:
        mask = 1 << node.id
        for source in data_inputs(node):
            mask |= masks[source]
        masks.append(mask)
    return tuple(masks)


@functools.lru_cache(maxsize=256)
def downstream(graph: Graph) -> tuple[int, ...]:
    """Per node, the bit mask of the nodes that depend on it, itself included."""
    masks = [1 << node.id for node in graph]
    for node in reversed(graph.nodes):
        for source in data_inputs(node):
            masks[source] |= masks[node.id]
    return tuple(masks)


def members(mask: int) -> Iterator[int]:
    """The node ids in a bit mask, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def between(graph: Graph, first: int, last: int) -> int:
    """The bit mask of the nodes on paths ``first`` -> ``last``, ends included; 0 if there is no path."""
    return downstream(graph)[first] & upstream(graph)[last]
