# SPDX-License-Identifier: Apache-2.0
"""Elementwise losses of ``torch.nn.functional``; ``weight=`` and the deprecated options are left to eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from fusedsl.frontend.callables.arithmetic import xlogy
from fusedsl.frontend.callables.compose import static, widen_all
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.logic import clamped
from fusedsl.frontend.callables.reductions import averaged
from fusedsl.frontend.callables.reductions import reduce as reduce_over
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import TensorValue, broadcast, broadcast_shape, cast, pointwise, select, size


def _pair(eager: Callable[..., Any], name: str, input: Any, target: Any) -> tuple[Any, TensorValue, TensorValue]:
    dtype, (x, y) = widen_all(eager, name, input, target)
    shape = broadcast_shape(x.builder, [x.shape, y.shape])
    return dtype, broadcast(x, shape), broadcast(y, shape)


def _reduced(loss: TensorValue, reduction: Any, dtype: Any) -> TensorValue:
    dims = tuple(range(loss.rank))
    match static(reduction, "reduction"):
        case "none":
            return cast(loss, dtype)
        case "sum":
            return cast(reduce_over("sum", loss, dims), dtype)
        case "mean":
            return cast(averaged(loss, dims), dtype)
        case other:
            raise OpError(f"reduction={other!r} is unknown", expected="'none', 'mean' or 'sum'")


@handles("F.mse_loss")
def mse_loss(
    builder: Any,
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    weight: Any = None,
) -> Any:
    if not size_average is reduce is weight is None:
        return NotImplemented
    dtype, x, y = _pair(F.mse_loss, "mse_loss", input, target)
    difference = x - y
    return _reduced(difference * difference, reduction, dtype)


@handles("F.l1_loss")
def l1_loss(
    builder: Any,
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    weight: Any = None,
) -> Any:
    if not size_average is reduce is weight is None:
        return NotImplemented
    dtype, x, y = _pair(F.l1_loss, "l1_loss", input, target)
    return _reduced(pointwise("abs", x - y), reduction, dtype)


@handles("F.smooth_l1_loss")
def smooth_l1_loss(
    builder: Any,
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    beta: Any = 1.0,
) -> Any:
    if not size_average is reduce is None:
        return NotImplemented
    bend = static(beta, "beta")
    if bend < 0:
        raise OpError(f"smooth_l1_loss: beta={bend} is negative")
    dtype, x, y = _pair(F.smooth_l1_loss, "smooth_l1_loss", input, target)
    distance = pointwise("abs", x - y)
    if bend == 0:
        return _reduced(distance, reduction, dtype)
    loss = select(
        pointwise("lt", distance, bend), distance * 0.5 * distance / bend, distance - 0.5 * bend, distance.dtype
    )
    return _reduced(loss, reduction, dtype)


@handles("F.huber_loss")
def huber_loss(
    builder: Any, input: Any, target: Any, reduction: Any = "mean", delta: Any = 1.0, weight: Any = None
) -> Any:
    if weight is not None:
        return NotImplemented
    dtype, x, y = _pair(F.huber_loss, "huber_loss", input, target)
    distance = pointwise("abs", x - y)
    quadratic, linear = distance * 0.5 * distance, (distance - 0.5 * delta) * delta
    return _reduced(select(pointwise("le", distance, delta), quadratic, linear, distance.dtype), reduction, dtype)


@handles("F.binary_cross_entropy")
def binary_cross_entropy(
    builder: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
) -> Any:
    if not size_average is reduce is weight is None:
        return NotImplemented
    dtype, x, y = _pair(F.binary_cross_entropy, "binary_cross_entropy", input, target)
    log_x = clamped(pointwise("log", x), -100, None, x.dtype)
    log_rest = clamped(pointwise("log1p", -x), -100, None, x.dtype)
    return _reduced((y - 1) * log_rest - y * log_x, reduction, dtype)


@handles("F.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    builder: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    pos_weight: Any = None,
) -> Any:
    if not size_average is reduce is weight is pos_weight is None:
        return NotImplemented
    dtype, x, y = _pair(F.binary_cross_entropy_with_logits, "binary_cross_entropy_with_logits", input, target)
    log_sigmoid = pointwise("minimum", x, 0) - pointwise("log1p", pointwise("exp", -pointwise("abs", x)))
    return _reduced((1 - y) * x - log_sigmoid, reduction, dtype)


@handles("F.kl_div")
def kl_div(
    builder: Any,
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: Any = "mean",
    log_target: Any = False,
) -> Any:
    if not size_average is reduce is None:
        return NotImplemented
    dtype, x, y = _pair(F.kl_div, "kl_div", input, target)
    loss = pointwise("exp", y) * (y - x) if static(log_target, "log_target") else xlogy(builder, y, y) - y * x
    if reduction == "batchmean":
        total = _reduced(loss, "sum", loss.dtype)
        return cast(total / size(loss, 0), dtype)
    return _reduced(loss, reduction, dtype)
