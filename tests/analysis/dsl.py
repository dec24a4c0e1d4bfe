# SPDX-License-Identifier: Apache-2.0
"""A few letters to write small graphs with: every call is a node of its own, nothing is shared or folded.

``s`` sums, ``b`` broadcasts back, ``c`` casts, ``copy`` copies; operators are pointwise. Names given to values are the
names that tests compare.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch

from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Graph
from fusedsl.graph.opaque import CallTemplate, Hole
from fusedsl.graph.types import Extent, ScalarType, TensorType
from fusedsl.graph.verify import verify

ROWS, ROW = 16, 1024


@attrs.frozen
class Value:
    """A node under construction."""

    sketch: Sketch = attrs.field(repr=False)
    id: int

    @property
    def type(self) -> TensorType:
        return self.sketch.builder.tensor(self.id)

    def __add__(self, other: Value | float) -> Value:
        return self.sketch.pointwise("add", self, other)

    def __sub__(self, other: Value | float) -> Value:
        return self.sketch.pointwise("sub", self, other)

    def __mul__(self, other: Value | float) -> Value:
        return self.sketch.pointwise("mul", self, other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.sketch.pointwise("div", self, other)

    def __gt__(self, other: Value | float) -> Value:
        return self.sketch.pointwise("gt", self, other, dtype=torch.bool)


class Sketch:
    """Builds a graph; ``sketch.name = value`` names a value."""

    builder: Builder

    def __init__(self) -> None:
        object.__setattr__(self, "builder", Builder("sketch"))

    def __setattr__(self, name: str, value: Value) -> None:
        node = self.builder.nodes[value.id]
        self.builder.nodes[value.id] = attrs.evolve(node, name=name)
        object.__setattr__(self, name, value)

    def add(self, op: str, inputs: Iterable[int], type: TensorType | ScalarType, **attributes: object) -> Value:
        return Value(self, self.builder.add(op, inputs, type, share=False, **attributes))

    def input(self, name: str, dtype: torch.dtype, *shape: int) -> Value:
        """A tensor argument."""
        value = Value(self, self.builder.input(name, dtype, shape or (ROWS, ROW)))
        object.__setattr__(self, name, value)
        return value

    def inputs(self, names: str, dtype: torch.dtype, *shape: int) -> list[Value]:
        """Arguments of one shape whose dims are unified."""
        values = [self.input(name, dtype, *shape) for name in names.split()]
        for value in values[1:]:
            for a, b in zip(values[0].type.shape, value.type.shape, strict=True):
                self.builder.unify(a, b)
        return values

    def pointwise(self, op: str, *operands: Value | float, dtype: torch.dtype | None = None) -> Value:
        """A pointwise op; numbers become constants and dims of the operands are unified."""
        tensors = [x for x in operands if isinstance(x, Value)]
        for other in tensors[1:]:
            for a, b in zip(tensors[0].type.shape, other.type.shape, strict=True):
                self.builder.unify(a, b)
        ids = [x.id if isinstance(x, Value) else self.constant(x) for x in operands]
        type_ = tensors[-1].type
        return self.add(op, ids, TensorType(dtype or type_.dtype, type_.shape))

    def constant(self, number: float) -> int:
        return self.builder.add("constant", (), ScalarType("float"), value=float(number))

    def copy(self, x: Value) -> Value:
        return self.pointwise("clone", x)

    def exp(self, x: Value) -> Value:
        return self.pointwise("exp", x)

    def rsqrt(self, x: Value) -> Value:
        return self.pointwise("rsqrt", x)

    def c(self, x: Value, dtype: torch.dtype = torch.float32) -> Value:
        """A cast that rounds, to float32 unless said otherwise."""
        return self.add("cast", [x.id], TensorType(dtype, x.type.shape), explicit=True)

    def s(self, x: Value, *dims: int, op: str = "sum") -> Value:
        """A reduction over ``dims``, the last one unless said otherwise."""
        where = tuple(sorted(dims)) if dims else (x.type.rank - 1,)
        shape = tuple(e for d, e in enumerate(x.type.shape) if d not in where)
        return self.add(op, [x.id], TensorType(x.type.dtype, shape), dims=where)

    def b(self, x: Value, like: Value, *dims: int) -> Value:
        """Broadcast along ``dims`` of ``like`` (the last one unless said otherwise)."""
        where = dims or (like.type.rank - 1,)
        kept = iter(range(x.type.rank))
        mapping = tuple(None if d in where else next(kept) for d in range(like.type.rank))
        return self.reindex(x, mapping, like.type.shape)

    def reindex(self, x: Value, dims: tuple[int | None, ...], shape: tuple[Extent, ...]) -> Value:
        for dim, extent in zip(dims, shape, strict=True):
            if dim is not None and x.type.shape[dim] != 1:
                self.builder.unify(x.type.shape[dim], extent)
        return self.add("reindex", [x.id], TensorType(x.type.dtype, shape), dims=dims)

    def opaque(self, function: str, *operands: Value, like: Value) -> Value:
        """An op that eager torch runs."""
        call = CallTemplate(tuple(Hole(i) for i in range(len(operands))), ())
        return self.add("opaque", [x.id for x in operands], like.type, function=function, call=call, results=1)

    def finish(self, *outputs: Value) -> Graph:
        return verify(self.builder.finish([x.id for x in outputs]))


def name_of(graph: Graph, node_id: int) -> str:
    return graph[node_id].name


def id_of(graph: Graph, name: str) -> int:
    return next(n.id for n in graph if n.name == name)
