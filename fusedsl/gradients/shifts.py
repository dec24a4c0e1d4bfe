# SPDX-License-Identifier: Apache-2.0
"""Finds maxima that only keep a computation in range: no output depends on them, so their gradient is exactly zero.

``softmax``, ``log_softmax`` and ``logsumexp`` subtract a maximum m and cancel it later. The analysis takes m as a free
variable and follows what a change of it does: a value is *moved* by ``c * m``, or *scaled* by ``exp(c * m)``, or does
not change, or changes in another way. If no output changes, nothing flows back through m. What is not covered counts
as a change.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Literal

import attrs

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.host import host_function
from fusedsl.graph.types import Extent

#: For every dim of a value, the dim of m that it runs along, or None.
Alignment = tuple["int | None", ...]


@attrs.frozen
class Change:
    """How a value changes with m; "unknown" has no meaningful rate."""

    kind: Literal["moved", "scaled", "unknown"]
    rate: float = 0.0
    along: Alignment = ()

    def at(self, rate: float, scale: float = 0.0) -> Change | None:
        """The same kind of change at another rate; None for no change, measured by what the rate is a difference of."""
        return None if abs(rate) <= 1e-9 * max(scale, 1e-3) else attrs.evolve(self, rate=rate)


_UNKNOWN = Change("unknown")


def free_shifts(graph: Graph) -> frozenset[int]:
    """Nodes that no output depends on: maxima and minima, and selections that guard them against infinities."""
    found = set()
    for node in graph:
        if _is_candidate(graph, node) and not any(_changes(graph, node.id).get(i) for i in graph.outputs):
            found.add(node.id)
    return frozenset(found)


def _is_candidate(graph: Graph, node: Node) -> bool:
    if node.op in ("amax", "amin"):
        return node.tensor.dtype.is_floating_point
    return node.op == "where" and any(_is_extremum(graph, i) for i in node.inputs[1:])


def _is_extremum(graph: Graph, node_id: int) -> bool:
    node = graph[node_id]
    while node.op in ("reindex", "cast"):
        node = graph[node.inputs[0]]
    return node.op in ("amax", "amin")


def _changes(graph: Graph, start: int) -> dict[int, Change | None]:
    """Per node that depends on node ``start``, how it changes with it."""
    shape = graph[start].tensor.shape
    along = tuple(None if e == 1 else d for d, e in enumerate(shape))
    changes: dict[int, Change | None] = {start: Change("moved", 1.0, along)}
    for node in graph.nodes[start + 1 :]:
        operands = [changes.get(i) for i in node.inputs]
        if any(operands):
            changes[node.id] = _change(graph, node, operands)
    return changes


def _change(graph: Graph, node: Node, operands: Sequence[Change | None]) -> Change | None:
    if node.is_tensor and not node.tensor.dtype.is_floating_point:
        return None  # piecewise constant
    if _UNKNOWN in operands or not node.is_tensor:
        return None if node.op == "size" else _UNKNOWN
    match node.op:
        case "cast" | "clone" | "contiguous":
            return operands[0]
        case "reindex":
            return _reindexed(graph, node, operands[0])
        case "sum" | "amax" | "amin":
            return _reduced(graph, node, operands[0], node.attribute("dims"))
        case "gather":
            return _reduced(graph, node, operands[0], (node.attribute("dim"),))
        case "add" | "sub":
            return _added(node, operands)
        case "mul" | "div":
            return _multiplied(graph, node, operands)
        case "where":
            return operands[1] if operands[1] == operands[2] else _UNKNOWN
    return _mapped(node.op, operands[0])


_ROOTS = {"neg": 1.0, "abs": 1.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}


def _mapped(op: str, change: Change | None) -> Change | None:
    match op, change:
        case "neg", Change("moved", rate):
            return change.at(-rate)
        case "exp", Change("moved", rate, along):
            return Change("scaled", rate, along)
        case "exp2", Change("moved", rate, along):
            return Change("scaled", rate * math.log(2), along)
        case "log", Change("scaled", rate, along):
            return Change("moved", rate, along)
        case "log2", Change("scaled", rate, along):
            return Change("moved", rate / math.log(2), along)
        case _, Change("scaled", rate) if op in _ROOTS:
            return change.at(rate * _ROOTS[op])
    return _UNKNOWN


def _reindexed(graph: Graph, node: Node, change: Change | None) -> Change | None:
    assert change is not None
    source = graph[node.inputs[0]].tensor.shape
    along = tuple(None if d is None or source[d] == 1 else change.along[d] for d in node.attribute("dims"))
    return attrs.evolve(change, along=along)


def _reduced(graph: Graph, node: Node, change: Change | None, dims: Sequence[int]) -> Change | None:
    assert change is not None
    if any(change.along[d] is not None for d in dims):
        return _UNKNOWN
    if node.op == "sum" and change.kind == "moved":
        shape = graph[node.inputs[0]].tensor.shape
        change = attrs.evolve(change, rate=change.rate * math.prod(_generic_extent(shape[d]) for d in dims))
    return attrs.evolve(change, along=tuple(a for d, a in enumerate(change.along) if d not in dims))


def _added(node: Node, operands: Sequence[Change | None]) -> Change | None:
    a, b = operands
    if a is not None and b is not None:
        if a.kind != b.kind or a.along != b.along:
            return _UNKNOWN
        if a.kind == "moved":
            return a.at(a.rate + b.rate if node.op == "add" else a.rate - b.rate, abs(a.rate) + abs(b.rate))
        return a if a.at(a.rate - b.rate, abs(a.rate)) is None else _UNKNOWN
    only = a or b
    assert only is not None
    if only.kind == "scaled":
        return _UNKNOWN
    return only.at(-only.rate) if node.op == "sub" and a is None else only


def _multiplied(graph: Graph, node: Node, operands: Sequence[Change | None]) -> Change | None:
    a, b = operands
    sign = 1.0 if node.op == "mul" else -1.0
    if a is not None and b is not None:
        if a.kind != "scaled" or b.kind != "scaled" or a.along != b.along:
            return _UNKNOWN
        return a.at(a.rate + sign * b.rate, abs(a.rate) + abs(b.rate))
    only = a or b
    assert only is not None
    if only.kind == "scaled":
        return only if a is not None else only.at(sign * only.rate)
    other = graph[node.inputs[1 if a is not None else 0]]
    if other.is_tensor or (node.op == "div" and a is None):
        return _UNKNOWN
    factor = _generic_number(graph, other)
    if not factor:
        return _UNKNOWN
    return only.at(only.rate * factor if node.op == "mul" else only.rate / factor)


# Numbers that are known at call time only get arbitrary values: what cancels for these cancels for all.


def _generic(name: str) -> float:
    return 2.0 + zlib.crc32(name.encode()) / 2**32


def _generic_extent(extent: Extent) -> float:
    return float(extent) if isinstance(extent, int) else _generic(extent.name)


def _generic_number(graph: Graph, node: Node) -> float | None:
    """The value of a host scalar for these; None if it has none."""
    match node.op:
        case "constant":
            return float(node.attribute("value"))
        case "scalar_input":
            return _generic(node.name)
        case "size":
            return _generic_extent(graph[node.inputs[0]].tensor.shape[node.attribute("dim")])
    values = [_generic_number(graph, graph[i]) for i in node.inputs]
    if None in values or node.attribute("function") not in ("add", "sub", "mul", "truediv", "neg", "float"):
        return None
    return float(host_function(node.attribute("function"))(*values))
