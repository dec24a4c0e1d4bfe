# SPDX-License-Identifier: Apache-2.0
"""Sums that pick one element of a row of an argument (the target's logit in cross entropy): loaded, not summed.

``sum(where(positions == index, x, 0))`` over a row, with an index a row has one of, is ``x[index]``, or 0 where the row
has no such position.
"""

from __future__ import annotations

import attrs

from fusedsl.analysis.domains import domain_map
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.emit import Emitter, Variable
from fusedsl.schedulers.space import IterationSpace
from fusedsl.schedulers.text import dtype_marker


@attrs.frozen
class Pick:
    """A sum that picks an element.

    Attributes:
        sum: the reduction's node.
        source: the input whose element it is.
        index: the position, an integer a row has one of.
    """

    sum: int
    source: int
    index: int


def find_picks(space: IterationSpace) -> tuple[Pick, ...]:
    """The picks of rows of one loop. None of a kernel that writes rows: an argument could be what it writes."""
    graph = space.problem.graph
    if len(space.reduced) != 1 or any(space.strides[i][space.reduced[0]] for i in graph.outputs):
        return ()
    found = [_pick(space, node) for node in graph if node.op == "sum"]
    return tuple(pick for pick in found if pick is not None)


def _pick(space: IterationSpace, total: Node) -> Pick | None:
    graph = space.problem.graph
    chosen = _behind(graph, total.inputs[0], "reindex")
    if chosen.op != "where" or not all(graph[i].is_tensor for i in chosen.inputs[:2]):
        return None
    test, zero = _behind(graph, chosen.inputs[0], "reindex"), graph[chosen.inputs[2]]
    source = _behind(graph, chosen.inputs[1], "reindex", "cast")
    if test.op != "eq" or source.op != "input" or zero.op != "constant" or zero.attribute("value") != 0:
        return None
    if not all(space.strides[source.id]) or not all(graph[i].is_tensor for i in test.inputs):
        return None
    axis, varies = space.axes[space.reduced[0]], domain_map(graph).varies
    sides = [_behind(graph, i, "reindex") for i in test.inputs]
    for positions, index in (sides, sides[::-1]):
        along = positions.op == "iota" and set(axis.classes) == set(varies[positions.id])
        if along and not set(axis.classes) & set(varies[index.id]) and index.op != "iota":
            return Pick(total.id, source.id, index.id)
    return None


def _behind(graph: Graph, node_id: int, *ops: str) -> Node:
    """The node behind some that move or widen values; not behind a cast that rounds."""
    node = graph[node_id]
    while node.op in ops and not (node.op == "cast" and node.attribute("explicit")):
        node = graph[node.inputs[0]]
    return node


def load_pick(e: Emitter, pick: Pick) -> None:
    """Load the element; from here on the sum is known."""
    (last,) = e.space.reduced
    node = e.graph[pick.sum]
    index = e.value(pick.index).text
    e.comment(node)
    column = e.index.pop(last, None)
    begin, stride = e.offset(pick.source), e.stride(pick.source, last)
    if column is not None:
        e.index[last] = column
    place, valid = e.fresh(f"{node.name}_at"), e.fresh(f"{node.name}_valid")
    e.line(f"{place} = cast({index}, int64)")
    e.line(f"{valid} = ({place} >= 0) & ({place} < {e.extent(last)})")
    at = place if stride == "1" else f"{place} * {stride}"
    name, dtype = e.fresh(f"{node.name}_picked"), e.graph[pick.source].tensor.dtype
    e.line(f"{name} = gather({e.pointer(pick.source)}, {at} + {begin}, {valid}, {e.fill_text(pick.source)})")
    # Converted where it is used: nothing waits for the element here.
    wide = compute_dtype(e.graph[node.inputs[0]].tensor.dtype)
    e.define(pick.sum, Variable(name if dtype == wide else f"cast({name}, {dtype_marker(wide)})"))
