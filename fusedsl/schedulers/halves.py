# SPDX-License-Identifier: Apache-2.0
"""A graph whose reductions close the rows and, beside them, all rows: cut into the work on rows and the outer results.

The outer reductions (weight and bias gradients) must only leave: what follows one reads nothing of a row and nothing of
another.
"""

from __future__ import annotations

import functools

import attrs

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.types import Symbol, TensorType, compute_dtype


@attrs.frozen
class OuterSum:
    """An outer reduction over partial sums (its first input, with a leading dim of parts), and what follows it.

    ``origin`` is, per node of ``graph``, the node of the whole graph; for the partial sums the reduction itself.
    """

    graph: Graph
    origin: tuple[int, ...]


@attrs.frozen
class Halves:
    """The work on rows, and one graph an outer reduction.

    Attributes:
        rows: the graph without the outer reductions and what follows them; its outputs are the graph's that remain,
            then the values that the outer reductions add up.
        stored: how many outputs of ``rows`` are outputs of the graph.
        row_origin: per node of ``rows``, the node of the graph.
        sums: the outer reductions, in the order of the last outputs of ``rows``.
    """

    rows: Graph
    stored: int
    row_origin: tuple[int, ...]
    sums: tuple[OuterSum, ...]


@functools.lru_cache(maxsize=256)
def cut(graph: Graph) -> Halves | None:
    """The halves of a graph, or None if it is not of that form."""
    found = find_reductions(graph)
    kinds = list(dict.fromkeys(found.reduced))
    if len(kinds) != 2 or kinds[0] & kinds[1]:
        return None
    for inner, outer in (kinds, kinds[::-1]):
        first = [n for n, r in zip(found.nodes, found.reduced, strict=True) if r == outer]
        after = {n: _after(graph, n) for n in first}
        apart = sum(map(len, after.values())) == len(set().union(*after.values()))
        if apart and all(_only_leaves(graph, n, after[n], inner) for n in first):
            return _halves(graph, after)
    return None


def _after(graph: Graph, first: int) -> set[int]:
    """A node and everything that depends on it."""
    found = {first}
    for node in graph:
        if any(i in found for i in node.inputs):
            found.add(node.id)
    return found


def _only_leaves(graph: Graph, first: int, after: set[int], inner: frozenset[int]) -> bool:
    """An outer sum of full values; what follows varies over the row at most and reads nothing else of it."""
    domains = domain_map(graph)
    source = graph[first].inputs[0]
    if graph[first].op != "sum" or not inner <= set(domains.classes(source)):
        return False
    for node_id in after:
        if not set(domains.classes(node_id)) <= inner:
            return False
        read = () if node_id == first else graph[node_id].inputs
        if not all(i in after or graph[i].op == "input" or not graph[i].is_tensor for i in read):
            return False
    return True


def _halves(graph: Graph, after: dict[int, set[int]]) -> Halves:
    gone = set().union(*after.values())
    kept = [node for node in graph if node.id not in gone]
    place = {node.id: i for i, node in enumerate(kept)}
    nodes = tuple(attrs.evolve(n, id=place[n.id], inputs=tuple(place[i] for i in n.inputs)) for n in kept)
    stored = [place[o] for o in graph.outputs if o not in gone]
    targets = [place[graph[n].inputs[0]] for n in after]
    rows = Graph(graph.name, nodes, *_arguments(nodes), (*stored, *targets))
    sums = tuple(_outer_sum(graph, first, members) for first, members in after.items())
    return Halves(rows, len(stored), tuple(n.id for n in kept), sums)


def _arguments(nodes: tuple[Node, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(n.id for n in nodes if n.op == "input"), tuple(n.id for n in nodes if n.op == "scalar_input")


def _outer_sum(graph: Graph, first: int, after: set[int]) -> OuterSum:
    """The sum over partial results and what follows it."""
    reduction = graph[first]
    dtype = compute_dtype(graph[reduction.inputs[0]].tensor.dtype)
    type_ = TensorType(dtype, (Symbol("parts", 2), *reduction.tensor.shape))
    nodes = [Node(0, "input", (), type_, (("index", 0),), f"{reduction.name}_partial")]
    origin = [first]
    place: dict[int, int] = {}
    leaves = {i for n in after if n != first for i in graph[n].inputs if i not in after}
    for node in graph:
        if node.id == first:
            made = attrs.evolve(node, inputs=(0,), attributes=(("dims", (0,)),))
        elif node.id in after:
            made = attrs.evolve(node, inputs=tuple(place[i] for i in node.inputs))
        elif node.id not in leaves:
            continue
        elif node.is_tensor or node.op == "constant":
            made = attrs.evolve(node, inputs=())
        else:
            made = attrs.evolve(node, op="scalar_input", inputs=(), attributes=(("index", 0),))
        place[node.id] = len(nodes)
        nodes.append(attrs.evolve(made, id=len(nodes)))
        origin.append(node.id)
    outputs = tuple(place[o] for o in graph.outputs if o in after)
    part = Graph(f"{graph.name}_{reduction.name.strip('_')}", tuple(nodes), *_arguments(tuple(nodes)), outputs)
    return OuterSum(part, tuple(origin))
