# SPDX-License-Identifier: Apache-2.0
"""Cross entropy and its kin: a row's log-sum-exp and its entry at a target class.

Everything is computed in at least float32 and rounded once. A target that is neither a class nor ``ignore_index``
makes its row's loss NaN, and with it the mean and the sum: no memory outside the row is read. If every target is
ignored the mean is NaN, the sum 0, as in torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from fusedsl.frontend.callables.compose import check_dtypes, static, tensor, widen
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.extents import count
from fusedsl.frontend.callables.positions import in_range, lookup_row
from fusedsl.frontend.callables.reductions import reduce
from fusedsl.frontend.callables.shapes import keep_dims
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import (
    TensorValue,
    cast,
    is_value,
    pointwise,
    reindex,
    select,
    size,
)
from fusedsl.graph.types import dtype_name, extent_hint


class _Targets:
    """Class indices of the rows of ``logits`` along ``dim``: which are ignored, and the weight of each."""

    def __init__(self, logits: TensorValue, target: Any, dim: int, weight: Any, ignore_index: Any, name: str) -> None:
        self.index = tensor(target, name)
        if self.index.dtype not in (torch.int64, torch.uint8):
            raise OpError(
                f"{name} takes int64 targets, got {dtype_name(self.index.dtype)}",
                expected="class indices as int64 (or class probabilities of the input's shape)",
                hint="target.long()",
            )
        builder = logits.builder
        wanted = logits.shape[:dim] + logits.shape[dim + 1 :]
        if tuple(map(extent_hint, wanted)) != self.index.hint_shape:
            raise OpError(
                f"{name}: targets of shape {self.index.hint_shape} do not fit an input of shape {logits.hint_shape}",
                expected=f"shape {tuple(map(extent_hint, wanted))}",
            )
        for a, b in zip(wanted, self.index.shape, strict=True):
            builder.unify(a, b)
        self.index = tensor(target, name)
        position = cast(self.index, torch.int64)
        self.ignored = pointwise("eq", position, ignore_index)
        self.valid = in_range(position, size(logits, dim))
        self.dim = dim
        self.weight = None if weight is None else _over_classes(logits, weight, dim, name)

    def pick(self, row: TensorValue) -> TensorValue:
        """The entry of every row at its target; NaN where the target is no class."""
        return lookup_row(row, self.index, self.dim)

    def settle(self, loss: TensorValue) -> TensorValue:
        """The loss of every row, 0 where it is ignored."""
        return select(self.ignored, 0.0, loss, loss.dtype)

    def row_weight(self, like: TensorValue) -> TensorValue:
        """The weight of every row's class, 0 where it is ignored."""
        if self.weight is None:
            return cast(pointwise("bitwise_not", self.ignored), like.dtype)
        return self.settle(self.pick(self.weight))


def _over_classes(logits: TensorValue, weight: Any, dim: int, name: str) -> TensorValue:
    """Class weights as a tensor of the shape of ``logits``, in its dtype."""
    value = tensor(weight, name)
    if value.hint_shape != (extent_hint(logits.shape[dim]),):
        raise OpError(f"{name}: weight has shape {value.hint_shape}, there are {logits.hint_shape[dim]} classes")
    logits.builder.unify(value.shape[0], logits.shape[dim])
    shape = logits.shape
    spread = reindex(value, [0 if d == dim else None for d in range(len(shape))], shape)
    return cast(spread, logits.dtype)


def _reduced(loss: TensorValue, weight: TensorValue, reduction: Any) -> TensorValue:
    """``weight`` is what the mean divides by the sum of."""
    dims = tuple(range(loss.rank))
    match static(reduction, "reduction"):
        case "none":
            return loss
        case "sum":
            return reduce("sum", loss, dims)
        case "mean":
            return reduce("sum", loss, dims) / reduce("sum", weight, dims)
        case other:
            raise OpError(f"reduction={other!r} is unknown", expected="'none', 'mean' or 'sum'")


def _class_dim(value: TensorValue, name: str) -> int:
    if value.rank == 0:
        raise OpError(f"{name} takes a tensor of at least 1 dim")
    return min(1, value.rank - 1)


@handles("F.nll_loss")
def nll_loss(
    builder: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: Any = -100,
    reduce: Any = None,
    reduction: Any = "mean",
) -> Any:
    value = tensor(input, "nll_loss")
    if not size_average is reduce is None or not value.dtype.is_floating_point or 0 in value.hint_shape:
        return NotImplemented
    wide = widen(value, value.dtype)
    targets = _Targets(wide, target, _class_dim(value, "nll_loss"), weight, ignore_index, "nll_loss")
    row_weight = targets.row_weight(wide)
    loss = -targets.pick(wide)
    if targets.weight is not None:
        loss = loss * row_weight
    return cast(_reduced(targets.settle(loss), row_weight, reduction), value.dtype)


@handles("F.cross_entropy")
def cross_entropy(
    builder: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: Any = -100,
    reduce: Any = None,
    reduction: Any = "mean",
    label_smoothing: Any = 0.0,
) -> Any:
    value = tensor(input, "cross_entropy")
    if not size_average is reduce is None or not value.dtype.is_floating_point or 0 in value.hint_shape:
        return NotImplemented
    smoothing = label_smoothing if is_value(label_smoothing) else float(static(label_smoothing, "label_smoothing"))
    if not is_value(smoothing) and not 0.0 <= smoothing <= 1.0:
        raise OpError(f"label_smoothing={smoothing} is not between 0 and 1")
    dim = _class_dim(value, "cross_entropy")
    arguments = value, tensor(target, "cross_entropy"), weight, dim, smoothing
    if arguments[1].hint_shape == value.hint_shape and arguments[1].dtype.is_floating_point:
        loss = _soft_cross_entropy(*arguments, reduction)
    else:
        loss = _hard_cross_entropy(*arguments, ignore_index, reduction)
    return cast(loss, value.dtype)


class _Row:
    """A row of logits: its entries less their maximum, and the logarithm of the sum of their exponentials."""

    def __init__(self, logits: TensorValue, dim: int) -> None:
        self.dims = (dim,)
        self.logits = logits
        self.top = reduce("amax", logits, self.dims)
        self.shifted = logits - keep_dims(self.top, self.dims, logits)
        self.log_sum = pointwise("log", reduce("sum", pointwise("exp", self.shifted), self.dims))

    def total(self, weight: TensorValue | None) -> TensorValue:
        """The sum of the row's negative log-probabilities, each times its weight; no term of it is negative."""
        if weight is None:
            return self.log_sum * count(self.logits, self.dims) - reduce("sum", self.shifted, self.dims)
        return self.log_sum * reduce("sum", weight, self.dims) - reduce("sum", self.shifted * weight, self.dims)


def _hard_cross_entropy(
    value: TensorValue,
    target: TensorValue,
    weight: Any,
    dim: int,
    smoothing: Any,
    ignore_index: Any,
    reduction: Any,
) -> TensorValue:
    """Targets are class indices."""
    targets = _Targets(widen(value, value.dtype), target, dim, weight, ignore_index, "cross_entropy")
    wide = widen(value, value.dtype)
    row = _Row(wide, dim)
    row_weight = targets.row_weight(wide)
    # the logit is looked up in the row as it was read, in the same pass as the maximum
    loss = row.log_sum - (targets.pick(wide) - row.top)
    if targets.weight is not None:
        loss = loss * row_weight
    if is_value(smoothing) or smoothing > 0:
        spread = select(targets.valid, row.total(targets.weight), math.nan, wide.dtype)
        loss = loss * (1 - smoothing) + spread * (smoothing / count(wide, (dim,)))
    return _reduced(targets.settle(loss), row_weight, reduction)


def _soft_cross_entropy(
    value: TensorValue, target: TensorValue, weight: Any, dim: int, smoothing: Any, reduction: Any
) -> TensorValue:
    """Targets are class probabilities."""
    check_dtypes(F.cross_entropy, "cross_entropy", value, target)
    for a, b in zip(value.shape, target.shape, strict=True):
        value.builder.unify(a, b)
    wide = widen(value, value.dtype)
    wanted = widen(target, value.dtype)
    classes = count(wide, (dim,))
    if is_value(smoothing) or smoothing > 0:
        wanted = wanted * (1 - smoothing) + smoothing / classes
    if weight is not None:
        wanted = wanted * _over_classes(wide, weight, dim, "cross_entropy")
    loss = _Row(wide, dim).total(wanted)
    match static(reduction, "reduction"):
        case "mean":
            rows = count(wide, [d for d in range(wide.rank) if d != dim])
            return reduce("sum", loss, tuple(range(loss.rank))) / rows
        case _:
            return _reduced(loss, loss, reduction)
