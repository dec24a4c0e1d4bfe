# SPDX-License-Identifier: Apache-2.0
"""Binary arithmetic: torch functions, tensor methods, Python operators, and the builtins abs, pow and round."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.callables.compose import (
    check_dtypes,
    common_dtype,
    static,
    static_int,
    tensor,
    torch_dtype,
    widen_all,
)
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.logic import logical_and
from fusedsl.frontend.callables.table import everywhere, handles
from fusedsl.frontend.callables.values import (
    Operand,
    ScalarValue,
    TensorValue,
    cast,
    full,
    host,
    is_value,
    pointwise,
    select,
)
from fusedsl.graph.types import compute_dtype

_HOST = {"add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "floor_divide": "floordiv", "remainder": "mod"}


def operator_form(name: str, python: Callable[..., Any], *operands: Any) -> Any:
    """A Python operator on values: static operands are computed, host scalars give a node, tensors a pointwise op.

    Args:
        name: op of the table.
        python: the function of ``operator``.
        operands: of any kind.
    """
    if any(isinstance(x, TensorValue) for x in operands):
        return pointwise(name, *operands, eager=python)
    if any(isinstance(x, ScalarValue) for x in operands):
        return host(_HOST.get(name, python.__name__), *operands)
    return python(*operands)


def _scaled(other: Any, alpha: Any) -> Any:
    if not is_value(alpha) and alpha == 1:
        return other
    return other * alpha


@handles(*everywhere("add"), "operator.add", "operator.iadd", "ast.Add")
def add(builder: Any, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return operator_form("add", operator.add, input, _scaled(other, alpha))


@handles(*everywhere("sub"), *everywhere("subtract"), "operator.sub", "operator.isub", "ast.Sub")
def sub(builder: Any, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return operator_form("sub", operator.sub, input, _scaled(other, alpha))


@handles("torch.rsub", "Tensor.__rsub__")
def rsub(builder: Any, input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return operator_form("sub", operator.sub, other, _scaled(input, alpha))


@handles(*everywhere("mul"), *everywhere("multiply"), "operator.mul", "operator.imul", "ast.Mult")
def mul(builder: Any, input: Any, other: Any) -> Any:
    return operator_form("mul", operator.mul, input, other)


@handles("operator.truediv", "operator.itruediv", "ast.Div")
def truediv(builder: Any, input: Any, other: Any) -> Any:
    return operator_form("div", operator.truediv, input, other)


@handles(*everywhere("div"), *everywhere("divide"))
def div(builder: Any, input: Any, other: Any, *, rounding_mode: Any = None) -> Any:
    if rounding_mode is None:
        return operator_form("div", operator.truediv, input, other)
    if rounding_mode == "floor":
        return pointwise("floor_divide", input, other, eager=torch.floor_divide)
    if rounding_mode == "trunc":
        return _divide_toward_zero(input, other)
    raise OpError(f"rounding_mode={rounding_mode!r} is unknown", expected="None, 'trunc' or 'floor'")


@handles(*everywhere("true_divide"))
def true_divide(builder: Any, input: Any, other: Any) -> Any:
    return pointwise("div", input, other)


def _trunc_div(a: Any, b: Any) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _divide_toward_zero(a: Operand, b: Operand) -> TensorValue:
    dtype, (a, b) = widen_all(_trunc_div, "div", a, b)
    if dtype.is_floating_point:
        return cast(pointwise("trunc", pointwise("div", a, b)), dtype)
    quotient = pointwise("floor_divide", a, b)
    if not dtype.is_signed:
        return quotient
    inexact = pointwise("ne", pointwise("remainder", a, b), 0)
    opposite = pointwise("lt", pointwise("bitwise_xor", a, b), 0)
    return quotient + cast(pointwise("bitwise_and", inexact, opposite), dtype)


@handles(*everywhere("floor_divide"), "operator.floordiv", "operator.ifloordiv", "ast.FloorDiv")
def floor_divide(builder: Any, input: Any, other: Any) -> Any:
    return operator_form("floor_divide", operator.floordiv, input, other)


@handles(*everywhere("remainder"), "operator.mod", "operator.imod", "ast.Mod")
def remainder(builder: Any, input: Any, other: Any) -> Any:
    return operator_form("remainder", operator.mod, input, other)


@handles(*everywhere("fmod"))
def fmod(builder: Any, input: Any, other: Any) -> TensorValue:
    return pointwise("fmod", input, other, eager=torch.fmod)


# powers ------------------------------------------------------------


@handles(*everywhere("pow"), "operator.pow", "operator.ipow", "ast.Pow", "builtins.pow")
def pow(builder: Any, input: Any, exponent: Any) -> Any:
    if not isinstance(input, TensorValue):
        return operator_form("pow", operator.pow, input, exponent)
    if is_value(exponent):
        return pointwise("pow", input, exponent, eager=operator.pow)
    check_dtypes(operator.pow, "pow", input, exponent)
    dtype = common_dtype(input, exponent)
    if not dtype.is_floating_point and exponent < 0:
        raise OpError("an integer tensor cannot be raised to a negative power", hint="convert it with .float() first")
    simple = _small_power(cast(input, dtype), exponent)
    return pointwise("pow", input, exponent) if simple is None else simple


def _small_power(x: TensorValue, exponent: Any) -> TensorValue | None:
    """``x`` to a power that a few multiplications or one function give, else None."""
    if x.dtype is torch.bool:
        return pointwise("clone", x) if exponent else full(x.builder, True, torch.bool, x.shape)
    if exponent == 1:
        return pointwise("clone", x)
    if exponent in (2, 3, 4):
        wide = cast(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) and exponent > 2 else x
        square = pointwise("mul", wide, wide)
        return square if exponent == 2 else cast(square * (wide if exponent == 3 else square), x.dtype)
    if exponent in (0.5, -0.5, -1):
        return pointwise({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[exponent], x)
    if exponent == -2:
        wide = cast(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
        return cast(pointwise("reciprocal", wide * wide), x.dtype)
    return None


@handles(*everywhere("square"))
def square(builder: Any, input: Any) -> Any:
    return pow(builder, tensor(input, "square"), 2)


@handles(*everywhere("float_power"))
def float_power(builder: Any, input: Any, exponent: Any) -> Any:
    double = [cast(x, torch.float64) if isinstance(x, TensorValue) else x for x in (input, exponent)]
    return pow(builder, *double)


@handles(*everywhere("ldexp"))
def ldexp(builder: Any, input: Any, other: Any) -> TensorValue:
    x, y = tensor(input, "ldexp"), tensor(other, "ldexp")
    dtype = torch_dtype(torch.ldexp, "ldexp", x, y)
    wide = compute_dtype(dtype)
    return cast(cast(x, wide) * pointwise("exp2", cast(y, wide)), dtype)


# two-argument functions
# -------------------------------------------------------------------------------------------------


@handles(*everywhere("atan2"), *everywhere("arctan2"))
def atan2(builder: Any, input: Any, other: Any) -> TensorValue:
    return pointwise("atan2", input, other, eager=torch.atan2)


@handles(*everywhere("hypot"))
def hypot(builder: Any, input: Any, other: Any) -> TensorValue:
    return pointwise("hypot", input, other, eager=torch.hypot)


@handles(*everywhere("copysign"))
def copysign(builder: Any, input: Any, other: Any) -> TensorValue:
    return pointwise("copysign", input, other, eager=torch.copysign)


@handles(*everywhere("nextafter"))
def nextafter(builder: Any, input: Any, other: Any) -> Any:
    if common_dtype(input, other) in (torch.float16, torch.bfloat16):
        return NotImplemented  # a step of 16 bits, while arithmetic is done in 32
    return pointwise("nextafter", input, other, eager=torch.nextafter)


def _inf_equal(a: TensorValue, b: TensorValue) -> TensorValue:
    return pointwise("bitwise_and", pointwise("eq", a, b), pointwise("isinf", a))


@handles(*everywhere("logaddexp"))
def logaddexp(builder: Any, input: Any, other: Any) -> TensorValue:
    dtype, (a, b) = widen_all(torch.logaddexp, "logaddexp", input, other, floating=True)
    more = pointwise("log1p", pointwise("exp", -pointwise("abs", a - b)))
    result = pointwise("maximum", a, b) + more
    return cast(select(_inf_equal(a, b), a, result, result.dtype), dtype)


@handles(*everywhere("logaddexp2"))
def logaddexp2(builder: Any, input: Any, other: Any) -> TensorValue:
    dtype, (a, b) = widen_all(torch.logaddexp2, "logaddexp2", input, other, floating=True)
    more = pointwise("log1p", pointwise("exp2", -pointwise("abs", a - b))) * (1 / math.log(2))
    result = pointwise("maximum", a, b) + more
    return cast(select(_inf_equal(a, b), a, result, result.dtype), dtype)


def _x_log(x: Any, y: Any, log: str, eager: Callable[..., Any], name: str) -> TensorValue:
    dtype, (x, y) = widen_all(eager, name, x, y, floating=True)
    like = x if isinstance(x, TensorValue) else y
    if not isinstance(y, TensorValue):
        y = full(like.builder, y, like.dtype, like.shape)
    if not isinstance(x, TensorValue):
        x = full(like.builder, x, like.dtype, like.shape)
    # 0 * log(y) is 0 by itself, with the gradient log(y), where the logarithm is finite.
    least = 0 if log == "log" else -1
    infinite = pointwise("bitwise_or", pointwise("le", y, least), pointwise("eq", y, math.inf))
    zero = pointwise("bitwise_and", pointwise("eq", x, 0), infinite)
    return cast(select(zero, 0.0, x * pointwise(log, y), like.dtype), dtype)


@handles(*everywhere("xlogy"), "special.xlogy")
def xlogy(builder: Any, input: Any, other: Any) -> TensorValue:
    return _x_log(input, other, "log", torch.xlogy, "xlogy")


@handles("special.xlog1py")
def xlog1py(builder: Any, input: Any, other: Any) -> TensorValue:
    return _x_log(input, other, "log1p", torch.special.xlog1py, "xlog1py")


@handles(*everywhere("heaviside"))
def heaviside(builder: Any, input: Any, values: Any) -> TensorValue:
    check_dtypes(torch.heaviside, "heaviside", input, values)
    dtype = common_dtype(input, values)
    if input.dtype is not values.dtype:
        raise OpError("heaviside takes two tensors of one dtype")
    step = cast(pointwise("gt", input, 0), dtype)
    return select(pointwise("eq", input, 0), values, step, dtype)


# several operands ------------------------------------------------------------


@handles(*everywhere("lerp"))
def lerp(builder: Any, input: Any, end: Any, weight: Any) -> TensorValue:
    dtype = tensor(input, "lerp").dtype
    for other in (end, weight):
        if isinstance(other, TensorValue) and other.dtype is not dtype:
            raise OpError("lerp takes tensors of one dtype", hint="convert them with .to(dtype)")
    dtype, (a, b, w) = widen_all(torch.lerp, "lerp", input, end, weight)
    low, high = a + w * (b - a), b - (b - a) * (1 - w)
    if not is_value(w):
        return cast(low if abs(w) < 0.5 else high, dtype)
    if isinstance(w, ScalarValue):
        w = full(a.builder, w, a.dtype, ())
    return cast(select(pointwise("lt", pointwise("abs", w), 0.5), low, high, a.dtype), dtype)


@handles(*everywhere("addcmul"))
def addcmul(builder: Any, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> TensorValue:
    dtype, (x, a, b) = widen_all(torch.addcmul, "addcmul", input, tensor1, tensor2)
    product = pointwise("mul", a, b)
    return cast(pointwise("add", x, _scaled(product, value)), dtype)


@handles(*everywhere("addcdiv"))
def addcdiv(builder: Any, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> TensorValue:
    dtype, (x, a, b) = widen_all(torch.addcdiv, "addcdiv", input, tensor1, tensor2)
    return cast(pointwise("add", x, _scaled(pointwise("div", a, b), value)), dtype)


@handles(*everywhere("isclose"))
def isclose(
    builder: Any, input: Any, other: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: Any = False
) -> TensorValue:
    if tensor(input, "isclose").dtype is not tensor(other, "isclose").dtype:
        raise OpError("isclose takes two tensors of one dtype")
    _, (a, b) = widen_all(torch.isclose, "isclose", input, other)
    close = pointwise("eq", a, b)
    if a.dtype is torch.bool:
        return close
    if static(equal_nan, "equal_nan"):
        close = pointwise("bitwise_or", close, logical_and(builder, pointwise("ne", a, a), pointwise("ne", b, b)))
    allowed = pointwise("abs", b * rtol) + atol
    actual = pointwise("abs", pointwise("sub", a, b))
    if actual.dtype.is_floating_point:
        near = pointwise("bitwise_and", pointwise("isfinite", actual), pointwise("le", actual, allowed))
    else:
        near = pointwise("le", actual, allowed)
    return pointwise("bitwise_or", close, near)


@handles("special.multigammaln", *everywhere("mvlgamma"))
def multigammaln(builder: Any, input: Any, p: Any) -> TensorValue:
    order = static_int(p, "p")
    dtype, (x,) = widen_all(torch.lgamma, "mvlgamma", input, floating=True)
    total = pointwise("lgamma", x) + order * (order - 1) / 4 * math.log(math.pi)
    for j in range(1, order):
        total = total + pointwise("lgamma", x - j / 2)
    return cast(total, dtype)
