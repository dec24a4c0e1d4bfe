# SPDX-License-Identifier: Apache-2.0
"""Splits a graph into segments that something can run as a whole.

The whole graph is tried first; what nothing takes whole is split and merged again (``merge.py``). Broadcasts, factories
and casts to wider types belong to no segment: each segment that needs one has its own copy, so what crosses a boundary
is the narrow, unexpanded value.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.remember import remember
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


#: Whether something can run a part of the graph as a whole.
Accept = Callable[[Subgraph], bool]


def is_copied(graph: Graph, node_id: int) -> bool:
    """True for nodes that segments copy instead of sharing: structure, factories and casts to wider types."""
    node = graph[node_id]
    kind = OPS[node.op].kind
    if kind is Kind.CAST:
        return node.tensor.dtype.itemsize > graph[node.inputs[0]].tensor.dtype.itemsize
    return kind in (Kind.REINDEX, Kind.FACTORY)


def is_view(graph: Graph, node_id: int) -> bool:
    """True for a chain of ``reindex`` from an input: eager PyTorch returns a view of it."""
    node = graph[node_id]
    while node.op == "reindex":
        node = graph[node.inputs[0]]
    return node.op == "input" and node.id != node_id


@remember(maxsize=1024)
def extract(graph: Graph, members: tuple[int, ...]) -> Subgraph:
    """The subgraph that computes ``members`` and the copied nodes they need; it gives what others read."""
    inside = set(members)
    needed: set[int] = set()
    stack = list(inside)
    while stack:
        current = stack.pop()
        if current not in needed:
            needed.add(current)
            stack.extend(i for i in graph[current].inputs if i in inside or is_copied(graph, i))
    leaves = {i for n in needed for i in graph[n].inputs if i not in needed}
    outputs = _read_elsewhere(graph, inside)
    nodes: list[Node] = []
    renumber: dict[int, int] = {}
    inputs: list[int] = []
    scalars: list[int] = []
    origin = tuple(sorted(needed | leaves))
    for new, old in enumerate(origin):
        node = graph[old]
        renumber[old] = new
        if old in needed:
            nodes.append(attrs.evolve(node, id=new, inputs=tuple(renumber[i] for i in node.inputs)))
        elif node.op == "constant":
            nodes.append(attrs.evolve(node, id=new))
        else:
            is_scalar = isinstance(node.type, ScalarType)
            arguments, op = (scalars, "scalar_input") if is_scalar else (inputs, "input")
            index = (("index", len(arguments)),)
            arguments.append(new)
            nodes.append(attrs.evolve(node, id=new, op=op, inputs=(), attributes=index))
    part = Graph(graph.name, tuple(nodes), tuple(inputs), tuple(scalars), tuple(renumber[i] for i in outputs))
    return Subgraph(part, origin)


def _read_elsewhere(graph: Graph, inside: set[int]) -> tuple[int, ...]:
    """The members that the rest of the graph or the caller reads, in order."""
    users = readers(graph)

    def only_inside(node_id: int) -> bool:
        """True if nothing outside needs what ``node_id`` reads: a size, or a copied node that only members need."""
        if graph[node_id].op == "size":
            return True
        if not is_copied(graph, node_id) or node_id in graph.outputs:
            return False
        return all(u in inside or only_inside(u) for u in users[node_id])

    def read(member: int) -> bool:
        """True if something outside reads the member, or copies a member that reads it."""
        copied = (u for u in users[member] if u in inside and is_copied(graph, u))
        return any(u not in inside and not only_inside(u) for u in users[member]) or any(map(read, copied))

    return tuple(m for m in sorted(inside) if m in graph.outputs or read(m))


@remember(maxsize=64)
def readers(graph: Graph) -> dict[int, tuple[int, ...]]:
    """``Graph.users``, remembered."""
    return graph.users()


def compute_nodes(graph: Graph) -> list[int]:
    """Nodes that must be run: neither arguments, host scalars, views of inputs nor copied nodes nobody outputs."""
    found = []
    for node in graph:
        kind = OPS[node.op].kind
        if kind in (Kind.INPUT, Kind.SCALAR) or is_view(graph, node.id):
            continue
        if not node.is_tensor and kind is not Kind.OPAQUE:
            continue
        if node.id in graph.outputs or not is_copied(graph, node.id):
            found.append(node.id)
    return found


def computed_sources(graph: Graph, node_id: int, computed: frozenset[int]) -> frozenset[int]:
    """The nodes among ``computed`` that a node reads, directly or through copied nodes and host scalars."""
    found: set[int] = set()
    stack = list(graph[node_id].inputs)
    while stack:
        current = stack.pop()
        if current in computed and not is_copied(graph, current):
            found.add(current)
        else:
            stack.extend(graph[current].inputs)
    return frozenset(found)
