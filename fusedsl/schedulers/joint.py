# SPDX-License-Identifier: Apache-2.0
"""Two dependent reductions of a row that can share one exchange between threads.

* A maximum and a sum of exponentials shifted by it (softmax): each thread shifts by its own maximum and the sums are
  rescaled when they meet (online normaliser calculation, Milakov and Gimelshein 2018).
* A sum and the sum of squares about the mean: each thread takes the moments of its own elements about a pilot in one
  pass, and they are merged (Chan, Golub and LeVeque 1983). Threads must hold equally many elements.
"""

from __future__ import annotations

import functools
from typing import Literal

import attrs

from fusedsl.graph.graph import Graph, Node


@attrs.frozen
class Joint:
    """A pair of reductions.

    Attributes:
        kind: "shifted" or "moments".
        first: the maximum, or the sum.
        second: the sum of exponentials, or of squares.
        source: the value the first reduces.
        inner: "shifted": the exponential; "moments": the mean.
    """

    kind: Literal["shifted", "moments"]
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
            pair = _shifted(graph, node) or _moments(graph, node)
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
    return Joint("shifted", maximum.id, total.id, maximum.inputs[0], exponential.id)


def _moments(graph: Graph, squares: Node) -> Joint | None:
    square = _plain(graph, squares.inputs[0])
    if square.op != "mul" or square.inputs[0] != square.inputs[1]:
        return None
    centred = _plain(graph, square.inputs[0])
    if centred.op != "sub" or not all(graph[i].is_tensor for i in centred.inputs):
        return None
    mean = _plain(graph, centred.inputs[1])
    if mean.op != "div" or not graph[mean.inputs[0]].is_tensor:
        return None
    total = _plain(graph, mean.inputs[0])
    if total.op != "sum" or _plain(graph, total.inputs[0]) != _plain(graph, centred.inputs[0]):
        return None
    return Joint("moments", total.id, squares.id, total.inputs[0], mean.id)
