# SPDX-License-Identifier: Apache-2.0
"""Checks the relations between the nodes of a graph that construction alone does not ensure."""

from __future__ import annotations

import torch

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind, Op
from fusedsl.graph.types import ScalarType, TensorType


class GraphInvariantError(AssertionError):
    """A graph breaks the rules of ``docs/design.md``: a defect of fusedsl, not of the user's function."""


def verify(graph: Graph) -> Graph:
    """The graph itself, if it keeps the rules.

    Raises:
        GraphInvariantError: names the node and the rule.
    """
    names: set[str] = set()
    for place, node in enumerate(graph):
        row = OPS.get(node.op)
        if row is None:
            raise _broken(node, "its op is not in the table")
        _require(node, node.id == place, f"its id is not its place {place}")
        _require(node, all(0 <= i < place for i in node.inputs), "it reads a later node")
        _require(node, row.arity in (-1, len(node.inputs)), f"{node.op} takes {row.arity} operands")
        _require(node, node.name not in names, f"the name {node.name} is taken")
        names.add(node.name)
        _verify_node(graph, node, row)
    _verify_ends(graph)
    return graph


def _broken(node: Node, rule: str) -> GraphInvariantError:
    return GraphInvariantError(f"node {node.id} ({node.name} = {node.op}{node.inputs}): {rule}")


def _require(node: Node, condition: bool, rule: str) -> None:
    if not condition:
        raise _broken(node, rule)


def _verify_ends(graph: Graph) -> None:
    for ids, op in ((graph.inputs, "input"), (graph.scalars, "scalar_input")):
        found = tuple(n.id for n in graph if n.op == op)
        if ids != found:
            raise GraphInvariantError(f"{graph.name}: {op} nodes are {found}, the graph lists {ids}")
    for node_id in graph.outputs:
        if not 0 <= node_id < len(graph.nodes):
            raise GraphInvariantError(f"{graph.name}: output {node_id} does not exist")
        _require(graph[node_id], graph[node_id].is_tensor, "an output is a host scalar")


def _verify_node(graph: Graph, node: Node, row: Op) -> None:
    operands = [graph[i] for i in node.inputs]
    match row.kind:
        case Kind.INPUT:
            _require(node, node.is_tensor == (node.op == "input"), "an input's type fits its op")
        case Kind.SCALAR:
            _verify_scalar(node, operands)
        case Kind.FACTORY:
            _require(node, node.is_tensor, f"{node.op} makes a tensor")
            _verify_factory(node, operands)
        case Kind.REINDEX:
            _require(node, node.is_tensor and operands[0].is_tensor, "reindex takes a tensor")
            _verify_reindex(node, operands[0].tensor)
        case Kind.CAST:
            _require(node, node.is_tensor and operands[0].is_tensor, "cast takes a tensor")
            _require(node, node.tensor.shape == operands[0].tensor.shape, "a cast keeps the shape")
            _require(node, isinstance(node.attribute("explicit"), bool), "explicit is a bool")
        case Kind.POINTWISE:
            _verify_pointwise(node, row, operands)
        case Kind.REDUCTION | Kind.LOOKUP:
            _require(node, all(x.is_tensor for x in (node, *operands)), f"{node.op} takes tensors")
            _verify_rows(node, row, [x.tensor for x in operands])
        case Kind.OPAQUE:
            if node.op == "item":
                _require(node, operands[0].op == "opaque", "item reads an opaque op")
                _require(node, node.attribute("index") < operands[0].attribute("results"), "item is out of range")
        case _:
            raise _broken(node, f"unknown kind {row.kind}")


def _verify_scalar(node: Node, operands: list[Node]) -> None:
    _require(node, isinstance(node.type, ScalarType), f"{node.op} is a host scalar")
    if node.op == "size":
        _require(node, operands[0].is_tensor, "size takes a tensor")
        _require(node, 0 <= node.attribute("dim") < operands[0].tensor.rank, "size: dim is out of range")
    elif node.op == "constant":
        assert isinstance(node.type, ScalarType)
        _require(node, type(node.attribute("value")).__name__ == node.type.kind, "a constant has the kind of its value")
    else:
        _require(node, all(x.is_scalar for x in operands), "scalar takes host scalars")


def _verify_factory(node: Node, operands: list[Node]) -> None:
    _require(node, all(x.is_scalar for x in operands), f"{node.op} makes a tensor from host scalars")
    if node.op == "full":
        return
    if node.op == "random":
        _require(node, node.tensor.dtype is torch.float32, "random makes float32")
        return
    _require(node, 0 <= node.attribute("dim") < node.tensor.rank, "iota: dim is out of range")
    _require(node, node.tensor.dtype in (torch.int32, torch.int64), "iota makes int32 or int64")


def _verify_rows(node: Node, row: Op, operands: list[TensorType]) -> None:
    if row.kind is Kind.LOOKUP:
        _verify_gather(node, *operands)
    else:
        _verify_reduction(node, row, operands[0])


def _verify_gather(node: Node, source: TensorType, index: TensorType) -> None:
    dim = node.attribute("dim")
    _require(node, 0 <= dim < source.rank, "gather: dim is out of range")
    _require(node, index.dtype is torch.int64, "gather takes int64 positions")
    _require(node, node.tensor.dtype is source.dtype, "gather keeps the dtype")
    shape = source.shape[:dim] + source.shape[dim + 1 :]
    _require(node, index.shape == node.tensor.shape == shape, "gather takes one position a row and drops the dim")


def _verify_reindex(node: Node, source: TensorType) -> None:
    dims, shape = node.attribute("dims"), node.tensor.shape
    _require(node, node.tensor.dtype is source.dtype, "reindex keeps the dtype")
    _require(node, len(dims) == len(shape), "reindex has one entry a dim")
    used = [d for d in dims if d is not None]
    _require(node, len(set(used)) == len(used), "reindex reads a dim twice")
    _require(node, all(0 <= d < source.rank for d in used), "reindex: a source dim is out of range")
    for extent, dim in zip(shape, dims, strict=True):
        if dim is not None:
            _require(
                node,
                source.shape[dim] in (extent, 1),
                f"source dim {dim} of extent {source.shape[dim]} is not {extent}",
            )
    for dim in set(range(source.rank)) - set(used):
        _require(node, source.shape[dim] == 1, f"source dim {dim} of extent {source.shape[dim]} is dropped")


def _verify_pointwise(node: Node, row: Op, operands: list[Node]) -> None:
    _require(node, node.is_tensor, "a pointwise op makes a tensor")
    tensors = [x.tensor for x in operands if x.is_tensor]
    _require(node, bool(tensors), "a pointwise op has a tensor operand")
    _require(node, all(t.shape == node.tensor.shape for t in tensors), "operands have the shape of the result")
    if row.name == "where":
        _require(node, operands[0].is_tensor and tensors[0].dtype is torch.bool, "the condition is a bool tensor")
        tensors = tensors[1:]
        _require(node, bool(tensors), "one choice at least is a tensor")
    dtypes = {t.dtype for t in tensors}
    _require(node, len(dtypes) == 1, f"operands have one dtype, not {dtypes}")
    (dtype,) = dtypes
    if row.domain == "float":
        _require(node, dtype.is_floating_point, f"{row.name} takes floats")
    if row.domain == "int":
        _require(node, not dtype.is_floating_point, f"{row.name} takes integers and bools")
    expected = torch.bool if row.result == "bool" else dtype
    _require(node, node.tensor.dtype is expected, f"the result is {expected}")


def _verify_reduction(node: Node, row: Op, source: TensorType) -> None:
    dims = node.attribute("dims")
    _require(
        node, len(dims) > 0 and tuple(sorted(set(dims))) == dims, "reduced dims are sorted and distinct, at least one"
    )
    _require(node, dims[0] >= 0 and dims[-1] < source.rank, "a reduced dim is out of range")
    shape = tuple(e for d, e in enumerate(source.shape) if d not in dims)
    _require(node, node.tensor.shape == shape, "a reduction drops its dims")
    _require(node, row.name not in ("any", "all") or source.dtype is torch.bool, "any and all take bools")
    expected = torch.int64 if row.result == "int64" else source.dtype
    _require(node, node.tensor.dtype is expected, f"the result is {expected}")
