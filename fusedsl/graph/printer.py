# SPDX-License-Identifier: Apache-2.0
"""Prints a graph: as text, one value a line with dtype and shape, and for Graphviz."""

from __future__ import annotations

from typing import Any

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.opaque import Hole, Pack
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import dtype_name


def print_graph(graph: Graph) -> str:
    """The graph as text.

    Example::

        norm(x: float32[x.0, x.1], eps: float):
          total: float32[x.0] = sum(x, dims=(1,))
          return total
    """
    arguments = ", ".join(f"{n.name}: {n.type}" for n in graph if OPS[n.op].kind is Kind.INPUT)
    lines = [f"{graph.name}({arguments}):"]
    for node in graph:
        if OPS[node.op].kind is not Kind.INPUT and node.op != "constant":
            lines.append(f"  {node.name}: {node.type} = {_expression(graph, node)}")
    lines.append("  return " + ", ".join(graph[i].name for i in graph.outputs))
    return "\n".join(lines)


def _operand(graph: Graph, node_id: int) -> str:
    node = graph[node_id]
    return repr(node.attribute("value")) if node.op == "constant" else node.name


def _expression(graph: Graph, node: Node) -> str:
    operands = [_operand(graph, i) for i in node.inputs]
    match node.op:
        case "opaque":
            call = node.attribute("call")
            items = [_call_text(x, operands) for x in call.args] + [
                f"{k}={_call_text(x, operands)}" for k, x in call.kwargs
            ]
            return f"eager {node.attribute('function')}({', '.join(items)})"
        case "scalar":
            return f"{node.attribute('function')}({', '.join(operands)})"
        case "item":
            return f"{operands[0]}[{node.attribute('index')}]"
        case "cast":
            return (
                f"{'to' if node.attribute('explicit') else 'promote'}({operands[0]}, {dtype_name(node.tensor.dtype)})"
            )
        case _:
            items = operands + [f"{key}={value!r}" for key, value in node.attributes]
            return f"{node.op}({', '.join(items)})"


def _call_text(item: Any, operands: list[str]) -> str:
    if isinstance(item, Hole):
        return operands[item.index]
    if not isinstance(item, Pack):
        return repr(item)
    if item.kind == "dict":
        return "{" + ", ".join(f"{key!r}: {_call_text(x, operands)}" for key, x in item.items) + "}"
    parts = [_call_text(x, operands) for x in item.items]
    match item.kind:
        case "slice":
            return f"slice({', '.join(parts)})"
        case "list":
            return f"[{', '.join(parts)}]"
        case _:
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


_COLOURS = {
    Kind.INPUT: "lightblue",
    Kind.SCALAR: "lightyellow",
    Kind.FACTORY: "lightyellow",
    Kind.REINDEX: "white",
    Kind.CAST: "white",
    Kind.POINTWISE: "honeydew",
    Kind.REDUCTION: "orange",
    Kind.LOOKUP: "khaki",
    Kind.OPAQUE: "lightgrey",
}


def to_dot(graph: Graph) -> str:
    """The graph for Graphviz: a box a value, coloured by kind, with double lines around outputs."""
    outputs = set(graph.outputs)
    lines = [f"digraph {_quoted(graph.name)} {{", '  node [shape=box, style=filled, fontname="monospace"];']
    for node in graph:
        kind = OPS[node.op].kind
        text = str(node.attribute("value")) if node.op == "constant" else f"{node.name}\\n{node.op}\\n{node.type}"
        around = ", peripheries=2" if node.id in outputs else ""
        lines.append(f"  v{node.id} [label={_quoted(text)}, fillcolor={_COLOURS[kind]}{around}];")
        lines += [f"  v{source} -> v{node.id};" for source in node.inputs]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


# The printer reads the op table and the opaque records, which stand above the graph: it gives Graph its text.
Graph.__str__ = print_graph  # type: ignore[assignment]
