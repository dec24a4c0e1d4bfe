# SPDX-License-Identifier: Apache-2.0
"""Sums, products, extrema, variances and norms over any set of dims."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from fusedsl.frontend.callables.compose import (
    check_dtypes,
    common_dtype,
    dtype_argument,
    many_dims,
    one_dim,
    static,
    tensor,
    widen,
)
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.extents import count
from fusedsl.frontend.callables.logic import as_bool, maximum, minimum
from fusedsl.frontend.callables.shapes import keep_dims
from fusedsl.frontend.callables.table import everywhere, handles
from fusedsl.frontend.callables.values import TensorValue, cast, full, host, is_value, pointwise, reindex, select
from fusedsl.graph.types import TensorType, extent_hint


def reduce(op: str, value: TensorValue, dims: Sequence[int], keepdim: bool = False) -> TensorValue:
    """One reduction node over sorted ``dims``, and the reindex that keeps them with size 1.

    No dims (a 0-dim tensor) give a copy, or index 0.
    """
    type_ = value.type
    dtype = torch.int64 if op in ("argmax", "argmin") else type_.dtype
    if not dims:
        return full(value.builder, 0, dtype, type_.shape) if dtype is not type_.dtype else pointwise("clone", value)
    shape = tuple(e for d, e in enumerate(type_.shape) if d not in dims)
    node = value.builder.add(op, (value.id,), TensorType(dtype, shape), dims=tuple(dims))
    result = TensorValue(value.builder, node)
    return keep_dims(result, dims, value) if keepdim else result


def refuse_empty(value: TensorValue, dims: Sequence[int], name: str) -> None:
    """Raise if a dim to reduce is empty and the reduction has no value for that."""
    for dim in dims:
        if extent_hint(value.shape[dim]) == 0:
            raise OpError(f"{name} over dim {dim} of size 0 has no value", expected="a dim that is not empty")


@functools.cache
def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.ones(1, dtype=dtype, device="cpu").sum().dtype


# sums ------------------------------------------------------------


@handles(*everywhere("sum"))
def sum(builder: Any, input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> TensorValue:
    value = tensor(input, "sum")
    wanted = dtype_argument(dtype) or _sum_dtype(value.dtype)
    return reduce("sum", cast(value, wanted), many_dims(dim, value.rank), static(keepdim, "keepdim"))


@handles(*everywhere("nansum"))
def nansum(builder: Any, input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> TensorValue:
    value = tensor(input, "nansum")
    if value.dtype.is_floating_point:
        value = select(pointwise("isnan", value), 0.0, value, value.dtype)
    return sum(builder, value, dim, keepdim, dtype=dtype)


@handles(*everywhere("prod"))
def prod(builder: Any, input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> TensorValue:
    value = tensor(input, "prod")
    dims = many_dims(None, value.rank) if dim is None else many_dims(one_dim(dim, value.rank), value.rank)
    wanted = dtype_argument(dtype) or _sum_dtype(value.dtype)
    return reduce("prod", cast(value, wanted), dims, static(keepdim, "keepdim"))


@handles(*everywhere("count_nonzero"))
def count_nonzero(builder: Any, input: Any, dim: Any = None) -> TensorValue:
    value = tensor(input, "count_nonzero")
    return reduce("sum", cast(as_bool(value), torch.int64), many_dims(dim, value.rank))


def averaged(value: TensorValue, dims: Sequence[int], keepdim: bool = False) -> TensorValue:
    """The mean over ``dims`` in the value's own dtype; the division follows the reindex."""
    total = reduce("sum", value, dims, keepdim)
    return total / count(value, dims) if dims else total


@handles(*everywhere("mean"))
def mean(builder: Any, input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> TensorValue:
    value = tensor(input, "mean")
    wanted = dtype_argument(dtype) or value.dtype
    if not wanted.is_floating_point:
        raise OpError(
            f"mean of {str(wanted).removeprefix('torch.')} has no float dtype",
            expected="a floating tensor",
            hint="mean(dtype=torch.float32)",
        )
    wide = widen(cast(value, wanted), wanted)
    return cast(averaged(wide, many_dims(dim, value.rank), static(keepdim, "keepdim")), wanted)


@handles(*everywhere("nanmean"))
def nanmean(builder: Any, input: Any, dim: Any = None, keepdim: Any = False, *, dtype: Any = None) -> TensorValue:
    value = tensor(input, "nanmean")
    if not value.dtype.is_floating_point:
        raise OpError("nanmean takes a floating tensor", hint="convert it with .float() first")
    wanted = dtype_argument(dtype) or value.dtype
    wide = widen(cast(value, wanted), wanted)
    dims, keep = many_dims(dim, value.rank), static(keepdim, "keepdim")
    missing = pointwise("isnan", wide)
    total = reduce("sum", select(missing, 0.0, wide, wide.dtype), dims, keep)
    present = reduce("sum", cast(pointwise("bitwise_not", missing), torch.int64), dims, keep)
    return cast(total / cast(present, wide.dtype), wanted)


# extrema ------------------------------------------------------------


_BOOL_EXTREMA = {"amax": "any", "amin": "all"}


def _extremum(op: str, value: TensorValue, dims: Sequence[int], keepdim: bool) -> TensorValue:
    refuse_empty(value, dims, op)
    return reduce(_BOOL_EXTREMA[op] if value.dtype is torch.bool else op, value, dims, keepdim)


@handles(*everywhere("amax"))
def amax(builder: Any, input: Any, dim: Any = (), keepdim: Any = False) -> TensorValue:
    value = tensor(input, "amax")
    return _extremum("amax", value, many_dims(dim, value.rank), static(keepdim, "keepdim"))


@handles(*everywhere("amin"))
def amin(builder: Any, input: Any, dim: Any = (), keepdim: Any = False) -> TensorValue:
    value = tensor(input, "amin")
    return _extremum("amin", value, many_dims(dim, value.rank), static(keepdim, "keepdim"))


@handles(*everywhere("aminmax"))
def aminmax(builder: Any, input: Any, *, dim: Any = None, keepdim: Any = False) -> Any:
    value = tensor(input, "aminmax")
    dims = many_dims(None if dim is None else one_dim(dim, value.rank), value.rank)
    keep = static(keepdim, "keepdim")
    pack: Any = torch.return_types.aminmax
    return pack([_extremum("amin", value, dims, keep), _extremum("amax", value, dims, keep)])


def _index(op: str, value: TensorValue, dim: Any, keepdim: bool) -> TensorValue:
    check_dtypes(getattr(torch, op), op, value)
    dims = many_dims(None if dim is None else one_dim(dim, value.rank), value.rank)
    refuse_empty(value, dims, op)
    return reduce(op, value, dims, keepdim)


@handles(*everywhere("argmax"))
def argmax(builder: Any, input: Any, dim: Any = None, keepdim: Any = False) -> TensorValue:
    return _index("argmax", tensor(input, "argmax"), dim, static(keepdim, "keepdim"))


@handles(*everywhere("argmin"))
def argmin(builder: Any, input: Any, dim: Any = None, keepdim: Any = False) -> TensorValue:
    return _index("argmin", tensor(input, "argmin"), dim, static(keepdim, "keepdim"))


def _max_or_min(name: str, builder: Any, input: Any, dim: Any, keepdim: Any, other: Any) -> Any:
    value = tensor(input, name)
    if isinstance(dim, TensorValue) or other is not None:
        pair = maximum if name == "max" else minimum
        return pair(builder, value, other if other is not None else dim)
    if dim is None:
        return _extremum(f"a{name}", value, many_dims(None, value.rank), False)
    place, keep = one_dim(dim, value.rank), static(keepdim, "keepdim")
    dims = many_dims(place, value.rank)
    # torch has no argmax of bools, but it has max(dim) of bools.
    ranked = cast(value, torch.uint8) if value.dtype is torch.bool else value
    pack: Any = torch.return_types.max if name == "max" else torch.return_types.min
    return pack([_extremum(f"a{name}", value, dims, keep), _index(f"arg{name}", ranked, place, keep)])


@handles(*everywhere("max"))
def max(builder: Any, input: Any, dim: Any = None, keepdim: Any = False, *, other: Any = None) -> Any:
    return _max_or_min("max", builder, input, dim, keepdim, other)


@handles(*everywhere("min"))
def min(builder: Any, input: Any, dim: Any = None, keepdim: Any = False, *, other: Any = None) -> Any:
    return _max_or_min("min", builder, input, dim, keepdim, other)


# truth ------------------------------------------------------------


def _truth(op: str, value: TensorValue, dim: Any, keepdim: Any) -> TensorValue:
    result = reduce(op, as_bool(value), many_dims(dim, value.rank), static(keepdim, "keepdim"))
    return cast(result, torch.uint8) if value.dtype is torch.uint8 else result


@handles(*everywhere("any"))
def any(builder: Any, input: Any, dim: Any = None, keepdim: Any = False) -> TensorValue:
    return _truth("any", tensor(input, "any"), dim, keepdim)


@handles(*everywhere("all"))
def all(builder: Any, input: Any, dim: Any = None, keepdim: Any = False) -> TensorValue:
    return _truth("all", tensor(input, "all"), dim, keepdim)


# variance ------------------------------------------------------------


def centred_variance(
    value: TensorValue, dims: Sequence[int], correction: Any = 0, keepdim: bool = False
) -> tuple[TensorValue, TensorValue]:
    """Variance and mean over ``dims`` in the value's own dtype, by two passes; the mean keeps its dims."""
    centre = averaged(value, dims, keepdim=True)
    deviation = value - centre
    total = reduce("sum", deviation * deviation, dims, keepdim)
    number = count(value, dims)
    if is_value(correction) or correction != 0:
        number = host("max", host("sub", number, correction), 0)
    return total / number, centre


def _variance_arguments(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, Any]:
    """dim and correction of the two forms ``var(unbiased)`` and ``var(dim, unbiased)``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        if correction is not None:
            raise OpError("give unbiased or correction, not both")
        correction = 1 if static(unbiased, "unbiased") else 0
    return dim, 1 if correction is None else correction


def _variance(
    name: str, builder: Any, input: Any, dim: Any, unbiased: Any, keepdim: Any, correction: Any
) -> tuple[TensorValue, TensorValue]:
    value = tensor(input, name)
    if not value.dtype.is_floating_point:
        raise OpError(f"{name} takes a floating tensor", hint="convert it with .float() first")
    dim, correction = _variance_arguments(dim, unbiased, correction)
    dims, keep = many_dims(dim, value.rank), static(keepdim, "keepdim")
    var_, centre = centred_variance(widen(value, value.dtype), dims, correction, keep)
    if not keep:
        kept = [d for d in range(value.rank) if d not in dims]
        centre = _drop(centre, kept)
    if name.startswith("std"):
        var_ = pointwise("sqrt", var_)
    return cast(var_, value.dtype), cast(centre, value.dtype)


def _drop(value: TensorValue, kept: Sequence[int]) -> TensorValue:
    return reindex(value, kept, tuple(value.shape[d] for d in kept))


@handles(*everywhere("var"))
def var(
    builder: Any, input: Any, dim: Any = None, unbiased: Any = None, keepdim: Any = False, *, correction: Any = None
) -> TensorValue:
    return _variance("var", builder, input, dim, unbiased, keepdim, correction)[0]


@handles(*everywhere("std"))
def std(
    builder: Any, input: Any, dim: Any = None, unbiased: Any = None, keepdim: Any = False, *, correction: Any = None
) -> TensorValue:
    return _variance("std", builder, input, dim, unbiased, keepdim, correction)[0]


@handles("torch.var_mean")
def var_mean(
    builder: Any, input: Any, dim: Any = None, unbiased: Any = None, keepdim: Any = False, *, correction: Any = None
) -> tuple[TensorValue, TensorValue]:
    return _variance("var_mean", builder, input, dim, unbiased, keepdim, correction)


@handles("torch.std_mean")
def std_mean(
    builder: Any, input: Any, dim: Any = None, unbiased: Any = None, keepdim: Any = False, *, correction: Any = None
) -> tuple[TensorValue, TensorValue]:
    return _variance("std_mean", builder, input, dim, unbiased, keepdim, correction)


# logsumexp ------------------------------------------------------------


@handles(*everywhere("logsumexp"), "special.logsumexp")
def logsumexp(builder: Any, input: Any, dim: Any, keepdim: Any = False) -> TensorValue:
    value = tensor(input, "logsumexp")
    dtype = common_dtype(value, floating=True)
    dims, keep = many_dims(dim, value.rank), static(keepdim, "keepdim")
    wide = widen(value, dtype)
    if 0 in (extent_hint(value.shape[d]) for d in dims):
        return cast(pointwise("log", reduce("sum", pointwise("exp", wide), dims, keep)), dtype)
    top = reduce("amax", wide, dims, keepdim=True)
    infinite = pointwise("eq", pointwise("abs", top), math.inf)
    shift = select(infinite, 0.0, top, top.dtype)
    total = reduce("sum", pointwise("exp", wide - shift), dims, keep)
    if not keep:
        shift = _drop(shift, [d for d in range(value.rank) if d not in dims])
    return cast(pointwise("log", total) + shift, dtype)
