# SPDX-License-Identifier: Apache-2.0
"""Host scalars of a graph at call time: everything that sizes alone decide is evaluated once, the rest at each call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.host import host_function
from fusedsl.graph.span import FuseError
from fusedsl.graph.types import Symbol, TensorType


class HostScalarError(FuseError, ArithmeticError):
    """Arithmetic on Python numbers failed at call time: the user's line and Python's own words."""


def symbol_sizes(types: Sequence[TensorType], shapes: Sequence[Sequence[int]]) -> dict[Symbol, int]:
    """The size of every symbol in some types, from the sizes of tensors of these types."""
    sizes: dict[Symbol, int] = {}
    for type_, shape in zip(types, shapes, strict=True):
        for extent, size in zip(type_.shape, shape, strict=True):
            if isinstance(extent, Symbol):
                sizes[extent] = size
    return sizes


def _convert_float32(value: Any) -> float:
    """Round to float32; beyond its range infinity, as torch does with a number next to a float32 tensor."""
    return ctypes.c_float(value).value


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "int64": int,
    "float32": _convert_float32,
    "float64": float,
    "boolean": bool,
}


def compile_host(
    graph: Graph, wanted: Sequence[tuple[int, str | None]], sizes: Mapping[Symbol, int]
) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
    """A function from the scalar arguments of a call to the values of host scalar nodes.

    Args:
        graph: the graph.
        wanted: (node id, kernel parameter type to convert to, or None for the Python number itself).
        sizes: size of every symbol.

    Returns:
        A function that raises HostScalarError where Python's arithmetic does (division by zero, domain, overflow).
    """
    needed = _closure(graph, [node_id for node_id, _ in wanted])
    arguments = {node_id: graph.scalars.index(node_id) for node_id in needed if graph[node_id].op == "scalar_input"}
    known = {node_id: _fixed(graph, graph[node_id], sizes) for node_id in needed if graph[node_id].op in _FIXED}
    steps = _fold(graph, needed, known)
    fixed = [_convert(graph[node_id], known[node_id], kind) if node_id in known else None for node_id, kind in wanted]
    varying = [(place, node_id, kind) for place, (node_id, kind) in enumerate(wanted) if node_id not in known]
    if not varying:
        result = tuple(fixed)
        return lambda scalars: result
    if not steps:
        direct = [(place, arguments[node_id], graph[node_id], kind) for place, node_id, kind in varying]

        def copy(scalars: tuple[Any, ...]) -> Sequence[Any]:
            found = fixed.copy()
            for place, index, node, kind in direct:
                found[place] = _convert(node, scalars[index], kind)
            return found

        return copy

    def evaluate(scalars: tuple[Any, ...]) -> Sequence[Any]:
        values = dict(known)
        for node_id, index in arguments.items():
            values[node_id] = scalars[index]
        for node, function, sources in steps:
            values[node.id] = _apply(node, function, [values[source] for source in sources])
        found = fixed.copy()
        for place, node_id, kind in varying:
            found[place] = _convert(graph[node_id], values[node_id], kind)
        return found

    return evaluate


#: A host scalar that every call computes: its node, function and operands.
_HostStep = tuple[Node, Callable[..., Any], tuple[int, ...]]


def _fold(graph: Graph, needed: Sequence[int], known: dict[int, Any]) -> list[_HostStep]:
    """Add the arithmetic that depends on known values only to ``known``; the rest, in order."""
    steps: list[_HostStep] = []
    for node in (graph[node_id] for node_id in needed if graph[node_id].op == "scalar"):
        function = host_function(node.attribute("function"))
        if all(source in known for source in node.inputs):
            known[node.id] = _apply(node, function, [known[source] for source in node.inputs])
        else:
            steps.append((node, function, node.inputs))
    return steps


_FIXED = ("constant", "size")


def _fixed(graph: Graph, node: Node, sizes: Mapping[Symbol, int]) -> Any:
    """The value of a constant or a size."""
    if node.op == "constant":
        return node.attribute("value")
    extent = graph[node.inputs[0]].tensor.shape[node.attribute("dim")]
    return sizes[extent] if isinstance(extent, Symbol) else extent


def _closure(graph: Graph, wanted: Sequence[int]) -> list[int]:
    """The host scalar nodes that these depend on, themselves included, in order."""
    found = set(wanted)
    for node in reversed(graph.nodes):
        if node.id in found and node.op == "scalar":
            found.update(node.inputs)
    return sorted(found)


def _apply(node: Node, function: Callable[..., Any], operands: list[Any]) -> Any:
    try:
        return function(*operands)
    except (ArithmeticError, ValueError, TypeError) as error:
        shown = ", ".join(map(repr, operands))
        raise HostScalarError(f"{node.attribute('function')}({shown}): {error}", node.span) from None


def _convert(node: Node, value: Any, kind: str | None) -> Any:
    if kind is None:
        return value
    try:
        return CONVERSIONS[kind](value)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise HostScalarError(f"{value!r} cannot be given to a kernel: {error}", node.span) from None
