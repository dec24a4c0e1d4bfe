# SPDX-License-Identifier: Apache-2.0
"""The rows of the op table for pointwise ops and reductions, as data.

A pointwise row's kernel text is written over the kernel language of ``docs/design.md``. What torch defines as a simple
composition (``silu``, ``lerp``, ``clamp``) has no row: ``frontend/callables`` builds it from these.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Row(NamedTuple):
    """One op: see :class:`fusedsl.graph.ops.Op` for the fields."""

    name: str
    arity: int
    torch: Callable[..., Any]
    emit: str = ""
    cost: int = 1
    result: str = "same"
    domain: str = "any"


def _filled(operands: Sequence[Any]) -> list[torch.Tensor]:
    """The operands with Python numbers made 0-dim tensors of the dtype of the tensors among them."""
    like = next(x for x in operands if isinstance(x, torch.Tensor))
    return [
        x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=like.dtype, device=like.device) for x in operands
    ]


def _tensors(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``function`` made to take Python numbers where it wants tensors."""

    def call(*operands: Any) -> torch.Tensor:
        return function(*_filled(operands))

    return call


def _where(mask: torch.Tensor, *choices: Any) -> torch.Tensor:
    a, b = _filled(choices)
    return torch.where(mask, a, b)


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _unary_float(name: str, cost: int, function: Callable[..., torch.Tensor] | None = None) -> Row:
    return Row(name, 1, function or getattr(torch, name), f"{name}({{0}})", cost, domain="float")


def _compare(name: str, symbol: str) -> Row:
    return Row(name, 2, getattr(operator, name), f"{{0}} {symbol} {{1}}", 1, "bool")


POINTWISE_ROWS: tuple[Row, ...] = (
    # arithmetic
    Row("add", 2, operator.add, "{0} + {1}"),
    Row("sub", 2, operator.sub, "{0} - {1}"),
    Row("mul", 2, operator.mul, "{0} * {1}"),
    Row("div", 2, operator.truediv, "{0} / {1}", 8, domain="float"),
    Row("floor_divide", 2, operator.floordiv, "{0} // {1}", 12),
    Row("remainder", 2, operator.mod, "remainder({0}, {1})", 12),
    Row("fmod", 2, _tensors(torch.fmod), "fmod({0}, {1})", 12),
    Row("pow", 2, operator.pow, "pow_({0}, {1})", 30),
    Row("neg", 1, torch.neg, "-{0}"),
    Row("abs", 1, torch.abs, "abs_({0})"),
    Row("sign", 1, torch.sign, "sign({0})", 2),
    Row("clone", 1, torch.clone, "{0}", 0),
    Row("contiguous", 1, _contiguous, "{0}", 0),
    # rounding
    Row("floor", 1, torch.floor, "floor({0})"),
    Row("ceil", 1, torch.ceil, "ceil({0})"),
    Row("trunc", 1, torch.trunc, "trunc({0})"),
    Row("round", 1, torch.round, "round_({0})"),
    # transcendental
    _unary_float("sqrt", 8),
    _unary_float("rsqrt", 4),
    _unary_float("reciprocal", 6),
    _unary_float("exp", 8),
    _unary_float("exp2", 6),
    _unary_float("expm1", 14),
    _unary_float("log", 12),
    _unary_float("log2", 12),
    _unary_float("log10", 12),
    _unary_float("log1p", 14),
    _unary_float("sin", 20),
    _unary_float("cos", 20),
    _unary_float("tan", 24),
    _unary_float("asin", 16),
    _unary_float("acos", 16),
    _unary_float("atan", 16),
    _unary_float("sinh", 20),
    _unary_float("cosh", 14),
    _unary_float("tanh", 12),
    _unary_float("asinh", 24),
    _unary_float("acosh", 24),
    _unary_float("atanh", 20),
    _unary_float("erf", 14),
    _unary_float("erfc", 20),
    _unary_float("erfinv", 24),
    _unary_float("lgamma", 60),
    _unary_float("digamma", 60),
    Row("sigmoid", 1, torch.sigmoid, "reciprocal(exp(-{0}) + 1.0)", 15, domain="float"),
    Row("atan2", 2, _tensors(torch.atan2), "atan2({0}, {1})", 24, domain="float"),
    Row("hypot", 2, _tensors(torch.hypot), "hypot({0}, {1})", 20),
    Row("copysign", 2, _tensors(torch.copysign), "copysign({0}, {1})", 1, domain="float"),
    Row("nextafter", 2, _tensors(torch.nextafter), "nextafter({0}, {1})", 6),
    # choice
    Row("maximum", 2, _tensors(torch.maximum), "maximum({0}, {1})"),
    Row("minimum", 2, _tensors(torch.minimum), "minimum({0}, {1})"),
    Row("fmax", 2, _tensors(torch.fmax), "fmax({0}, {1})"),
    Row("fmin", 2, _tensors(torch.fmin), "fmin({0}, {1})"),
    Row("where", 3, _where, "where({0}, {1}, {2})"),
    # comparison and classification
    _compare("eq", "=="),
    _compare("ne", "!="),
    _compare("lt", "<"),
    _compare("le", "<="),
    _compare("gt", ">"),
    _compare("ge", ">="),
    Row("isnan", 1, torch.isnan, "isnan({0})", 1, "bool"),
    Row("isinf", 1, torch.isinf, "isinf({0})", 1, "bool"),
    Row("isfinite", 1, torch.isfinite, "isfinite({0})", 1, "bool"),
    Row("signbit", 1, torch.signbit, "signbit({0})", 1, "bool"),
    # bits
    Row("bitwise_not", 1, operator.invert, "~{0}", domain="int"),
    Row("bitwise_and", 2, operator.and_, "{0} & {1}", domain="int"),
    Row("bitwise_or", 2, operator.or_, "{0} | {1}", domain="int"),
    Row("bitwise_xor", 2, operator.xor, "{0} ^ {1}", domain="int"),
    Row("bitwise_left_shift", 2, operator.lshift, "{0} << {1}", domain="int"),
    Row("bitwise_right_shift", 2, operator.rshift, "{0} >> {1}", domain="int"),
)


def _over_each(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, Sequence[int]], torch.Tensor]:
    """A reduction that torch offers for one dim only, applied to the dims from the last to the first."""

    def call(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        for dim in sorted(dims, reverse=True):
            x = function(x, dim)
        return x

    return call


def _flattened(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, Sequence[int]], torch.Tensor]:
    """An index reduction over several dims, flattened in row-major order."""

    def call(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        kept = [d for d in range(x.dim()) if d not in dims]
        moved = x.permute([*kept, *dims])
        # The length is spelled out: -1 is ambiguous when a kept dim is empty.
        length = math.prod(x.shape[d] for d in dims)
        return function(moved.reshape([*(x.shape[d] for d in kept), length]), dim=-1)

    return call


def _sum(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return torch.sum(x, dim=tuple(dims), dtype=x.dtype)


def _prod(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.prod(x, dim=dim, dtype=x.dtype)


REDUCTION_ROWS: tuple[Row, ...] = (
    Row("sum", 1, _sum),
    Row("prod", 1, _over_each(_prod)),
    Row("amax", 1, torch.amax),
    Row("amin", 1, torch.amin),
    Row("any", 1, _over_each(torch.any)),
    Row("all", 1, _over_each(torch.all)),
    Row("argmax", 1, _flattened(torch.argmax), cost=3, result="int64"),
    Row("argmin", 1, _flattened(torch.argmin), cost=3, result="int64"),
)
