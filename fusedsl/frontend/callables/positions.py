# SPDX-License-Identifier: Apache-2.0
"""Values made of positions along dims (``arange``, ``eye``, masks by position), and lookups by position in a row."""

from __future__ import annotations

import math
from typing import Any

import torch

from fusedsl.frontend.callables.compose import dtype_argument, one_dim, static, static_int, tensor
from fusedsl.frontend.callables.creation import is_plain
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.extents import extent_of
from fusedsl.frontend.callables.shapes import keep_dims
from fusedsl.frontend.callables.table import everywhere, handles
from fusedsl.frontend.callables.values import (
    ScalarValue,
    TensorValue,
    broadcast,
    cast,
    gather,
    iota,
    is_value,
    plain_number,
    pointwise,
    reindex,
    select,
    size,
)
from fusedsl.graph.builder import Builder
from fusedsl.graph.types import Extent, extent_hint

# factories ------------------------------------------------------------


@handles("torch.arange")
def arange(builder: Any, start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None, **options: Any) -> Any:
    """Positions, scaled and shifted. The length may be the size of a dim; start and step are known while tracing."""
    if not is_plain(**options):
        return NotImplemented
    if end is None:
        start, end = 0, start
    operands = [x if is_value(x) else plain_number(x) for x in (start, end, step)]
    if any(isinstance(x, TensorValue) for x in operands):
        raise OpError("arange takes numbers, got a tensor")
    floating = any((x.kind if isinstance(x, ScalarValue) else type(x)) is float for x in operands)
    wanted = dtype_argument(dtype) or (torch.get_default_dtype() if floating else torch.int64)
    if wanted is torch.bool:
        return NotImplemented
    first, stride = static(start, "start"), static(step, "step")
    if first == 0 and stride == 1 and not floating:
        return cast(iota(builder, 0, torch.int64, (_length(end),)), wanted)
    last = static(end, "end")
    if stride == 0 or (last - first) * stride < 0:
        raise OpError(f"arange({first}, {last}, {stride}): step does not lead from start to end")
    positions = iota(builder, 0, torch.int64, (math.ceil((last - first) / stride),))
    # float64 holds every position and step that arange can reach; integers stay exact.
    exact = cast(positions, torch.float64) if floating and wanted.is_floating_point else positions
    if floating and not wanted.is_floating_point:
        return NotImplemented
    return cast(exact * stride + first, wanted)


def _length(end: Any) -> Extent:
    if not is_value(end) and end < 0:
        raise OpError(f"arange(0, {end}, 1): step does not lead from start to end")
    return extent_of(end, "end")


@handles("torch.eye")
def eye(builder: Any, n: Any, m: Any = None, *, dtype: Any = None, **options: Any) -> Any:
    if not is_plain(**options):
        return NotImplemented
    shape = (extent_of(n, "n"), extent_of(n if m is None else m, "m"))
    wanted = dtype_argument(dtype) or torch.get_default_dtype()
    return cast(pointwise("eq", *_rows_and_columns(builder, shape)), wanted)


def _rows_and_columns(builder: Builder, shape: tuple[Extent, ...]) -> tuple[TensorValue, TensorValue]:
    """The positions along the last two dims, in the whole shape."""
    rank = len(shape)
    return iota(builder, rank - 2, torch.int64, shape), iota(builder, rank - 1, torch.int64, shape)


def _enter_triangle(name: str, keeps: str) -> None:
    def handler(builder: Any, input: Any, diagonal: Any = 0) -> TensorValue:
        value = tensor(input, name)
        if value.rank < 2:
            raise OpError(f"{name} takes at least 2 dims, got {value.rank}")
        rows, columns = _rows_and_columns(builder, value.shape)
        shift = diagonal if isinstance(diagonal, ScalarValue) else static_int(diagonal, "diagonal")
        kept = pointwise(keeps, columns - rows, shift)
        zero = False if value.dtype is torch.bool else 0
        return select(kept, value, zero, value.dtype)

    handler.__name__ = name
    handles(*everywhere(name))(handler)


_enter_triangle("tril", "le")
_enter_triangle("triu", "ge")


@handles("F.one_hot")
def one_hot(builder: Any, tensor_: Any, num_classes: Any = -1) -> Any:
    value = tensor(tensor_, "one_hot")
    if value.dtype is not torch.int64:
        raise OpError("one_hot takes an int64 tensor", hint="convert it with .long() first")
    if not is_value(num_classes) and num_classes == -1:
        return NotImplemented  # the number of classes is data
    # torch refuses classes out of range; here they give a row of zeros.
    shape = (*value.shape, extent_of(num_classes, "num_classes"))
    wanted = reindex(value, (*range(value.rank), None), shape)
    return cast(pointwise("eq", iota(builder, value.rank, torch.int64, shape), wanted), torch.int64)


# lookups ------------------------------------------------------------


def lookup_row(value: TensorValue, index: TensorValue, dim: int) -> TensorValue:
    """The element of every row along ``dim`` at ``index``; NaN for a position outside the row (0 for integers).

    Args:
        value: any tensor.
        index: integers, of the shape of ``value`` without ``dim``.
        dim: counted from 0; the result drops it.
    """
    position = cast(index, torch.int64)
    inside = in_range(position, size(value, dim))
    found = gather(value, select(inside, position, 0, torch.int64), dim)
    outside = math.nan if value.dtype.is_floating_point else False if value.dtype is torch.bool else 0
    return select(inside, found, outside, value.dtype)


def in_range(position: TensorValue, count: Any) -> TensorValue:
    """Whether 0 <= position < count."""
    return pointwise("bitwise_and", pointwise("ge", position, 0), pointwise("lt", position, count))


@handles(*everywhere("gather"))
def torch_gather(builder: Any, input: Any, dim: Any, index: Any, *, sparse_grad: bool = False) -> Any:
    """One element of every row (``index`` has size 1 along ``dim``); anything else is left to eager torch."""
    value, where = tensor(input, "gather"), tensor(index, "gather")
    place = one_dim(dim, value.rank)
    if value.rank != where.rank:
        raise OpError(f"gather: index has {where.rank} dims, the tensor {value.rank}")
    if not where.dtype == torch.int64:
        raise OpError("gather takes an int64 index", hint="convert it with .long() first")
    if value.rank == 0 or where.shape[place] != 1 or 0 in value.hint_shape:
        return NotImplemented
    for d in range(value.rank):
        if d != place and extent_hint(value.shape[d]) != extent_hint(where.shape[d]):
            return NotImplemented
    for d in range(value.rank):
        if d != place:
            builder.unify(value.shape[d], where.shape[d])
    value, where = tensor(input, "gather"), tensor(index, "gather")
    kept = [d for d in range(value.rank) if d != place]
    row = reindex(where, kept, tuple(where.shape[d] for d in kept))
    return keep_dims(lookup_row(value, row, place), (place,), value)


@handles(*everywhere("take_along_dim"))
def take_along_dim(builder: Any, input: Any, indices: Any, dim: Any = None) -> Any:
    """``gather`` after broadcasting."""
    if dim is None:
        return NotImplemented
    value, where = tensor(input, "take_along_dim"), tensor(indices, "take_along_dim")
    place = one_dim(dim, value.rank)
    if value.rank != where.rank or value.rank == 0 or where.shape[place] != 1:
        return NotImplemented
    if any(extent_hint(value.shape[d]) == 1 != extent_hint(where.shape[d]) for d in range(value.rank) if d != place):
        return NotImplemented
    shape = tuple(1 if d == place else value.shape[d] for d in range(value.rank))
    if any(extent_hint(where.shape[d]) not in (1, extent_hint(shape[d])) for d in range(value.rank)):
        raise OpError(f"take_along_dim: shapes {value.hint_shape} and {where.hint_shape} do not broadcast")
    for d, extent in enumerate(shape):
        if where.shape[d] != 1:
            builder.unify(extent, where.shape[d])
    return torch_gather(builder, value, place, broadcast(where, tuple(builder.resolve(e) for e in shape)))
