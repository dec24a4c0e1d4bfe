# SPDX-License-Identifier: Apache-2.0
"""Activations of ``torch.nn.functional``: each the formula torch documents, computed in at least float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fusedsl.frontend.callables.compose import (
    check_dtypes,
    composite,
    no_inplace,
    static,
    tensor,
    widen_all,
)
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import ScalarValue, TensorValue, cast, pointwise, reindex, select


def _activation(*names: str, eager: Callable[..., Any]) -> Callable[[Callable[..., TensorValue]], Callable[..., Any]]:
    def decorate(formula: Callable[..., TensorValue]) -> Callable[..., Any]:
        return handles(*names)(composite(eager, formula.__name__)(formula))

    return decorate


def _exp(x: TensorValue) -> TensorValue:
    return pointwise("exp", x)


def _positive(x: TensorValue) -> TensorValue:
    return pointwise("gt", x, 0)


# rectifiers: these also take integers where torch does ------------------------------------------------------------


@handles("torch.relu", "Tensor.relu", "F.relu")
def relu(builder: Any, input: Any, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    value = tensor(input, "relu")
    check_dtypes(torch.relu, "relu", value)
    return select(pointwise("le", value, 0), 0, value, value.dtype)


def _inside(value: TensorValue, low: Any, high: Any) -> TensorValue:
    """``value`` between two bounds, which unlike ``clamp``'s have the gradient 0; NaN propagates."""
    below = select(pointwise("ge", value, high), high, value, value.dtype)
    return select(pointwise("le", value, low), low, below, value.dtype)


@handles("F.hardtanh")
def hardtanh(builder: Any, input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False) -> Any:
    no_inplace(inplace)
    value = tensor(input, "hardtanh")
    if not value.dtype.is_floating_point:
        return NotImplemented
    return _inside(value, min_val, max_val)


@handles("F.relu6")
def relu6(builder: Any, input: Any, inplace: bool = False) -> Any:
    return hardtanh(builder, input, 0.0, 6.0, inplace)


@handles("F.threshold", "torch.threshold")
def threshold(builder: Any, input: Any, threshold: Any, value: Any, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    x = tensor(input, "threshold")
    check_dtypes(_threshold_01, "threshold", x)
    return select(pointwise("le", x, threshold), value, x, x.dtype)


def _threshold_01(x: torch.Tensor) -> torch.Tensor:
    return F.threshold(x, 0, 1)


@_activation("F.leaky_relu", eager=F.leaky_relu)
def leaky_relu(input: TensorValue, negative_slope: Any = 0.01, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    return select(_positive(input), input, input * negative_slope, input.dtype)


@handles("F.prelu", "torch.prelu", "Tensor.prelu")
def prelu(builder: Any, input: Any, weight: Any) -> TensorValue:
    if tensor(input, "prelu").dtype is not tensor(weight, "prelu").dtype:
        raise OpError("prelu takes an input and a weight of one dtype")
    dtype, (x, w) = widen_all(F.prelu, "prelu", input, weight)
    if w.rank > 1:
        raise OpError("the weight of prelu has one dim at most")
    after = max(x.rank - 2, 0)
    if w.rank == 1 and w.shape[0] != 1 and x.rank > 1:
        w = reindex(w, (0,) + (None,) * after, (w.shape[0],) + (1,) * after)
    elif w.rank == 1 and x.rank < 2:
        if w.shape[0] != 1:
            raise OpError("prelu of a tensor with fewer than 2 dims takes one weight")
        w = reindex(w, (), ())
    return cast(select(_positive(x), x, w * x, x.dtype), dtype)


@handles("F.rrelu", "torch.rrelu")
def rrelu(
    builder: Any, input: Any, lower: Any = 1 / 8, upper: Any = 1 / 3, training: Any = False, inplace: bool = False
) -> Any:
    no_inplace(inplace)
    if static(training, "training"):
        return NotImplemented
    return leaky_relu(builder, input, (lower + upper) / 2)


# exponential linear units ------------------------------------------------------------


def _elu(x: TensorValue, alpha: Any, scale: Any, input_scale: Any) -> TensorValue:
    negative = pointwise("expm1", x * input_scale) * (alpha * scale)
    return select(_positive(x), x * scale, negative, x.dtype)


@_activation("F.elu", eager=F.elu)
def elu(input: TensorValue, alpha: Any = 1.0, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    return select(_positive(input), input, pointwise("expm1", input) * alpha, input.dtype)


@_activation("F.celu", "torch.celu", eager=F.celu)
def celu(input: TensorValue, alpha: Any = 1.0, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    return select(_positive(input), input, pointwise("expm1", input * (1 / alpha)) * alpha, input.dtype)


@_activation("F.selu", "torch.selu", eager=F.selu)
def selu(input: TensorValue, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    return _elu(input, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


# smooth gates ------------------------------------------------------------


@_activation("F.silu", eager=F.silu)
def silu(input: TensorValue, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    return input / (_exp(-input) + 1)


@_activation("F.mish", eager=F.mish)
def mish(input: TensorValue, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    return input * pointwise("tanh", pointwise("log1p", _exp(input)))


@_activation("F.gelu", eager=F.gelu)
def gelu(input: TensorValue, approximate: Any = "none") -> TensorValue:
    if approximate == "none":
        return input * 0.5 * (pointwise("erf", input * math.sqrt(0.5)) + 1)
    if approximate == "tanh":
        inner = (input + input * input * input * 0.044715) * math.sqrt(2 / math.pi)
        return input * 0.5 * (pointwise("tanh", inner) + 1)
    raise OpError(f"gelu: approximate={approximate!r} is unknown", expected="'none' or 'tanh'")


@_activation("F.softplus", eager=F.softplus)
def softplus(input: TensorValue, beta: Any = 1.0, threshold: Any = 20.0) -> TensorValue:
    scaled = input if not isinstance(beta, ScalarValue) and beta == 1 else input * beta
    smooth = pointwise("log1p", _exp(scaled))
    smooth = smooth if scaled is input else smooth / beta
    return select(pointwise("gt", scaled, threshold), input, smooth, input.dtype)


@_activation("F.logsigmoid", eager=F.logsigmoid)
def logsigmoid(input: TensorValue) -> TensorValue:
    return pointwise("minimum", input, 0) - pointwise("log1p", _exp(-pointwise("abs", input)))


@_activation("F.hardsigmoid", eager=F.hardsigmoid)
def hardsigmoid(input: TensorValue, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    return _inside(input + 3, 0.0, 6.0) / 6


@_activation("F.hardswish", eager=F.hardswish)
def hardswish(input: TensorValue, inplace: bool = False) -> TensorValue:
    no_inplace(inplace)
    return input * _inside(input + 3, 0.0, 6.0) / 6


@_activation("F.softsign", eager=F.softsign)
def softsign(input: TensorValue) -> TensorValue:
    return input / (pointwise("abs", input) + 1)


@_activation("F.tanhshrink", eager=F.tanhshrink)
def tanhshrink(input: TensorValue) -> TensorValue:
    return input - pointwise("tanh", input)


@_activation("F.hardshrink", "torch.hardshrink", "Tensor.hardshrink", eager=F.hardshrink)
def hardshrink(input: TensorValue, lambd: Any = 0.5) -> TensorValue:
    inside = pointwise("bitwise_and", pointwise("ge", input, -lambd), pointwise("le", input, lambd))
    return select(inside, 0.0, input, input.dtype)


@_activation("F.softshrink", eager=F.softshrink)
def softshrink(input: TensorValue, lambd: Any = 0.5) -> TensorValue:
    # x * 0 keeps a NaN.
    low = select(pointwise("lt", input, -lambd), input + lambd, input * 0, input.dtype)
    return select(pointwise("gt", input, lambd), input - lambd, low, input.dtype)
