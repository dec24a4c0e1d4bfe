# SPDX-License-Identifier: Apache-2.0
"""Two dependent reductions that can share one pass over the data and one exchange between threads.

* A maximum and a sum of exponentials shifted by it (softmax): each thread shifts by its own maximum and the sums are
  rescaled when they meet (online normaliser calculation, Milakov and Gimelshein 2018).
* A sum and the sum of squares about the mean (variance): each thread takes the moments of its own elements and they
  are merged (Chan, Golub and LeVeque 1983).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import attrs

from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph, Node


@attrs.frozen
class Joint:
    """A pair of reductions.

    Attributes:
        first: the maximum, or the sum.
        second: the sum of exponentials, or of squares.
        source: the value that the first reduces.
        inner: the exponential, or the mean.
    """

    first: int
    second: int
    source: int
    inner: int


@functools.lru_cache(maxsize=256)
def find_shifted_sums(graph: Graph) -> tuple[Joint, ...]:
    """The pairs of a maximum and a sum of exponentials."""
    found = (_shifted(graph, node) for node in graph if node.op == "sum")
    return tuple(pair for pair in found if pair is not None)


@functools.lru_cache(maxsize=256)
def find_moments(graph: Graph) -> tuple[Joint, ...]:
    """The pairs of a sum and a sum of squares about the mean."""
    found = (_moments(graph, node) for node in graph if node.op == "sum")
    return tuple(pair for pair in found if pair is not None)


def rounds(graph: Graph, joints: Iterable[Joint]) -> list[list[int | Joint]]:
    """What each exchange between threads reduces: single reductions by node and the pairs given, early as possible."""
    by_second = {joint.second: joint for joint in joints}
    firsts = {joint.first for joint in by_second.values()}
    reductions = find_reductions(graph)
    found: dict[int, list[int | Joint]] = {}
    for node_id in reductions.nodes:
        if node_id in firsts:
            continue
        joint = by_second.get(node_id)
        level = reductions.stage[node_id] if joint is None else reductions.stage[joint.first]
        found.setdefault(level, []).append(node_id if joint is None else joint)
    return [found[level] for level in sorted(found)]


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


def _moments(graph: Graph, squares: Node) -> Joint | None:
    square = _plain(graph, squares.inputs[0])
    if square.op != "mul" or square.inputs[0] != square.inputs[1]:
        return None
    centred = _plain(graph, square.inputs[0])
    if centred.op != "sub" or not all(graph[i].is_tensor for i in centred.inputs):
        return None
    mean = _plain(graph, centred.inputs[1])
    if mean.op != "div" or not graph[mean.inputs[0]].is_tensor or graph[mean.inputs[1]].is_tensor:
        return None
    total = _plain(graph, mean.inputs[0])
    if total.op != "sum" or _plain(graph, total.inputs[0]) != _plain(graph, centred.inputs[0]):
        return None
    if find_reductions(graph).stage[squares.id] != find_reductions(graph).stage[total.id] + 1:
        return None
    return Joint(total.id, squares.id, total.inputs[0], mean.id)
