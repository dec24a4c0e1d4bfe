# SPDX-License-Identifier: Apache-2.0
"""Register tiles on the CPU: n elements of one dtype with the operators of the kernel language, on NumPy.

Values are held in the dtype's own NumPy type, so integers wrap and float32 stays float32; bfloat16, which has no
arithmetic, is held as its 16 bits. Tiles are immutable: operators make new ones, so values may be shared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fusedsl.numba_cuda.dtypes import DTYPES, DType, boolean
from fusedsl.numba_cuda.interpreter.errors import InvalidOperand, TileMismatch

Array: TypeAlias = npt.NDArray[Any]
Scalar: TypeAlias = "bool | int | float"


class Tile:
    """A tile of numbers; ``values`` is a 1-D array of its n elements. The subclasses hold what has no arithmetic."""

    __slots__ = ("dtype", "values")

    def __init__(self, dtype: DType, values: Array) -> None:
        self.dtype = dtype
        self.values = values

    @property
    def n(self) -> int:
        """Number of elements."""
        return len(self.values)

    def __repr__(self) -> str:
        return f"Tile({self.dtype}, {self.values.tolist()})"  # bfloat16: the bits

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._only("condition"))

    def __int__(self) -> int:
        return int(self._only("int"))

    def _only(self, use: str) -> Any:
        """The one element of a tile used as a Python number."""
        if len(self.values) != 1 or self.dtype.is_half:
            raise TileMismatch(
                f"a {self.dtype} tile of {self.n} elements is used as a Python {use}",
                expected="one element, not a 16-bit float",
                hint="tile_any(mask) or tile_all(mask)" if self.dtype.kind == "bool" else None,
            )
        return self.values[0]

    __add__: Callable[[Tile, Any], Tile]
    __radd__: Callable[[Tile, Any], Tile]
    __sub__: Callable[[Tile, Any], Tile]
    __rsub__: Callable[[Tile, Any], Tile]
    __mul__: Callable[[Tile, Any], Tile]
    __rmul__: Callable[[Tile, Any], Tile]
    __truediv__: Callable[[Tile, Any], Tile]
    __rtruediv__: Callable[[Tile, Any], Tile]
    __floordiv__: Callable[[Tile, Any], Tile]
    __rfloordiv__: Callable[[Tile, Any], Tile]
    __mod__: Callable[[Tile, Any], Tile]
    __rmod__: Callable[[Tile, Any], Tile]
    __pow__: Callable[[Tile, Any], Tile]
    __rpow__: Callable[[Tile, Any], Tile]
    __and__: Callable[[Tile, Any], Tile]
    __rand__: Callable[[Tile, Any], Tile]
    __or__: Callable[[Tile, Any], Tile]
    __ror__: Callable[[Tile, Any], Tile]
    __xor__: Callable[[Tile, Any], Tile]
    __rxor__: Callable[[Tile, Any], Tile]
    __lshift__: Callable[[Tile, Any], Tile]
    __rlshift__: Callable[[Tile, Any], Tile]
    __rshift__: Callable[[Tile, Any], Tile]
    __rrshift__: Callable[[Tile, Any], Tile]
    __lt__: Callable[[Tile, Any], Tile]
    __le__: Callable[[Tile, Any], Tile]
    __gt__: Callable[[Tile, Any], Tile]
    __ge__: Callable[[Tile, Any], Tile]
    __eq__: Callable[[Tile, Any], Tile]  # type: ignore[assignment]
    __ne__: Callable[[Tile, Any], Tile]  # type: ignore[assignment]
    __neg__: Callable[[Tile], Tile]
    __invert__: Callable[[Tile], Tile]


class BoolTile(Tile):
    """A tile of booleans: logical operators and comparisons."""

    __slots__ = ()


class HalfTile(Tile):
    """A tile of 16-bit floats: data to load, store, cast and pass on, without arithmetic."""

    __slots__ = ()


_CLASSES = {name: HalfTile if d.is_half else BoolTile if d.kind == "bool" else Tile for name, d in DTYPES.items()}


def tile_class(dtype: DType) -> type[Tile]:
    """The class that holds tiles of ``dtype``."""
    return _CLASSES[dtype.name]


def make_tile(dtype: DType, values: Array) -> Tile:
    """A tile over ``values``, which already have the dtype's element type."""
    return _CLASSES[dtype.name](dtype, values)


def convert_scalar(value: Scalar, dtype: DType) -> Scalar:
    """A Python number as an element of a numeric or boolean ``dtype``: truncated, and wrapped where it does not fit."""
    if dtype.is_float:
        return float(value)
    if dtype.kind == "bool":
        return bool(value)
    value = int(value) & ((1 << dtype.bits) - 1)
    if dtype.kind == "int" and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value


def operand(value: Any, dtype: DType, what: str) -> Any:
    """What NumPy should see of an operand beside a tile of ``dtype``: a tile's values, or a number of the dtype."""
    if isinstance(value, Tile):
        if value.dtype is not dtype:
            raise TileMismatch(
                f"{what} of a {dtype} tile and a {value.dtype} tile",
                expected="tiles of one dtype",
                hint="cast(tile, dtype) first",
            )
        return value.values
    if isinstance(value, (bool, int, float)):
        return convert_scalar(value, dtype)
    raise InvalidOperand(f"{what} of a {dtype} tile and a {type(value).__name__}", expected="a tile or a number")


def refuse_size(what: str, *tiles: Any) -> TileMismatch:
    """The fault for tiles that do not broadcast."""
    sizes = " and ".join(str(len(t)) for t in tiles if isinstance(t, np.ndarray))
    return TileMismatch(f"{what} of tiles of {sizes} elements", expected="equal sizes, or one element")


def _refuse_dtype(what: str, tile: Tile) -> TileMismatch:
    hint = "cast(tile, float32) first" if tile.dtype.is_half or tile.dtype.is_integer else None
    return TileMismatch(f"{tile.dtype} tiles have no {what}", hint=hint)


_NUMBERS = ("float", "int", "uint")
_INTEGERS = ("int", "uint")
_BITS = ("bool", "int", "uint")
_ALL = ("bool", "int", "uint", "float")


def _apply(symbol: str, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    try:
        return function(left, right)
    except ValueError:
        raise refuse_size(symbol, left, right) from None


def _general(symbol: str, function: Callable[[Any, Any], Any], kinds: tuple[str, ...], tile: Tile, other: Any) -> Any:
    """The values of an operation with any operand that may stand beside a tile."""
    right = operand(other, tile.dtype, symbol)
    if tile.dtype.is_half or tile.dtype.kind not in kinds:
        raise _refuse_dtype(symbol, tile)
    return _apply(symbol, function, tile.values, right)


def _install(
    symbol: str,
    function: Callable[[Any, Any], Any],
    names: tuple[str, str | None],
    kinds: tuple[str, ...] = _NUMBERS,
    *,
    compares: bool = False,
) -> None:
    """Give Tile one binary operator on tiles of ``kinds``, and its reflected form where it has one."""

    def forward(self: Tile, other: Any) -> Tile:
        dtype, kind = self.dtype, other.__class__
        # Two plain tiles of one dtype, or a float tile and a Python number, are the usual cases.
        if kind is Tile and other.dtype is dtype and dtype.kind in kinds:
            result = _apply(symbol, function, self.values, other.values)
        elif (kind is float or kind is int) and self.__class__ is Tile and dtype.kind == "float" and "float" in kinds:
            result = function(self.values, other)
        else:
            result = _general(symbol, function, kinds, self, other)
        return BoolTile(boolean, result) if compares else self.__class__(dtype, result)

    def backward(self: Tile, other: Any) -> Tile:
        return self.__class__(self.dtype, _general(symbol, lambda a, b: function(b, a), kinds, self, other))

    forward.__name__ = forward.__qualname__ = names[0]
    setattr(Tile, names[0], forward)
    if names[1] is not None:
        setattr(Tile, names[1], backward)


def integer_power(base: Any, exponent: Any) -> Array:
    """``base ** exponent`` on integers by repeated squaring, wrapping; negative exponents give 0, or +-1 for +-1."""
    base, exponent = np.broadcast_arrays(*np.atleast_1d(base, exponent))
    dtype = np.result_type(base, exponent)
    power, remaining = base.astype(dtype), np.maximum(exponent, 0).astype(dtype)
    result = np.ones(base.shape, dtype)
    while remaining.any():
        result = np.where(remaining & 1, result * power, result).astype(dtype)
        power, remaining = power * power, remaining >> 1
    odd = (exponent & 1).astype(bool)
    inverse = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0)) if dtype.kind == "i" else result
    return np.where(exponent < 0, inverse, result).astype(dtype)


def power(a: Any, b: Any) -> Array:
    """Elementwise power; float32 in float64 inside, rounded once."""
    kind = np.result_type(a, b)
    if kind.kind in "iu":
        if isinstance(a, np.ndarray):
            b = np.asarray(b, a.dtype) if not isinstance(b, np.ndarray) else b
        else:
            a = np.asarray(a, b.dtype)
        return integer_power(a, b)
    return np.asarray(np.power(a, b, dtype=np.float64)).astype(kind)


def floor_divide(a: Any, b: Any) -> Array:
    """Floor division as torch does it (NumPy's agrees; dividing a float by zero gives the quotient)."""
    return np.asarray(np.floor_divide(a, b))


def remainder(a: Any, b: Any) -> Array:
    """Remainder with the divisor's sign; a zero keeps the dividend's sign, as in torch."""
    rest = np.fmod(a, b)
    if rest.dtype.kind != "f":
        return np.asarray(np.remainder(a, b))
    return np.asarray(np.where((rest != 0) & ((np.asarray(b) < 0) != (rest < 0)), rest + b, rest)).astype(rest.dtype)


_install("+", np.add, ("__add__", "__radd__"))
_install("-", np.subtract, ("__sub__", "__rsub__"))
_install("*", np.multiply, ("__mul__", "__rmul__"))
_install("/", np.true_divide, ("__truediv__", "__rtruediv__"), ("float",))
_install("//", floor_divide, ("__floordiv__", "__rfloordiv__"))
_install("%", remainder, ("__mod__", "__rmod__"))
_install("**", power, ("__pow__", "__rpow__"))
_install("&", np.bitwise_and, ("__and__", "__rand__"), _BITS)
_install("|", np.bitwise_or, ("__or__", "__ror__"), _BITS)
_install("^", np.bitwise_xor, ("__xor__", "__rxor__"), _BITS)
_install("<<", np.left_shift, ("__lshift__", "__rlshift__"), _INTEGERS)
_install(">>", np.right_shift, ("__rshift__", "__rrshift__"), _INTEGERS)
_install("<", np.less, ("__lt__", None), _ALL, compares=True)
_install("<=", np.less_equal, ("__le__", None), _ALL, compares=True)
_install(">", np.greater, ("__gt__", None), _ALL, compares=True)
_install(">=", np.greater_equal, ("__ge__", None), _ALL, compares=True)
_install("==", np.equal, ("__eq__", None), _ALL, compares=True)
_install("!=", np.not_equal, ("__ne__", None), _ALL, compares=True)


def _negate(self: Tile) -> Tile:
    if self.__class__ is not Tile:
        raise _refuse_dtype("unary -", self)
    return Tile(self.dtype, np.negative(self.values))


def _invert(self: Tile) -> Tile:
    if self.dtype.is_float:
        raise _refuse_dtype("~", self)
    return self.__class__(self.dtype, np.invert(self.values))


Tile.__neg__ = _negate
Tile.__invert__ = _invert
