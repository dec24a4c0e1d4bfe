# SPDX-License-Identifier: Apache-2.0
"""Functions of one tensor, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.callables.compose import check_dtypes, composite, static_int, tensor
from fusedsl.frontend.callables.logic import clamped
from fusedsl.frontend.callables.table import everywhere, handles
from fusedsl.frontend.callables.values import ScalarValue, TensorValue, host, pointwise, select


def _enter_direct(name: str, *aliases: str) -> None:
    eager = getattr(torch, name)

    def handler(builder: Any, input: Any) -> TensorValue:
        return pointwise(name, tensor(input, name), eager=eager)

    handler.__name__ = name
    handles(*everywhere(name), *aliases)(handler)


for _name, _aliases in {
    "floor": (),
    "ceil": (),
    "trunc": everywhere("fix"),
    "sign": everywhere("sgn"),
    "sqrt": (),
    "rsqrt": (),
    "reciprocal": (),
    "exp": (),
    "exp2": ("special.exp2",),
    "expm1": ("special.expm1",),
    "log": (),
    "log2": (),
    "log10": (),
    "log1p": ("special.log1p",),
    "sin": (),
    "cos": (),
    "tan": (),
    "asin": everywhere("arcsin"),
    "acos": everywhere("arccos"),
    "atan": everywhere("arctan"),
    "sinh": (),
    "cosh": (),
    "tanh": ("F.tanh",),
    "asinh": everywhere("arcsinh"),
    "acosh": everywhere("arccosh"),
    "atanh": everywhere("arctanh"),
    "erf": ("special.erf",),
    "erfc": ("special.erfc",),
    "erfinv": ("special.erfinv",),
    "lgamma": ("special.gammaln",),
    "digamma": ("special.digamma", "special.psi"),
    "sigmoid": ("F.sigmoid", "special.expit"),
}.items():
    _enter_direct(_name, *_aliases)


def _enter_operator(name: str, *names: str) -> None:
    eager = getattr(torch, name)

    def handler(builder: Any, input: Any) -> Any:
        return pointwise(name, input, eager=eager) if isinstance(input, TensorValue) else host(name, input)

    handler.__name__ = name
    handles(*names)(handler)


_enter_operator("neg", *everywhere("neg"), *everywhere("negative"), "operator.neg", "ast.USub")
_enter_operator("abs", *everywhere("abs"), *everywhere("absolute"), "operator.abs", "builtins.abs")


@handles(*everywhere("positive"), "operator.pos", "ast.UAdd")
def positive(builder: Any, input: Any) -> Any:
    if not isinstance(input, TensorValue):
        return host("pos", input)
    check_dtypes(torch.positive, "positive", input)
    return input


@handles(*everywhere("round"), "special.round", "builtins.round")
def round(builder: Any, input: Any, *, decimals: Any = 0) -> Any:
    if isinstance(input, ScalarValue):
        return host("round", input)
    value, places = tensor(input, "round"), static_int(decimals, "decimals")
    if places == 0 or not value.dtype.is_floating_point:
        return pointwise("round", value, eager=torch.round)
    scale = 10.0 ** abs(places)
    up, down = ("mul", "div") if places > 0 else ("div", "mul")

    @composite(torch.round, "round")
    def rounded(input: TensorValue) -> TensorValue:
        return pointwise(down, pointwise("round", pointwise(up, input, scale)), scale)

    return rounded(builder, value)


@handles(*everywhere("frac"))
def frac(builder: Any, input: Any) -> TensorValue:
    value = tensor(input, "frac")
    check_dtypes(torch.frac, "frac", value)
    return value - pointwise("trunc", value)


@handles(*everywhere("nan_to_num"))
def nan_to_num(builder: Any, input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> TensorValue:
    value = tensor(input, "nan_to_num")
    dtype = value.dtype
    if not dtype.is_floating_point:
        return pointwise("clone", value)
    limits = torch.finfo(dtype)
    result = value
    for mask, given, default in [
        (pointwise("isnan", value), nan, 0.0),
        (pointwise("eq", value, math.inf), posinf, limits.max),
        (pointwise("eq", value, -math.inf), neginf, limits.min),
    ]:
        result = select(mask, default if given is None else given, result, dtype)
    return result


@handles(*everywhere("angle"))
def angle(builder: Any, input: Any) -> Any:
    return _angle(builder, input)


@composite(torch.angle, "angle")
def _angle(input: TensorValue) -> TensorValue:
    turned = select(pointwise("lt", input, 0), math.pi, 0.0, input.dtype)
    return select(pointwise("isnan", input), input, turned, input.dtype)


@handles(
    *everywhere("conj"),
    *everywhere("conj_physical"),
    "torch.real",
    *everywhere("resolve_conj"),
    *everywhere("resolve_neg"),
)
def conj(builder: Any, input: Any) -> TensorValue:
    return tensor(input, "conj")


def _enter_composite(
    *names: str, eager: Callable[..., Any]
) -> Callable[[Callable[..., TensorValue]], Callable[..., Any]]:
    def decorate(formula: Callable[..., TensorValue]) -> Callable[..., Any]:
        return handles(*names)(composite(eager, formula.__name__)(formula))

    return decorate


@_enter_composite(*everywhere("deg2rad"), eager=torch.deg2rad)
def deg2rad(input: TensorValue) -> TensorValue:
    return input * (math.pi / 180)


@_enter_composite(*everywhere("rad2deg"), eager=torch.rad2deg)
def rad2deg(input: TensorValue) -> TensorValue:
    return input * (180 / math.pi)


@_enter_composite(*everywhere("sinc"), "special.sinc", eager=torch.sinc)
def sinc(input: TensorValue) -> TensorValue:
    angle_ = input * math.pi
    return select(pointwise("eq", input, 0), 1.0, pointwise("sin", angle_) / angle_, input.dtype)


@_enter_composite(*everywhere("logit"), "special.logit", eager=torch.logit)
def logit(input: TensorValue, eps: Any = None) -> TensorValue:
    x = input if eps is None else clamped(input, eps, 1 - eps, input.dtype)
    return pointwise("log", x / (1 - x))


@_enter_composite("special.entr", eager=torch.special.entr)
def entr(input: TensorValue) -> TensorValue:
    positive_ = select(pointwise("gt", input, 0), -input * pointwise("log", input), -math.inf, input.dtype)
    zero = select(pointwise("eq", input, 0), 0.0, positive_, input.dtype)
    return select(pointwise("isnan", input), input, zero, input.dtype)


@_enter_composite("special.ndtr", eager=torch.special.ndtr)
def ndtr(input: TensorValue) -> TensorValue:
    # erfc keeps the tail where 1 + erf would cancel.
    return pointwise("erfc", input * -math.sqrt(0.5)) * 0.5


@handles(*everywhere("polygamma"), "special.polygamma")
def polygamma(builder: Any, n: Any, input: Any = None) -> Any:
    if isinstance(n, TensorValue):
        n, input = input, n
    if static_int(n, "n") != 0:
        return NotImplemented
    return pointwise("digamma", tensor(input, "polygamma"))
