# SPDX-License-Identifier: Apache-2.0
"""Comparisons, logical and bitwise ops, classification, ``where``, ``clamp`` and extrema of two tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.callables.compose import check_dtypes, common_dtype, tensor
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.table import everywhere, handles
from fusedsl.frontend.callables.values import (
    Operand,
    ScalarValue,
    TensorValue,
    cast,
    full,
    host,
    is_value,
    number_of,
    plain_number,
    pointwise,
    select,
)


def _enter_comparison(name: str, alias: str, node: str) -> None:
    python = getattr(operator, name)

    def function(builder: Any, input: Any, other: Any) -> Any:
        if isinstance(input, TensorValue) or isinstance(other, TensorValue):
            return pointwise(name, input, other, eager=python)
        return host(name, input, other)

    def compare(builder: Any, input: Any, other: Any) -> Any:
        if not is_value(input) and not is_value(other):
            return python(input, other)
        for item in (input, other):
            if not is_value(item) and not isinstance(item, (bool, int, float)) and name in ("eq", "ne"):
                return name == "ne"
        return function(builder, input, other)

    function.__name__ = compare.__name__ = name
    handles(*everywhere(name), *(everywhere(alias) if alias else ()))(function)
    handles(f"operator.{name}", f"ast.{node}")(compare)


for _name, _alias, _node in [
    ("eq", "", "Eq"),
    ("ne", "not_equal", "NotEq"),
    ("lt", "less", "Lt"),
    ("le", "less_equal", "LtE"),
    ("gt", "greater", "Gt"),
    ("ge", "greater_equal", "GtE"),
]:
    _enter_comparison(_name, _alias, _node)


# logical and bitwise ------------------------------------------------------------


def as_bool(value: TensorValue) -> TensorValue:
    """``value != 0`` as a bool tensor; the value itself if it is one."""
    return value if value.dtype is torch.bool else pointwise("ne", value, 0)


def _enter_logical(name: str) -> Callable[..., TensorValue]:
    def handler(builder: Any, input: Any, other: Any) -> TensorValue:
        pair = [as_bool(tensor(x, f"logical_{name}")) for x in (input, other)]
        return pointwise(f"bitwise_{name}", *pair)

    handler.__name__ = f"logical_{name}"
    handles(*everywhere(f"logical_{name}"))(handler)
    return handler


logical_and, logical_or, logical_xor = (_enter_logical(_name) for _name in ("and", "or", "xor"))


@handles(*everywhere("logical_not"))
def logical_not(builder: Any, input: Any) -> TensorValue:
    value = tensor(input, "logical_not")
    return pointwise("bitwise_not", value) if value.dtype is torch.bool else pointwise("eq", value, 0)


@handles("ast.Not", "operator.not_")
def python_not(builder: Any, input: Any) -> Any:
    if isinstance(input, TensorValue):
        raise OpError("'not' needs a value that is known only on the GPU", hint="torch.logical_not(x), or ~x for bools")
    return host("not_", input) if isinstance(input, ScalarValue) else not input


def _enter_bitwise(name: str, python: Callable[..., Any], *names: str) -> None:
    def handler(builder: Any, input: Any, other: Any) -> Any:
        if isinstance(input, TensorValue) or isinstance(other, TensorValue):
            return pointwise(name, input, other, eager=python)
        if is_value(input) or is_value(other):
            return host(python.__name__, input, other)
        return python(input, other)

    handler.__name__ = name
    handles(*everywhere(name), *names)(handler)


for _name, _python, _node in [
    ("bitwise_and", operator.and_, "BitAnd"),
    ("bitwise_or", operator.or_, "BitOr"),
    ("bitwise_xor", operator.xor, "BitXor"),
    ("bitwise_left_shift", operator.lshift, "LShift"),
    ("bitwise_right_shift", operator.rshift, "RShift"),
]:
    _enter_bitwise(
        _name, _python, f"operator.{_python.__name__}", f"operator.i{_python.__name__.rstrip('_')}", f"ast.{_node}"
    )


@handles(*everywhere("bitwise_not"), "operator.invert", "ast.Invert")
def bitwise_not(builder: Any, input: Any) -> Any:
    if isinstance(input, TensorValue):
        return pointwise("bitwise_not", input, eager=torch.bitwise_not)
    return host("invert", input)


# classification ------------------------------------------------------------


def _constant_mask(value: TensorValue, answer: bool) -> TensorValue:
    return full(value.builder, answer, torch.bool, value.shape)


def _enter_classification(name: str, integers: bool) -> None:
    def handler(builder: Any, input: Any) -> TensorValue:
        value = tensor(input, name)
        return pointwise(name, value) if value.dtype.is_floating_point else _constant_mask(value, integers)

    handler.__name__ = name
    handles(*everywhere(name))(handler)


for _name, _integers in [("isnan", False), ("isinf", False), ("isfinite", True)]:
    _enter_classification(_name, _integers)


@handles(*everywhere("isposinf"))
def isposinf(builder: Any, input: Any) -> TensorValue:
    value = tensor(input, "isposinf")
    return pointwise("eq", value, float("inf")) if value.dtype.is_floating_point else _constant_mask(value, False)


@handles(*everywhere("isneginf"))
def isneginf(builder: Any, input: Any) -> TensorValue:
    value = tensor(input, "isneginf")
    return pointwise("eq", value, float("-inf")) if value.dtype.is_floating_point else _constant_mask(value, False)


@handles(*everywhere("isreal"))
def isreal(builder: Any, input: Any) -> TensorValue:
    return _constant_mask(tensor(input, "isreal"), True)


@handles(*everywhere("signbit"))
def signbit(builder: Any, input: Any) -> TensorValue:
    value = tensor(input, "signbit")
    if value.dtype.is_floating_point:
        return pointwise("signbit", value)
    return pointwise("lt", value, 0) if value.dtype.is_signed else _constant_mask(value, False)


# choice ------------------------------------------------------------


@handles("torch.where")
def where(builder: Any, condition: Any, input: Any = None, other: Any = None) -> Any:
    if input is None and other is None:
        return NotImplemented  # the indices of the true elements: their number is data
    mask = tensor(condition, "where")
    if mask.dtype is not torch.bool:
        raise OpError(
            f"where takes a bool condition, got {str(mask.dtype).removeprefix('torch.')}", hint="compare with 0"
        )
    choices = [x if is_value(x) else plain_number(x) for x in (input, other)]
    return select(mask, choices[0], choices[1], common_dtype(*choices))


@handles("Tensor.where")
def tensor_where(builder: Any, self: Any, condition: Any, other: Any) -> Any:
    return where(builder, condition, self, other)


@handles(*everywhere("masked_fill"))
def masked_fill(builder: Any, input: Any, mask: Any, value: Any) -> TensorValue:
    source, where_ = tensor(input, "masked_fill"), tensor(mask, "masked_fill")
    if where_.dtype is not torch.bool:
        raise OpError("masked_fill takes a bool mask")
    check_dtypes(_filled, "masked_fill", source, value)
    if not is_value(value):
        value = number_of(plain_number(value), source.dtype)
    return select(where_, value, source, source.dtype)


def _filled(x: torch.Tensor, value: Any) -> torch.Tensor:
    return torch.masked_fill(x, torch.ones(x.shape, dtype=torch.bool), value)


def _enter_extremum(name: str) -> Callable[..., TensorValue]:
    eager = getattr(torch, name)

    def handler(builder: Any, input: Any, other: Any) -> TensorValue:
        return pointwise(name, input, other, eager=eager)

    handler.__name__ = name
    handles(*everywhere(name))(handler)
    return handler


maximum, minimum, fmax, fmin = (_enter_extremum(_name) for _name in ("maximum", "minimum", "fmax", "fmin"))


def clamped(value: TensorValue, low: Operand | None, high: Operand | None, dtype: torch.dtype) -> TensorValue:
    """``min(max(value, low), high)`` in ``dtype``; NaN propagates."""
    value = cast(value, dtype)
    if low is not None:
        value = pointwise("maximum", value, low)
    if high is not None:
        value = pointwise("minimum", value, high)
    return value


@handles(*everywhere("clamp"), *everywhere("clip"))
def clamp(builder: Any, input: Any, min: Any = None, max: Any = None) -> TensorValue:
    value = tensor(input, "clamp")
    bounds = [x for x in (min, max) if x is not None]
    if not bounds:
        raise OpError("clamp needs min, max or both")
    check_dtypes(torch.clamp, "clamp", value, *bounds)
    return clamped(value, min, max, common_dtype(value, *bounds))


@handles(*everywhere("clamp_min"))
def clamp_min(builder: Any, input: Any, min: Any) -> TensorValue:
    return clamp(builder, input, min, None)


@handles(*everywhere("clamp_max"))
def clamp_max(builder: Any, input: Any, max: Any) -> TensorValue:
    return clamp(builder, input, None, max)
