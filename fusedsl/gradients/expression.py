# SPDX-License-Identifier: Apache-2.0
"""Formulas over graph values: arithmetic that adds nodes to a Builder and simplifies as it goes.

An :class:`Expression` is a node of the graph being built, a tensor or a host scalar. Operators between them, and with
Python numbers, add nodes; a multiplication by 1, an addition of 0, a double negation, arithmetic on constants and
arithmetic on values that were only broadcast are simplified away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Node
from fusedsl.graph.host import host_function
from fusedsl.graph.ops import OPS
from fusedsl.graph.types import Extent, ScalarType, TensorType, compute_dtype

Number = bool | int | float

_HOST_NAMES = {"div": "truediv", "remainder": "mod", "floor_divide": "floordiv"}
_COMMUTATIVE = ("add", "mul")


@attrs.frozen
class Expression:
    """A node of the graph being built."""

    builder: Builder = attrs.field(repr=False, eq=False)
    id: int

    @property
    def node(self) -> Node:
        return self.builder.nodes[self.id]

    @property
    def is_tensor(self) -> bool:
        return self.node.is_tensor

    @property
    def type(self) -> TensorType:
        """dtype and extents of a tensor."""
        return self.builder.tensor(self.id)

    @property
    def dtype(self) -> torch.dtype:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Extent, ...]:
        return self.type.shape

    @property
    def constant(self) -> Number | None:
        """The number, if this is one known while tracing."""
        node = self.node
        return node.attribute("value") if node.op == "constant" else None

    def __add__(self, other: Operand) -> Expression:
        return apply("add", self, other)

    def __radd__(self, other: Number) -> Expression:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return apply("sub", self, other)

    def __rsub__(self, other: Number) -> Expression:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return apply("mul", self, other)

    def __rmul__(self, other: Number) -> Expression:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return apply("div", self, other)

    def __rtruediv__(self, other: Number) -> Expression:
        return apply("div", other, self)

    def __neg__(self) -> Expression:
        return apply("neg", self)


Operand = Expression | Number


# nodes ----------------------------------------------------------------------------------------------------------------


def number(builder: Builder, value: Number) -> Expression:
    """A constant host scalar."""
    kind = type(value).__name__
    return Expression(builder, builder.add("constant", (), ScalarType(kind), value=value))  # type: ignore[arg-type]


def apply(op: str, *operands: Operand, **attributes: Any) -> Expression:
    """A pointwise op, or host arithmetic if no operand is a tensor.

    Args:
        op: row of the op table; host arithmetic knows ``add sub mul div neg``.
        operands: tensors of one dtype and one shape, host scalars and Python numbers.
        attributes: extra attributes of the node.
    """
    builder = next(x.builder for x in operands if isinstance(x, Expression))
    items = tuple(x if isinstance(x, Expression) else number(builder, x) for x in operands)
    if not any(x.is_tensor for x in items):
        return host(_HOST_NAMES.get(op, op), *items)
    if not attributes:
        simpler = _simplified(op, items)
        if simpler is not None:
            return simpler
    return _pointwise(op, items, attributes)


def _pointwise(op: str, items: tuple[Expression, ...], attributes: dict[str, Any]) -> Expression:
    tensors = [x.type for x in items if x.is_tensor]
    shape, dtype = tensors[0].shape, tensors[-1].dtype
    assert all(t.shape == shape for t in tensors), f"{op} of shapes {[t.shape for t in tensors]}"
    result = TensorType(torch.bool if OPS[op].result == "bool" else dtype, shape)
    return Expression(items[0].builder, items[0].builder.add(op, [x.id for x in items], result, **attributes))


def host(function: str, *operands: Operand) -> Expression:
    """Host arithmetic; constants are folded."""
    builder = next(x.builder for x in operands if isinstance(x, Expression))
    items = [x if isinstance(x, Expression) else number(builder, x) for x in operands]
    values = [x.constant for x in items]
    if all(v is not None for v in values):
        return number(builder, host_function(function)(*values))
    kinds = [x.node.type.kind for x in items if isinstance(x.node.type, ScalarType)]
    kind = "float" if "float" in kinds or function == "truediv" or function.startswith("math.") else "int"
    kind = function if function in ("float", "bool", "int") else kind
    node = builder.add("scalar", [x.id for x in items], ScalarType(kind), function=function)  # type: ignore[arg-type]
    return Expression(builder, node)


def cast(value: Expression, dtype: torch.dtype) -> Expression:
    """``value`` in another dtype, without rounding; widening a value that was narrowed without rounding undoes that."""
    if value.dtype is dtype:
        return value
    node = value.node
    if node.op == "cast" and not node.attribute("explicit") and node.tensor.dtype.is_floating_point:
        source = Expression(value.builder, node.inputs[0])
        if source.dtype is dtype and compute_dtype(value.dtype) is dtype:
            return source
    type_ = TensorType(dtype, value.shape)
    return Expression(value.builder, value.builder.add("cast", (value.id,), type_, explicit=False))


def wide(value: Expression) -> Expression:
    """A floating tensor in the dtype that arithmetic is done in; host scalars stay."""
    return cast(value, compute_dtype(value.dtype)) if value.is_tensor else value


def is_view(value: Expression) -> bool:
    """Whether the value is a reindex that gradients pass."""
    node = value.node
    return node.op == "reindex" and not dict(node.attributes).get("detached")


def reindex(value: Expression, dims: Sequence[int | None], shape: Sequence[Extent]) -> Expression:
    """A view, as the ``reindex`` op; views of views are joined and a view that changes nothing is the value itself."""
    dims_, shape_ = tuple(dims), tuple(shape)
    node = value.node
    if dims_ == tuple(range(len(value.shape))) and shape_ == value.shape:
        return value
    if node.op == "full":
        return full(Expression(value.builder, node.inputs[0]), value.dtype, shape_)
    if is_view(value):
        inner = node.attribute("dims")
        source = Expression(value.builder, node.inputs[0])
        return reindex(source, [None if d is None else inner[d] for d in dims_], shape_)
    type_ = TensorType(value.dtype, shape_)
    return Expression(value.builder, value.builder.add("reindex", (value.id,), type_, dims=dims_))


def full(value: Expression, dtype: torch.dtype, shape: Sequence[Extent]) -> Expression:
    """A tensor filled with a host scalar."""
    return Expression(value.builder, value.builder.add("full", (value.id,), TensorType(dtype, tuple(shape))))


def extent(value: Expression, dim: int) -> Operand:
    """The extent of a dim, an int or a host scalar."""
    found = value.shape[dim]
    if isinstance(found, int):
        return found
    return Expression(value.builder, value.builder.add("size", (value.id,), ScalarType("int"), dim=dim))


def zeros(builder: Builder, type_: TensorType) -> Expression:
    """A tensor of zeros."""
    return full(number(builder, 0.0), type_.dtype, type_.shape)


def reduce(op: str, value: Expression, dims: Sequence[int]) -> Expression:
    """A reduction over sorted ``dims``; none: the value itself."""
    if not dims:
        return value
    shape = tuple(e for d, e in enumerate(value.shape) if d not in dims)
    node = value.builder.add(op, (value.id,), TensorType(value.dtype, shape), dims=tuple(dims))
    return Expression(value.builder, node)


def unreduce(value: Expression, dims: Sequence[int], shape: Sequence[Extent]) -> Expression:
    """The result of a reduction over ``dims``, broadcast back to the ``shape`` that was reduced."""
    kept = iter(range(len(value.shape)))
    return reindex(value, [None if d in dims else next(kept) for d in range(len(shape))], shape)


# simplification -------------------------------------------------------------------------------------------------------


def _simplified(op: str, items: tuple[Expression, ...]) -> Expression | None:
    """An equal expression with fewer nodes, or None."""
    if op in _COMMUTATIVE and not items[0].is_tensor:
        return apply(op, items[1], items[0])
    if op == "neg":
        return _negated(items[0])
    if op in ("add", "sub", "mul", "div"):
        found = _identity(op, *items)
        if found is not None:
            return found
    return _narrowed(op, items)


def _negated(x: Expression) -> Expression | None:
    node = x.node
    if node.op == "neg":
        return Expression(x.builder, node.inputs[0])
    factor = _constant_factor(x)
    if factor is not None:
        return Expression(x.builder, node.inputs[0]) * -factor
    return _narrowed("neg", (x,))


def _identity(op: str, a: Expression, b: Expression) -> Expression | None:
    number_ = b.constant
    match op, number_:
        case ("add" | "sub", 0) | ("mul" | "div", 1):
            return a if a.is_tensor else None
        case "mul", -1:
            return -a
        case "mul", (int() | float()):
            factor = _constant_factor(a)
            if factor is not None and math.isfinite(factor * number_):
                return Expression(a.builder, a.node.inputs[0]) * (factor * number_)
    if op == "sub" and a.constant == 0:
        return -b
    if op in ("add", "sub") and b.node.op == "neg":
        return apply("sub" if op == "add" else "add", a, Expression(b.builder, b.node.inputs[0]))
    if op == "add" and a.node.op == "neg":
        return b - Expression(a.builder, a.node.inputs[0])
    if op == "div" and a.is_tensor and is_view(b) and _expands(b):
        # One division a source element instead of one a result element.
        inverse = apply("reciprocal", Expression(b.builder, b.node.inputs[0]))
        return a * reindex(inverse, b.node.attribute("dims"), b.shape)
    return None


def _constant_factor(x: Expression) -> Number | None:
    """c, if x is a product of its first operand and the constant c."""
    if x.node.op != "mul":
        return None
    return Expression(x.builder, x.node.inputs[1]).constant


def _expands(x: Expression) -> bool:
    """Whether a reindex has (or may have) more elements than its source."""
    source = x.builder.tensor(x.node.inputs[0]).shape
    return any(e != 1 and (d is None or source[d] != e) for d, e in zip(x.node.attribute("dims"), x.shape, strict=True))


def _narrowed(op: str, items: tuple[Expression, ...]) -> Expression | None:
    """Arithmetic on tensors that were all broadcast alike, done before the broadcast."""
    tensors = [x for x in items if x.is_tensor]
    if not all(map(is_view, tensors)) or not _expands(tensors[0]):
        return None
    sources = [Expression(x.builder, x.node.inputs[0]) for x in tensors]
    dims, shape = tensors[0].node.attribute("dims"), tensors[0].shape
    if any(x.node.attribute("dims") != dims for x in tensors) or len({s.shape for s in sources}) != 1:
        return None
    rest = iter(sources)
    return reindex(apply(op, *(next(rest) if x.is_tensor else x for x in items)), dims, shape)
