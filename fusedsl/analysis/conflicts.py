# SPDX-License-Identifier: Apache-2.0
"""Which dims cannot share one loop with all their readers, because a reduction must finish between two of them.

Every value starts with loops of its own. Going from results to arguments, the loop of a dim is joined with the loops
of the dims that read it, unless one reader runs before a reduction of that loop and another runs after it, or shares a
loop with something that does. Because loops are joined transitively, a reader that does not depend on the reduction
itself but shares its loop with one that does also conflicts. "Before" and "after" are transitive too: a loop that must
wait for the results of a second loop runs after what the second loop waits for.

Where a conflict could be blamed on either of two values, the one met last has it. Values are met in an order that keeps
the one of fewer bytes, and of equals the computed one before the argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from fusedsl.analysis.domains import domain_map, kept_dims
from fusedsl.analysis.edges import Read, find_reads, is_reduction, is_structure, look_through, members, upstream
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind


def find_conflicts(graph: Graph, stored_bytes: Sequence[int]) -> dict[int, frozenset[int]]:
    """Node -> the classes of its dims that cannot share a loop with all their readers; nodes without any are left out.

    Args:
        graph: any graph. What eager torch reads, it reads from memory, so opaque readers never conflict.
        stored_bytes: per node, bytes of an element if it were kept.
    """
    domains = domain_map(graph)
    loops = _Loops(graph)
    found: dict[int, frozenset[int]] = {}
    for node_id in _results_first(graph, stored_bytes):
        refused = set()
        for dim, cls in enumerate(domains.dims[node_id]):
            if cls in domains.varies[node_id] and not loops.join(node_id, dim):
                refused.add(cls)
        if refused:
            found[node_id] = frozenset(c for c in refused if c is not None)
    return found


def _takes_part(graph: Graph, node: Node) -> bool:
    """True for readers that run in the kernel: a ``reindex`` only if it is stored."""
    if is_structure(node):
        return node.id in graph.outputs
    return node.is_tensor and OPS[node.op].kind is not Kind.OPAQUE


def _results_first(graph: Graph, stored_bytes: Sequence[int]) -> list[int]:
    """Tensors that hold data, every reader before what it reads."""
    reads = find_reads(graph)
    waiting = [0] * len(graph.nodes)
    holders = [n.id for n in graph if n.is_tensor and not is_structure(n)]
    for node in graph:
        if not is_structure(node):
            for source in {r.source for r in reads[node.id]}:
                waiting[source] += 1

    def urgency(node_id: int) -> tuple[int, bool, int]:
        return -stored_bytes[node_id], graph[node_id].op != "input", -node_id

    ready = [(urgency(i), i) for i in holders if not waiting[i]]
    # An opaque op of several results is no tensor itself; it only passes the order on.
    ready += [((0, False, 0), n.id) for n in graph if not n.is_tensor and not waiting[n.id] and reads[n.id]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, node_id = heapq.heappop(ready)
        if graph[node_id].is_tensor:
            order.append(node_id)
        for source in {r.source for r in reads[node_id]}:
            waiting[source] -= 1
            if not waiting[source]:
                heapq.heappush(ready, (urgency(source), source))
    return order


class _Loops:
    """Union-find over the root dims of every node; a class knows which reductions it runs before and after."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        reads = find_reads(graph)
        self.first: list[int] = []  # per node, the key of its root dim 0
        self.out: list[tuple[int, ...]] = []  # per node, per result dim, the key
        owner: list[int] = []
        for node in graph:
            roots, results = self._root_dims(node, reads[node.id])
            self.first.append(len(owner))
            self.out.append(tuple(len(owner) + d for d in results))
            owner.extend([node.id] * roots)
        self.parent = list(range(len(owner)))
        self.readers: list[list[int]] = [[] for _ in owner]
        for node in graph:
            if _takes_part(graph, node):
                for read in reads[node.id]:
                    self._add_reader(node, read)
        bits = {r: 1 << i for i, r in enumerate(n.id for n in graph if is_reduction(n))}
        self.before = self._before(bits)
        self.after = [self._after(bits, node_id) for node_id in owner]
        # Per reduction, those that pass over its rows as it does (not across them), and which of them wait for it.
        kept = [domain_map(graph).varies[r] for r in bits]
        closed = find_reductions(graph).reduced
        self.alike = [sum(1 << j for j, other in enumerate(closed) if not other & mine) for mine in kept]
        self.followers = [0] * len(bits)
        for key in range(len(owner)):
            self._note_followers(key)
        self.forbidden: list[tuple[int, int]] = []

    @staticmethod
    def _root_dims(node: Node, reads: tuple[Read, ...]) -> tuple[int, tuple[int, ...]]:
        """The number of root dims, and the root dim of every result dim: a reduction iterates over its operand."""
        if is_reduction(node):
            rank = len(reads[0].dims)
            return rank, kept_dims(node, rank)
        rank = node.tensor.rank if node.is_tensor else 0
        return rank, tuple(range(rank))

    def _add_reader(self, node: Node, read: Read) -> None:
        seen = look_through(node, read) if is_structure(node) else read
        for position, dim in enumerate(seen.dims):
            if dim is not None:
                key = self.first[node.id] + position
                readers = self.readers[self.out[read.source][dim]]
                if key not in readers:
                    readers.append(key)

    def _before(self, bits: dict[int, int]) -> list[int]:
        """Per key, the reductions that close the loop it maps down to."""
        masks = [0] * len(self.parent)
        for node_id, bit in bits.items():
            for dim in self.graph[node_id].attribute("dims"):
                masks[self.first[node_id] + dim] = bit
        for key in reversed(range(len(masks))):
            for reader in self.readers[key]:
                masks[key] |= masks[reader]
        return masks

    def _after(self, bits: dict[int, int], node_id: int) -> int:
        """The reductions a node depends on."""
        above = upstream(self.graph)[node_id]
        return sum(bit for r, bit in bits.items() if r != node_id and above >> r & 1)

    def _note_followers(self, key: int) -> None:
        for reduction in members(self.after[key]):
            self.followers[reduction] |= self.before[key] & self.alike[reduction]

    def _awaited(self, reductions: int) -> int:
        """``reductions`` and all that come after them, one loop waiting for another."""
        waiting, seen = reductions, 0
        while waiting:
            seen |= waiting
            reached = 0
            for reduction in members(waiting):
                reached |= self.followers[reduction]
            waiting = reached & ~seen
        return seen

    def find(self, key: int) -> int:
        while self.parent[key] != key:
            self.parent[key] = self.parent[self.parent[key]]
            key = self.parent[key]
        return key

    def join(self, node_id: int, dim: int) -> bool:
        """Join a result dim with the dims that read it; False (and nothing joined) if they conflict."""
        key = self.out[node_id][dim]
        readers = self.readers[key]
        if len(readers) > 1 and self._conflict(readers):
            self.forbidden += [(key, reader) for reader in readers]
            return False
        for reader in readers:
            self._merge(key, reader)
        return True

    def _conflict(self, keys: Sequence[int]) -> bool:
        roots = [self.find(k) for k in keys]
        for i, a in enumerate(roots):
            awaited = self._awaited(self.before[a])
            if any(i != j and awaited & self.after[b] for j, b in enumerate(roots)):
                return True
        joined = set(roots)
        return any(
            (x := self.find(a)) != (y := self.find(b)) and x in joined and y in joined for a, b in self.forbidden
        )

    def _merge(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[b] = a
            self.before[a] |= self.before[b]
            self.after[a] |= self.after[b]
            self._note_followers(a)
