# SPDX-License-Identifier: Apache-2.0
"""Which ops of a graph run together: neighbours are merged, the pair that saves the most memory traffic first.

Every op starts as a group of its own, a call of several results together with its ``item``s. Two groups merge if
something can run the union and no third group stands between them. Groups of which one reads the other come first,
groups that only share what they read after those; groups that share nothing never merge. An op that nothing can run, or
only eager PyTorch, stays alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

import attrs

from fusedsl.analysis.segment import Accept, compute_nodes, computed_sources, extract, readers
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind

#: Bytes of a value, where it is stored.
Bytes = Callable[[int], int]


@attrs.frozen
class Segmentation:
    """How a graph is split.

    Attributes:
        segments: groups of node ids in an order they can be run in; each is accepted, or is a single op.
        refused: what was tried and not accepted.
    """

    segments: tuple[tuple[int, ...], ...]
    refused: tuple[tuple[int, ...], ...]

    def holds(self, graph: Graph, accept: Accept) -> bool:
        """True if ``accept`` answers as it did when the segments were found."""
        taken = (members for members in self.segments if len(members) > 1)
        return all(accept(extract(graph, members)) for members in taken) and not any(
            accept(extract(graph, members)) for members in self.refused
        )


def find_segments(graph: Graph, accept: Accept, bytes_of: Bytes) -> Segmentation:
    """Try the whole graph, then split it.

    Args:
        graph: any graph.
        accept: whether something runs a subgraph as a whole; never asked about opaque ops.
        bytes_of: bytes of a tensor node.
    """
    nodes = tuple(compute_nodes(graph))
    opaque = frozenset(n for n in nodes if OPS[graph[n].op].kind is Kind.OPAQUE)
    refused: list[tuple[int, ...]] = []

    def ask(members: tuple[int, ...]) -> bool:
        taken = accept(extract(graph, members))
        if not taken:
            refused.append(members)
        return taken

    if not nodes or (not opaque and ask(nodes)):
        return Segmentation((nodes,) if nodes else (), ())
    segments = _Merging(graph, nodes, opaque, ask, bytes_of).run()
    return Segmentation(segments, tuple(refused))


@attrs.frozen
class _Group:
    """Ops that run together.

    Attributes:
        members: their ids, in order.
        after: computed values of other groups that must be there before.
        reads: values it loads.
        writes: values it stores.
    """

    members: tuple[int, ...]
    after: frozenset[int]
    reads: frozenset[int]
    writes: frozenset[int]


class _Merging:
    """State of one run. A merged group gets a new number, so pairs that name an old one are void."""

    def __init__(
        self,
        graph: Graph,
        nodes: tuple[int, ...],
        opaque: frozenset[int],
        accept: Callable[[tuple[int, ...]], bool],
        bytes_of: Bytes,
    ) -> None:
        self.graph = graph
        self.accept = accept
        self.bytes_of = bytes_of
        computed = frozenset(nodes)
        self.sources = {n: computed_sources(graph, n, computed) for n in nodes}
        self.groups: dict[int, _Group] = {}
        self.group_of: dict[int, int] = {}
        self.readers: dict[int, set[int]] = {}
        self.numbers = itertools.count()
        self.alone = {n for n in nodes if n in opaque or not accept((n,))}
        self.pairs: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
        for n in nodes:
            if graph[n].op != "item":
                self._add((n, *(u for u in readers(graph)[n] if graph[u].op == "item")))
        for number in self.groups:
            self._propose(number, newer=False)

    def run(self) -> tuple[tuple[int, ...], ...]:
        """Merge until nothing more merges: chains first, then siblings."""
        chains, siblings = self.pairs
        while self._merge_best(chains) or self._merge_best(siblings):
            pass
        return tuple(self.groups[g].members for g in self._ordered())

    def _add(self, members: tuple[int, ...]) -> int:
        number = next(self.numbers)
        part = extract(self.graph, members)
        after = frozenset().union(*(self.sources[n] for n in members)) - frozenset(members)
        reads = frozenset(part.origin[i] for i in part.graph.inputs)
        writes = frozenset(part.origin[o] for o in part.graph.outputs)
        self.groups[number] = _Group(members, after, reads, writes)
        self.group_of.update(dict.fromkeys(members, number))
        for value in reads:
            self.readers.setdefault(value, set()).add(number)
        return number

    def _remove(self, number: int) -> _Group:
        group = self.groups.pop(number)
        for value in group.reads:
            self.readers[value].discard(number)
        return group

    # pairs ---------------------------------------------------------------------------------------------------------

    def _propose(self, number: int, *, newer: bool) -> None:
        """Put the pairs of a group up for merging; with ``newer`` false only those with groups of higher numbers."""
        group = self.groups[number]
        if self.alone & set(group.members):
            return
        chained = {self.group_of[v] for v in group.after}
        chained |= {g for v in group.writes for g in self.readers.get(v, ())}
        shared = {g for v in group.reads for g in self.readers[v]} - chained
        for other in chained | shared:
            if other != number and (newer or other > number) and not self.alone & set(self.groups[other].members):
                heapq.heappush(self.pairs[other not in chained], self._pair(number, other))

    def _pair(self, one: int, other: int) -> tuple[int, ...]:
        """A heap entry: most bytes saved first, then what stands first in the graph."""
        first, second = sorted((one, other), key=lambda g: self.groups[g].members)
        places = self.groups[second].members[0], -self.groups[first].members[-1]
        return (-self._saved(self.groups[one], self.groups[other], {one, other}), *places, first, second)

    def _saved(self, a: _Group, b: _Group, numbers: set[int]) -> int:
        """Bytes that need not be moved if two groups run together."""
        saved = sum(self.bytes_of(v) for v in a.reads & b.reads)
        for value in (a.writes & b.reads) | (b.writes & a.reads):
            dead = value not in self.graph.outputs and self.readers[value] <= numbers
            saved += self.bytes_of(value) * (2 if dead else 1)
        return saved

    def _merge_best(self, pairs: list[tuple[int, ...]]) -> bool:
        """Merge the best pair that can be; False if none can."""
        while pairs:
            *_, one, other = heapq.heappop(pairs)
            if one not in self.groups or other not in self.groups or self._separated(one, other):
                continue
            union = tuple(sorted((*self.groups[one].members, *self.groups[other].members)))
            if self.accept(union):
                self._remove(one)
                self._remove(other)
                self._propose(self._add(union), newer=True)
                return True
        return False

    def _separated(self, one: int, other: int) -> bool:
        """True if a third group must run between the two."""
        return any(
            goal in self._before(near) for start, goal in ((one, other), (other, one)) for near in self._direct(start)
        )

    def _direct(self, number: int) -> Iterator[int]:
        return (self.group_of[v] for v in self.groups[number].after)

    def _before(self, number: int) -> set[int]:
        """All groups that must run before one, without itself."""
        found: set[int] = set()
        stack = [number]
        while stack:
            for near in self._direct(stack.pop()):
                if near not in found:
                    found.add(near)
                    stack.append(near)
        return found

    def _ordered(self) -> list[int]:
        """The groups in an order they can be run in, the earliest op first where there is a choice."""
        waiting = {g: set(self._direct(g)) for g in self.groups}
        order: list[int] = []
        while waiting:
            ready = [g for g, before in waiting.items() if not before]
            chosen = min(ready, key=lambda g: self.groups[g].members)
            order.append(chosen)
            del waiting[chosen]
            for before in waiting.values():
                before.discard(chosen)
        return order
