# SPDX-License-Identifier: Apache-2.0
"""A part of a graph with the arguments of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fusedsl.graph.graph import Graph, Node


def prune(graph: Graph, outputs: Sequence[int]) -> Graph:
    """The graph that computes only the nodes ``outputs``. All arguments stay: sizes are read from them."""
    wanted = {*graph.inputs, *graph.scalars}
    stack = list(outputs)
    while stack:
        node_id = stack.pop()
        if node_id not in wanted:
            wanted.add(node_id)
            stack += graph[node_id].inputs
    places: dict[int, int] = {}
    nodes: list[Node] = []
    for node in graph:
        if node.id in wanted:
            places[node.id] = len(nodes)
            nodes.append(attrs.evolve(node, id=len(nodes), inputs=tuple(places[i] for i in node.inputs)))
    inputs, scalars = tuple(places[i] for i in graph.inputs), tuple(places[i] for i in graph.scalars)
    return Graph(graph.name, tuple(nodes), inputs, scalars, tuple(places[i] for i in outputs))
