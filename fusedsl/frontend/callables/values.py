# SPDX-License-Identifier: Apache-2.0
"""Values of a trace, and the builders of single nodes: host arithmetic, casts, broadcasts, pointwise ops.

``TensorValue`` and ``ScalarValue`` carry Python's arithmetic operators, so that composites read like the formulas
they are.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import attrs
import torch

from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.promotion import OperandKey, pointwise_rule
from fusedsl.graph.builder import Builder
from fusedsl.graph.host import host_function
from fusedsl.graph.types import Extent, ScalarType, TensorType, dtype_name, extent_hint

Number = bool | int | float


Result = TypeVar("Result")


class _Arithmetic(Generic[Result]):
    """Python's arithmetic operators by ``arithmetic``; comparisons stay Python's own."""

    __slots__ = ()

    def _apply(self, op: str, *operands: Any) -> Result:
        return arithmetic(op, *operands)  # type: ignore[no-any-return]

    def __add__(self, other: Any) -> Result:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> Result:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> Result:
        return self._apply("sub", self, other)

    def __rsub__(self, other: Any) -> Result:
        return self._apply("sub", other, self)

    def __mul__(self, other: Any) -> Result:
        return self._apply("mul", self, other)

    def __rmul__(self, other: Any) -> Result:
        return self._apply("mul", other, self)

    def __truediv__(self, other: Any) -> Result:
        return self._apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Result:
        return self._apply("div", other, self)

    def __neg__(self) -> Result:
        return self._apply("neg", self)


@attrs.frozen
class TensorValue(_Arithmetic["TensorValue"]):
    """A tensor of the graph being built."""

    builder: Builder = attrs.field(repr=False)
    id: int

    @property
    def type(self) -> TensorType:
        """dtype and extents under the unifications made so far."""
        return self.builder.tensor(self.id)

    @property
    def dtype(self) -> torch.dtype:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Extent, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def hint_shape(self) -> tuple[int, ...]:
        """The sizes seen while tracing."""
        return tuple(extent_hint(e) for e in self.type.shape)


@attrs.frozen
class ScalarValue(_Arithmetic[Any]):
    """A host scalar of the graph being built; ``hint`` is the Python value seen while tracing."""

    builder: Builder = attrs.field(repr=False)
    id: int
    hint: Number = attrs.field(eq=False)

    @property
    def kind(self) -> type:
        """``bool``, ``int`` or ``float``."""
        return type(self.hint)


Value = TensorValue | ScalarValue
Operand = TensorValue | ScalarValue | Number


def is_value(item: object) -> bool:
    """Whether ``item`` is a value of the trace, not a static Python object."""
    return isinstance(item, (TensorValue, ScalarValue))


# host scalars ------------------------------------------------------------

_HOST_NAMES = {
    "div": "truediv",
    "remainder": "mod",
    "floor_divide": "floordiv",
    "bitwise_and": "and_",
    "bitwise_or": "or_",
}


def plain_number(item: object) -> Number:
    """A Python bool, int or float equal to ``item`` (NumPy scalars too).

    Raises:
        OpError: it is not a real number.
    """
    for kind in (bool, int, float):
        if type(item) is kind:
            return item
    if isinstance(item, numbers.Integral):
        return int(item)
    if isinstance(item, numbers.Real):
        return float(item)
    if type(item).__module__ == "numpy" and getattr(item, "ndim", 1) == 0:
        return plain_number(item.item())  # type: ignore[attr-defined]
    raise OpError(f"expected a tensor or a number, got {type(item).__name__}")


def number_of(value: Number, dtype: torch.dtype) -> Number:
    """``value`` converted as torch fills a tensor of an integer or bool dtype with it; floats are left to the tile's
    rounding.

    Raises:
        OpError: the dtype cannot hold it.
    """
    if dtype.is_floating_point:
        return value
    try:
        return torch.full((), value, dtype=dtype, device="cpu").item()
    except (RuntimeError, OverflowError) as error:
        raise OpError(f"{value!r} does not fit {dtype_name(dtype)}: {error}") from None


def constant(builder: Builder, value: Number) -> ScalarValue:
    """A number known while tracing, as a node."""
    kind = type(value).__name__
    node = builder.add("constant", (), ScalarType(kind), value=value)  # type: ignore[arg-type]
    return ScalarValue(builder, node, value)


def host(function: str, *operands: ScalarValue | Number) -> ScalarValue | Number:
    """Arithmetic on host scalars: a ``scalar`` node, or a number when all operands are static.

    Args:
        function: a name :func:`fusedsl.graph.host.host_function` knows.
        operands: host scalars and Python numbers.

    Raises:
        OpError: Python refuses the operation on the values seen.
    """
    builder = next((x.builder for x in operands if isinstance(x, ScalarValue)), None)
    hints = [x.hint if isinstance(x, ScalarValue) else plain_number(x) for x in operands]
    try:
        result = host_function(function)(*hints)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise OpError(f"{function}({', '.join(map(repr, hints))}) fails: {error}") from None
    if builder is None:
        return result  # type: ignore[no-any-return]
    if type(result) not in (bool, int, float):
        raise OpError(f"{function} of host scalars gives a {type(result).__name__}", expected="bool, int or float")
    ids = [x.id if isinstance(x, ScalarValue) else constant(builder, plain_number(x)).id for x in operands]
    node = builder.add("scalar", ids, ScalarType(type(result).__name__), function=function)  # type: ignore[arg-type]
    return ScalarValue(builder, node, result)


def size(value: TensorValue, dim: int) -> ScalarValue | int:
    """The extent of a dim: an int when it is static, else a host scalar."""
    extent = value.shape[dim]
    if isinstance(extent, int):
        return extent
    node = value.builder.add("size", (value.id,), ScalarType("int"), dim=dim)
    return ScalarValue(value.builder, node, extent.hint)


def arithmetic(op: str, *operands: Any) -> Any:
    """A pointwise op if any operand is a tensor, else host arithmetic."""
    for operand in operands:
        if type(operand) is TensorValue:
            return pointwise(op, *operands)
    return host(_HOST_NAMES.get(op, op), *operands)


# structure ------------------------------------------------------------


def cast(value: TensorValue, dtype: torch.dtype, explicit: bool = False) -> TensorValue:
    """``value`` in another dtype; the value itself if it has that dtype already."""
    type_ = value.type
    if type_.dtype is dtype:
        return value
    if dtype.is_complex:
        raise OpError(f"dtype {dtype_name(dtype)} is not supported", expected="a real dtype")
    builder = value.builder
    return TensorValue(builder, builder.add("cast", (value.id,), TensorType(dtype, type_.shape), explicit=explicit))


def reindex(value: TensorValue, dims: Sequence[int | None], shape: Iterable[Extent]) -> TensorValue:
    """A view: result dim k has extent ``shape[k]`` and reads source dim ``dims[k]`` (None: a new dim).

    A reindex of a reindex is built on the first source, unless that stops gradients; one that changes nothing is the
    value itself.
    """
    builder = value.builder
    node = builder.nodes[value.id]
    dims_, shape_ = tuple(dims), tuple(shape)
    if dims_ == tuple(range(value.rank)) and shape_ == value.shape:
        return value
    if node.op == "reindex" and not dict(node.attributes).get("detached"):
        inner = node.attribute("dims")
        source = TensorValue(builder, node.inputs[0])
        return reindex(source, tuple(None if d is None else inner[d] for d in dims_), shape_)
    return TensorValue(builder, builder.add("reindex", (value.id,), TensorType(value.dtype, shape_), dims=dims_))


def detached(value: TensorValue) -> TensorValue:
    """The value itself, but no gradient passes."""
    if not value.dtype.is_floating_point:
        return value
    dims, type_ = tuple(range(value.rank)), TensorType(value.dtype, value.shape)
    node = value.builder.add("reindex", (value.id,), type_, dims=dims, detached=True)
    return TensorValue(value.builder, node)


def broadcast_shape(builder: Builder, shapes: Sequence[tuple[Extent, ...]]) -> tuple[Extent, ...]:
    """The shape that ``shapes`` broadcast to; extents that must be equal are unified.

    Raises:
        OpError: the sizes do not agree; names all shapes.
    """
    rank = max(map(len, shapes))
    result: list[Extent] = []
    for place in range(-rank, 0):
        extent: Extent = 1
        for shape in shapes:
            if len(shape) < -place or shape[place] == 1:
                continue
            other = shape[place]
            if extent == 1:
                extent = other
            elif extent != other:
                if extent_hint(extent) != extent_hint(other):
                    raise _mismatch(shapes, place)
                extent = builder.unify(extent, other)
        result.append(extent)
    return tuple(result)


def _mismatch(shapes: Sequence[tuple[Extent, ...]], place: int) -> OpError:
    texts = [str(tuple(extent_hint(e) for e in shape)) for shape in shapes]
    return OpError(
        f"shapes {' and '.join(texts)} do not broadcast: they differ in dim {place}",
        expected="equal sizes, or size 1, in every dim counted from the last",
    )


def broadcast(value: TensorValue, shape: tuple[Extent, ...]) -> TensorValue:
    """``value`` read as ``shape``, which it must broadcast to."""
    own = value.shape
    if own == shape:
        return value
    missing = len(shape) - len(own)
    return reindex(value, (None,) * missing + tuple(range(len(own))), shape)


def full(builder: Builder, value: ScalarValue | Number, dtype: torch.dtype, shape: Iterable[Extent]) -> TensorValue:
    """A tensor filled with a host scalar."""
    scalar = value if isinstance(value, ScalarValue) else constant(builder, number_of(plain_number(value), dtype))
    return TensorValue(builder, builder.add("full", (scalar.id,), TensorType(dtype, tuple(shape))))


def iota(builder: Builder, dim: int, dtype: torch.dtype, shape: Iterable[Extent]) -> TensorValue:
    """A tensor of ``shape`` whose elements are their positions along ``dim``, int32 or int64."""
    shape_ = tuple(shape)
    if shape_[dim] == 1:
        return full(builder, 0, dtype, shape_)
    return TensorValue(builder, builder.add("iota", (), TensorType(dtype, shape_), dim=dim))


def gather(value: TensorValue, index: TensorValue, dim: int) -> TensorValue:
    """The element at position ``index`` of every row along ``dim``, which the result drops.

    Args:
        value: any tensor.
        index: int64, of the shape of ``value`` without ``dim``. A position outside the row gives an undefined number,
            read from nowhere outside the tensor.
        dim: counted from 0.
    """
    shape = value.shape[:dim] + value.shape[dim + 1 :]
    node = value.builder.add("gather", (value.id, index.id), TensorType(value.dtype, shape), dim=dim)
    return TensorValue(value.builder, node)


# pointwise ------------------------------------------------------------

_ROUNDING = {torch.float16, torch.bfloat16}
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}


def _describe(operands: Sequence[Any], op: str) -> tuple[Builder, tuple[OperandKey, ...], list[TensorType | None]]:
    """The builder, the keys for promotion, and the types of the tensors (None for a number)."""
    builder = None
    keys: list[OperandKey] = []
    types: list[TensorType | None] = []
    for operand in operands:
        if type(operand) is TensorValue:
            builder = operand.builder
            type_ = builder.tensor(operand.id)
            keys.append((type_.dtype, not type_.shape))
            types.append(type_)
        else:
            keys.append(operand.kind if type(operand) is ScalarValue else type(plain_number(operand)))
            types.append(None)
    if builder is None:
        raise OpError(f"{op} takes at least one tensor")
    return builder, tuple(keys), types


def pointwise(op: str, *operands: Any, eager: Callable[..., Any] | None = None) -> TensorValue:
    """A pointwise op with torch's promotion and broadcasting.

    Args:
        op: row of the op table whose operands share one dtype.
        operands: tensors, host scalars and Python numbers; at least one tensor.
        eager: the torch callable that decides whether the dtypes are allowed; default: the row's own.

    Raises:
        OpError: shapes do not broadcast, torch refuses the dtypes, an operand is neither tensor nor number.
    """
    builder, keys, types = _describe(operands, op)
    op, dtype, result = pointwise_rule(op, keys, torch.get_default_dtype(), eager)
    shapes = [type_.shape for type_ in types if type_ is not None]
    shape = shapes[0]
    if len(shapes) > 1 and any(other != shape for other in shapes):
        shape = broadcast_shape(builder, shapes)
    rounds = op in _COMPARISONS and dtype in _ROUNDING
    ids = []
    for operand, type_ in zip(operands, types, strict=True):
        ready = type_ is not None and type_.dtype is dtype and type_.shape == shape
        ids.append(operand.id if ready else _operand(builder, operand, dtype, shape, rounds))
    return TensorValue(builder, builder.add(op, ids, TensorType(result, shape)))


def select(mask: TensorValue, a: Operand, b: Operand, dtype: torch.dtype) -> TensorValue:
    """``where`` on a bool tensor, with both choices cast to ``dtype``."""
    builder = mask.builder
    shapes = [x.shape for x in (mask, a, b) if isinstance(x, TensorValue)]
    shape = broadcast_shape(builder, shapes)
    if not isinstance(a, TensorValue) and not isinstance(b, TensorValue):
        a = full(builder, a, dtype, shape)
    ids = [broadcast(mask, shape).id, *(_operand(builder, x, dtype, shape, False) for x in (a, b))]
    return TensorValue(builder, builder.add("where", ids, TensorType(dtype, shape)))


def _operand(builder: Builder, operand: Operand, dtype: torch.dtype, shape: tuple[Extent, ...], rounds: bool) -> int:
    """Node id of an operand, cast, broadcast; ``rounds``: numbers are rounded to ``dtype`` too, as torch compares."""
    if isinstance(operand, TensorValue):
        return broadcast(cast(operand, dtype), shape).id
    if not rounds:
        return operand.id if isinstance(operand, ScalarValue) else constant(builder, plain_number(operand)).id
    if isinstance(operand, ScalarValue):
        return cast(full(builder, operand, torch.float32, shape), dtype, explicit=True).id
    number = plain_number(operand)
    rounded = torch.tensor(number, dtype=dtype).item()
    return constant(builder, rounded if math.isfinite(number) else float(number)).id
