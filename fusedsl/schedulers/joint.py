# SPDX-License-Identifier: Apache-2.0
"""Two dependent reductions of a row that can share one exchange between threads.

A maximum and a sum of exponentials shifted by it (softmax): each thread shifts by its own maximum and the sums are
rescaled when they meet (online normaliser calculation, Milakov and Gimelshein 2018).
"""

from __future__ import annotations

import functools

import attrs

from fusedsl.graph.graph import Graph, Node


@attrs.frozen
class Joint:
    """A pair of reductions.

    Attributes:
        first: the maximum.
        second: the sum of exponentials.
        source: the value the maximum is taken of.
        inner: the exponential.
    """

    first: int
    second: int
    source: int
    inner: int


@functools.lru_cache(maxsize=256)
def find_joint(graph: Graph) -> tuple[Joint, ...]:
    """The pairs of a graph, by their second reduction."""
    found = []
    for node in graph:
        if node.op == "sum":
            pair = _shifted(graph, node)
            if pair is not None:
                found.append(pair)
    return tuple(found)


def _plain(graph: Graph, node_id: int) -> Node:
    """The value behind reindex nodes and casts that the kernel does not round at."""
    node = graph[node_id]
    while node.op == "reindex" or (node.op == "cast" and not node.attribute("explicit")):
        node = graph[node.inputs[0]]
    return node


def _shifted(graph: Graph, total: Node) -> Joint | None:
    exponential = _plain(graph, total.inputs[0])
    if exponential.op != "exp":
        return None
    difference = _plain(graph, exponential.inputs[0])
    if difference.op != "sub" or not all(graph[i].is_tensor for i in difference.inputs):
        return None
    maximum = _plain(graph, difference.inputs[1])
    source = difference.inputs[0]
    if maximum.op != "amax" or _plain(graph, maximum.inputs[0]) != _plain(graph, source):
        return None
    return Joint(maximum.id, total.id, maximum.inputs[0], exponential.id)
