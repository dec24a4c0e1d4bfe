# SPDX-License-Identifier: Apache-2.0
"""Dropout: the random numbers are a graph value keyed by element, so the mask is never stored.

``dropout`` keeps the elements that torch keeps on CUDA for the same generator state (see
:mod:`fusedsl.graph.random`). Its kin, which torch draws by another kernel, and everything on the CPU are reproducible
after ``torch.manual_seed`` but have masks of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fusedsl.frontend.callables.compose import static, tensor, widen
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.extents import count
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import ScalarValue, TensorValue, broadcast, cast, constant, pointwise, select
from fusedsl.graph.builder import Builder
from fusedsl.graph.types import Extent, ScalarType, TensorType

#: The negative saturation value of selu, which alpha_dropout sets elements to.
_SATURATION = 1.7580993408473766


def _uniform(value: TensorValue, shape: tuple[Extent, ...]) -> TensorValue:
    """New random numbers in (0, 1] for the elements of a tensor like ``value`` with some dims of size 1."""
    builder: Builder = value.builder
    draw = builder.scalar_input("draw", "int")
    numel = count(value, [d for d, extent in enumerate(shape) if extent != 1])
    operands = (draw, numel.id if isinstance(numel, ScalarValue) else constant(builder, numel).id)
    names = ("random.seed", "random.offset", "random.threads")
    state = [builder.add("scalar", operands, ScalarType("int"), function=name) for name in names]
    node = builder.add("random", state, TensorType(torch.float32, shape), itemsize=value.dtype.itemsize)
    return TensorValue(builder, node)


def _checked(input: Any, p: Any, training: Any, name: str) -> tuple[TensorValue, float | None]:
    """The tensor, and the probability of dropping an element; None if nothing is to be dropped."""
    value = tensor(input, name)
    chance = static(p, "p")
    if not 0 <= chance <= 1:
        raise OpError(f"{name}: p={chance} is not between 0 and 1")
    if not static(training, "training") or chance == 0 or 0 in value.hint_shape:
        return value, None
    if not value.dtype.is_floating_point:
        raise OpError(f"{name} takes a floating tensor", hint="convert it with .float() first")
    return value, float(chance)


def _masked(value: TensorValue, shape: tuple[Extent, ...], p: float) -> TensorValue:
    """Elements dropped with probability ``p``, the others scaled to keep the mean; NaN and infinity show as NaN."""
    wide: TensorValue = widen(value, value.dtype)
    if p == 1:
        return cast(wide * 0.0, value.dtype)
    keep = 1 - p if wide.dtype is torch.float64 else float(np.float32(1 - p))
    scale = select(pointwise("lt", _uniform(value, shape), keep), 1 / keep, 0.0, wide.dtype)
    return cast(wide * broadcast(scale, wide.shape), value.dtype)


@handles("F.dropout", "torch.dropout")
def dropout(builder: Any, input: Any, p: Any = 0.5, training: Any = True, inplace: bool = False) -> TensorValue:
    value, chance = _checked(input, p, training, "dropout")
    return value if chance is None else _masked(value, value.shape, chance)


def _enter_feature_dropout(name: str, unbatched_rank: int | None) -> Callable[..., TensorValue]:
    def handler(builder: Any, input: Any, p: Any = 0.5, training: Any = True, inplace: bool = False) -> TensorValue:
        value, chance = _checked(input, p, training, name)
        if chance is None:
            return value
        if value.rank < 2:
            raise OpError(f"{name} takes a tensor of at least 2 dims, got {value.rank}")
        kept = 1 if value.rank == unbatched_rank else 2
        return _masked(value, tuple(e if d < kept else 1 for d, e in enumerate(value.shape)), chance)

    handler.__name__ = name
    handles(*(f"{root}.{name}" for root in ("F", "torch")))(handler)
    return handler


for _name, _rank in [("dropout1d", 2), ("dropout2d", None), ("dropout3d", 4), ("feature_dropout", None)]:
    _enter_feature_dropout(_name, _rank)


@handles("F.alpha_dropout", "torch.alpha_dropout")
def alpha_dropout(builder: Any, input: Any, p: Any = 0.5, training: Any = False, inplace: bool = False) -> TensorValue:
    value, chance = _checked(input, p, training, "alpha_dropout")
    return value if chance is None else _saturated(value, value.shape, chance)


@handles("F.feature_alpha_dropout", "torch.feature_alpha_dropout")
def feature_alpha_dropout(
    builder: Any, input: Any, p: Any = 0.5, training: Any = False, inplace: bool = False
) -> TensorValue:
    value, chance = _checked(input, p, training, "feature_alpha_dropout")
    if chance is None:
        return value
    if value.rank < 2:
        raise OpError(f"feature_alpha_dropout takes a tensor of at least 2 dims, got {value.rank}")
    return _saturated(value, tuple(e if d < 2 else 1 for d, e in enumerate(value.shape)), chance)


def _saturated(value: TensorValue, shape: tuple[Extent, ...], p: float) -> TensorValue:
    """Elements set to the negative saturation value with probability ``p``, scaled to keep mean and variance."""
    wide: TensorValue = widen(value, value.dtype)
    if p == 1:
        return cast(wide * 0.0, value.dtype)
    scale = 1 / math.sqrt((_SATURATION**2 * p + 1) * (1 - p))
    kept = pointwise("lt", _uniform(value, shape), 1 - p)
    factor = broadcast(select(kept, scale, 0.0, wide.dtype), wide.shape)
    shift = select(kept, _SATURATION * scale * p, _SATURATION * scale * (p - 1), wide.dtype)
    return cast(wide * factor + broadcast(shift, wide.shape), value.dtype)
