# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions of the kernel language.

float32 results are computed in float64 and rounded once, so they are at least as exact as the GPU's. Functions that
NumPy lacks come from torch.special. The ``fast_`` forms give the exact result: the GPU's may differ by the error they
document.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from fusedsl.numba_cuda.dtypes import boolean, float32
from fusedsl.numba_cuda.interpreter.errors import TileMismatch
from fusedsl.numba_cuda.interpreter.tile import (
    Array,
    BoolTile,
    Tile,
    operand,
    power,
    refuse_size,
)
from fusedsl.numba_cuda.interpreter.tile import (
    remainder as _remainder,
)

Function = Callable[..., Any]


def _refuse(name: str, got: Any, expected: str) -> TileMismatch:
    what = f"{got.dtype} tiles have" if isinstance(got, Tile) else f"a {type(got).__name__} has"
    return TileMismatch(f"{what} no {name}", expected=f"{expected} tiles")


def _unary(name: str, function: Function, *, exact: bool = False, on_int: bool = False) -> Callable[[Tile], Tile]:
    """A function of one tile; ``exact`` ones are evaluated in the tile's own dtype."""

    def call(x: Tile) -> Tile:
        if x.__class__ is not Tile or not (on_int or x.dtype.is_float):
            raise _refuse(name, x, "float32, float64 or integer" if on_int else "float32 or float64")
        values = x.values
        if exact or values.dtype != np.float32:
            return Tile(x.dtype, function(values))
        return Tile(x.dtype, function(values.astype(np.float64)).astype(np.float32))

    call.__name__ = call.__qualname__ = name
    return call


def _fast(name: str, function: Function) -> Callable[[Tile], Tile]:
    """The exact value of a function that the GPU approximates; float32 only."""
    exact_one = _unary(name, function)

    def call(x: Tile) -> Tile:
        if not isinstance(x, Tile) or x.dtype is not float32:
            raise _refuse(name, x, "float32")
        return exact_one(x)

    call.__name__ = call.__qualname__ = name
    return call


def _binary(name: str, function: Function, *, on_int: bool = False) -> Callable[[Any, Any], Tile]:
    """A function of two tiles, or of a tile and a number; ``function`` rounds once."""

    def call(a: Any, b: Any) -> Tile:
        tile = a if isinstance(a, Tile) else b
        if not isinstance(tile, Tile):
            raise TileMismatch(f"{name} of two numbers", expected="at least one tile")
        dtype = tile.dtype
        if tile.__class__ is not Tile or not (on_int or dtype.is_float):
            raise _refuse(name, tile, "float32, float64 or integer" if on_int else "float32 or float64")
        left, right = operand(a, dtype, name), operand(b, dtype, name)
        try:
            return Tile(dtype, function(left, right))
        except ValueError:
            raise refuse_size(name, left, right) from None

    call.__name__ = call.__qualname__ = name
    return call


def _fast_binary(name: str, function: Function) -> Callable[[Any, Any], Tile]:
    """The exact value of a function of two operands that the GPU approximates; float32 only."""
    exact_one = _binary(name, function)

    def call(a: Any, b: Any) -> Tile:
        for tile in (a, b):
            if isinstance(tile, Tile) and tile.dtype is not float32:
                raise _refuse(name, tile, "float32")
        return exact_one(a, b)

    call.__name__ = call.__qualname__ = name
    return call


def _predicate(name: str, function: Function, *, on_int: bool = False) -> Callable[[Tile], Tile]:
    def call(x: Tile) -> Tile:
        if x.__class__ is not Tile or not (on_int or x.dtype.is_float):
            raise _refuse(name, x, "float32, float64 or signed integer" if on_int else "float32 or float64")
        return BoolTile(boolean, function(x.values))

    call.__name__ = call.__qualname__ = name
    return call


def _in_double(function: Function) -> Function:
    """A float function evaluated in float64 and rounded to the operands' dtype."""

    def call(left: Any, right: Any) -> Array:
        return np.asarray(function(left, right, dtype=np.float64)).astype(np.result_type(left, right))

    return call


def _special(function: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    """A torch function on a float64 array."""

    def call(values: Array) -> Array:
        result: Array = function(torch.from_numpy(np.ascontiguousarray(values))).numpy()
        return result

    return call


def _sign(values: Array) -> Array:
    """-1, 0 or 1; NaN gives 0, as in torch."""
    return ((values > 0).astype(np.int8) - (values < 0)).astype(values.dtype)


abs_ = _unary("abs_", np.abs, exact=True, on_int=True)
sign = _unary("sign", _sign, exact=True, on_int=True)
floor = _unary("floor", np.floor, exact=True)
ceil = _unary("ceil", np.ceil, exact=True)
trunc = _unary("trunc", np.trunc, exact=True)
round_ = _unary("round_", np.rint, exact=True)
sqrt = _unary("sqrt", np.sqrt, exact=True)
rsqrt = _unary("rsqrt", lambda x: 1.0 / np.sqrt(x))
reciprocal = _unary("reciprocal", lambda x: np.true_divide(1.0, x), exact=True)
exp = _unary("exp", np.exp)
exp2 = _unary("exp2", np.exp2)
expm1 = _unary("expm1", np.expm1)
log = _unary("log", np.log)
log2 = _unary("log2", np.log2)
log10 = _unary("log10", np.log10)
log1p = _unary("log1p", np.log1p)
sin = _unary("sin", np.sin)
cos = _unary("cos", np.cos)
tan = _unary("tan", np.tan)
asin = _unary("asin", np.arcsin)
acos = _unary("acos", np.arccos)
atan = _unary("atan", np.arctan)
sinh = _unary("sinh", np.sinh)
cosh = _unary("cosh", np.cosh)
tanh = _unary("tanh", np.tanh)
asinh = _unary("asinh", np.arcsinh)
acosh = _unary("acosh", np.arccosh)
atanh = _unary("atanh", np.arctanh)
erf = _unary("erf", _special(torch.special.erf))
erfc = _unary("erfc", _special(torch.special.erfc))
erfinv = _unary("erfinv", _special(torch.special.erfinv))
lgamma = _unary("lgamma", _special(torch.lgamma))
digamma = _unary("digamma", _special(torch.special.digamma))

fast_exp = _fast("fast_exp", np.exp)
fast_exp2 = _fast("fast_exp2", np.exp2)
fast_log = _fast("fast_log", np.log)
fast_log2 = _fast("fast_log2", np.log2)
fast_reciprocal = _fast("fast_reciprocal", np.reciprocal)
fast_rsqrt = _fast("fast_rsqrt", lambda x: 1.0 / np.sqrt(x))
fast_tanh = _fast("fast_tanh", np.tanh)
fast_erf = _fast("fast_erf", _special(torch.special.erf))

isnan = _predicate("isnan", np.isnan)
isinf = _predicate("isinf", np.isinf)
isfinite = _predicate("isfinite", np.isfinite)
signbit = _predicate("signbit", lambda x: np.signbit(x) if x.dtype.kind == "f" else x < 0, on_int=True)

maximum = _binary("maximum", np.maximum, on_int=True)
minimum = _binary("minimum", np.minimum, on_int=True)
fmax = _binary("fmax", np.fmax, on_int=True)
fmin = _binary("fmin", np.fmin, on_int=True)
pow_ = _binary("pow_", power, on_int=True)
fmod = _binary("fmod", np.fmod, on_int=True)
remainder = _binary("remainder", _remainder, on_int=True)
atan2 = _binary("atan2", _in_double(np.arctan2))
hypot = _binary("hypot", _in_double(np.hypot))
copysign = _binary("copysign", np.copysign)
fast_divide = _fast_binary("fast_divide", np.true_divide)
nextafter = _binary("nextafter", np.nextafter)


def fma(a: Any, b: Any, c: Any) -> Tile:
    """``a * b + c`` rounded once.

    A float64 product of float32 values is exact; its sum is rounded to odd before the last rounding, to float32.

    float64 tiles are rounded once too, by an exact product of two floats.
    """
    tiles = [value for value in (a, b, c) if isinstance(value, Tile)]
    if not tiles:
        raise TileMismatch("fma of numbers", expected="at least one tile")
    dtype = tiles[0].dtype
    if not dtype.is_float or dtype.is_half:
        raise _refuse("fma", tiles[0], "float32 or float64")
    x, y, z = (np.asarray(operand(value, dtype, "fma"), dtype.numpy) for value in (a, b, c))
    try:
        x, y, z = np.broadcast_arrays(x, y, z)
    except ValueError:
        raise refuse_size("fma", x, y, z) from None
    if dtype.bits == 64:
        return Tile(dtype, _fma64(x, y, z))
    product, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = product + addend
    # Rounding to odd (the last bit of an inexact sum is set) tells the second rounding which side of a tie it is on.
    back = total - product
    error = (product - (total - back)) + (addend - back)
    inexact = np.isfinite(total) & (error != 0)
    bits = total.view(np.int64)
    toward_zero = inexact & ((error < 0) != (total < 0)) & (bits & 1 == 0)
    odd = np.where(inexact, np.where(toward_zero, bits - 1, bits | 1), bits)
    return Tile(dtype, odd.view(np.float64).astype(np.float32))


def _fma64(x: Array, y: Array, z: Array) -> Array:
    """Exact products and sums through Python's fractions for finite operands; plain arithmetic otherwise."""
    plain = x * y + z
    rounded = [
        _fma_exact(float(p), float(q), float(r)) if np.isfinite(s) else float(s)
        for p, q, r, s in zip(x, y, z, plain, strict=True)
    ]
    return np.array(rounded, np.float64)


def _fma_exact(p: float, q: float, r: float) -> float:
    exact = Fraction(p) * Fraction(q) + Fraction(r)
    return float(exact) if exact else p * q + r
