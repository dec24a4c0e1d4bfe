# SPDX-License-Identifier: Apache-2.0
"""Splits a graph into segments that something can run as a whole.

The whole graph is tried first. Otherwise every op starts as its own segment and neighbours are merged while a scheduler
takes the union and the order stays acyclic. Broadcasts, factories and casts of inputs belong to no segment: each segment
that needs one has its own copy, so what crosses a boundary is the narrow, unexpanded value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import ScalarType


@attrs.frozen
class Subgraph:
    """A part of a graph as a graph of its own.

    Attributes:
        graph: inputs are the values it reads, scalar inputs the host scalars it needs.
        origin: per node of ``graph``, the node of the whole graph it stands for.
    """

    graph: Graph
    origin: tuple[int, ...]


Accept = Callable[[Subgraph], bool]


def is_copied(node: Node) -> bool:
    """True for nodes that segments copy instead of sharing: broadcasts and other structure, factories, casts to wider types."""
    kind = OPS[node.op].kind
    return kind in (Kind.REINDEX, Kind.FACTORY) or (kind is Kind.CAST and not node.attribute("explicit"))


def is_view(graph: Graph, node_id: int) -> bool:
    """True for a chain of ``reindex`` from an input: eager PyTorch returns a view of it."""
    node = graph[node_id]
    while node.op == "reindex":
        node = graph[node.inputs[0]]
    return node.op == "input" and node.id != node_id


@functools.lru_cache(maxsize=1024)
def extract(graph: Graph, members: tuple[int, ...]) -> Subgraph:
    """The subgraph that computes ``members`` and the copied nodes they need; its outputs are what others read."""
    inside = set(members)
    needed: set[int] = set()
    stack = list(inside)
    while stack:
        current = stack.pop()
        if current in needed:
            continue
        needed.add(current)
        node = graph[current]
        stack.extend(i for i in node.inputs if _expands(graph, inside, i))
    leaves = {i for n in needed for i in graph[n].inputs if i not in needed}
    users = graph.users()
    read_outside = {
        m for m in inside if any(u not in inside and not _only_copied(graph, users, u, inside) for u in users[m])
    }
    outputs = [m for m in sorted(inside) if m in read_outside or m in graph.outputs]
    nodes: list[Node] = []
    origin: list[int] = []
    renumber: dict[int, int] = {}
    inputs: list[int] = []
    scalars: list[int] = []
    for old in sorted(needed | leaves):
        node = graph[old]
        new = len(nodes)
        renumber[old] = new
        origin.append(old)
        if old in needed:
            nodes.append(attrs.evolve(node, id=new, inputs=tuple(renumber[i] for i in node.inputs)))
        elif node.op == "constant":
            nodes.append(attrs.evolve(node, id=new))
        elif isinstance(node.type, ScalarType):
            scalars.append(new)
            index = (("index", len(scalars) - 1),)
            nodes.append(attrs.evolve(node, id=new, op="scalar_input", inputs=(), attributes=index))
        else:
            inputs.append(new)
            index = (("index", len(inputs) - 1),)
            nodes.append(attrs.evolve(node, id=new, op="input", inputs=(), attributes=index))
    part = Graph(graph.name, tuple(nodes), tuple(inputs), tuple(scalars), tuple(renumber[i] for i in outputs))
    return Subgraph(part, tuple(origin))


def _expands(graph: Graph, inside: set[int], node_id: int) -> bool:
    return node_id in inside or is_copied(graph[node_id])


def _only_copied(graph: Graph, users: dict[int, tuple[int, ...]], node_id: int, inside: set[int]) -> bool:
    """True if nothing outside needs what ``node_id`` reads: a size, or a copied node whose every reader is inside."""
    if graph[node_id].op == "size":
        return True
    if not is_copied(graph[node_id]) or node_id in graph.outputs:
        return False
    return all(u in inside or _only_copied(graph, users, u, inside) for u in users[node_id])


def compute_nodes(graph: Graph) -> list[int]:
    """Nodes that must be run: neither arguments, host scalars, views of inputs nor copied nodes nobody outputs."""
    found = []
    for node in graph:
        kind = OPS[node.op].kind
        if kind in (Kind.INPUT, Kind.SCALAR) or is_view(graph, node.id):
            continue
        if not node.is_tensor and kind is not Kind.OPAQUE:
            continue
        if is_copied(node) and node.id not in graph.outputs:
            continue
        found.append(node.id)
    return found


def find_segments(graph: Graph, accept: Accept) -> list[tuple[int, ...]]:
    """Groups of node ids in an order they can be run in; each is accepted, or is a single op."""
    nodes = compute_nodes(graph)
    if not nodes:
        return []
    opaque = [n for n in nodes if OPS[graph[n].op].kind is Kind.OPAQUE]
    if not opaque and accept(extract(graph, tuple(nodes))):
        return [tuple(nodes)]
    return _merge(graph, nodes, set(opaque), accept)


def _merge(graph: Graph, nodes: list[int], opaque: set[int], accept: Accept) -> list[tuple[int, ...]]:
    group_of = {n: n for n in nodes}
    groups = {n: (n,) for n in nodes}
    reads = {n: _reads(graph, n, set(nodes)) for n in nodes}
    refused: set[frozenset[int]] = set()

    def edges() -> dict[int, set[int]]:
        found: dict[int, set[int]] = {g: set() for g in groups}
        for n in nodes:
            found[group_of[n]].update(group_of[r] for r in reads[n] if group_of[r] != group_of[n])
        return found

    def reaches(before: dict[int, set[int]], start: int, goal: int) -> bool:
        """True if ``start`` depends on ``goal`` through a third group."""
        stack = [g for g in before[start] if g != goal]
        seen = set(stack)
        while stack:
            for g in before[stack.pop()]:
                if g == goal:
                    return True
                if g not in seen:
                    seen.add(g)
                    stack.append(g)
        return False

    def try_merge(a: int, b: int, before: dict[int, set[int]]) -> bool:
        union = tuple(sorted((*groups[a], *groups[b])))
        if opaque & set(union) or frozenset(union) in refused or reaches(before, b, a) or reaches(before, a, b):
            return False
        if not accept(extract(graph, union)):
            refused.add(frozenset(union))
            return False
        groups[a] = union
        for n in groups.pop(b):
            group_of[n] = a
        return True

    def sweep(pairs: Callable[[dict[int, set[int]]], list[tuple[int, int]]]) -> None:
        changed = True
        while changed:
            changed = False
            before = edges()
            for a, b in pairs(before):
                if a in groups and b in groups and try_merge(a, b, before):
                    changed = True
                    before = edges()

    sweep(lambda before: [(p, c) for c in sorted(before) for p in sorted(before[c], reverse=True)])
    sweep(lambda before: _siblings(graph, groups, before))
    before = edges()
    order: list[int] = []
    while len(order) < len(groups):
        ready = [g for g in groups if g not in order and before[g] <= set(order)]
        order.append(min(ready, key=lambda g: groups[g][0]))
    return [groups[g] for g in order]


def _reads(graph: Graph, node_id: int, nodes: set[int]) -> set[int]:
    """The compute nodes a node reads, directly or through copied nodes and host scalars."""
    found: set[int] = set()
    stack = list(graph[node_id].inputs)
    while stack:
        current = stack.pop()
        if current in nodes and not (is_copied(graph[current]) and current != node_id):
            found.add(current)
        else:
            stack.extend(graph[current].inputs)
    return found


def _siblings(graph: Graph, groups: dict[int, tuple[int, ...]], before: dict[int, set[int]]) -> list[tuple[int, int]]:
    """Pairs of groups that read a common value."""
    sources = {g: {i for n in members for i in graph[n].inputs if graph[i].is_tensor} for g, members in groups.items()}
    ids = sorted(groups)
    return [(a, b) for i, a in enumerate(ids) for b in ids[i + 1 :] if sources[a] & sources[b] and a not in before[b]]
