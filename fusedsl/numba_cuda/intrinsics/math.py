# SPDX-License-Identifier: Apache-2.0
"""Elementwise mathematics: full-precision libdevice calls an element, vector instructions where one suffices.

Nothing here flushes subnormals and nothing assumes finite values. Approximations are in `fast_math`.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda import scalar_math
from fusedsl.numba_cuda.convert import common_length, common_tile, operand, zero
from fusedsl.numba_cuda.dtypes import DType, boolean
from fusedsl.numba_cuda.operators import VectorRule, binary, per_element, power_rule, remainder_rule
from fusedsl.numba_cuda.registry import KernelFunction, Typed, is_number, kernel_function
from fusedsl.numba_cuda.tile import TileType, build_vector, element_type, vector_lanes

ScalarRule = Callable[[ir.IRBuilder, DType, ir.Value], ir.Value]

_NUMBERS = ("int", "uint", "float")


def _function(name: str, doc: str, definition: Callable[..., Typed]) -> KernelFunction:
    definition.__name__ = definition.__qualname__ = name
    definition.__doc__ = doc
    definition.__module__ = __name__
    return kernel_function(definition)


def elementwise(name: str, doc: str, rule: ScalarRule, kinds: tuple[str, ...] = ("float",)) -> KernelFunction:
    """A function of one tile, by a rule on scalars; the result has the rule's dtype: the tile's, or boolean."""

    def definition(x: types.Type) -> Typed:
        if not isinstance(x, TileType) or x.dtype.kind not in kinds or x.dtype.is_half:
            raise TypingError(f"{name} does not take {x}")

        def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
            values = [rule(builder, x.dtype, value) for value in vector_lanes(builder, args[0])]
            return build_vector(builder, values[0].type, values)

        return TileType(boolean if name in _PREDICATES else x.dtype, x.n), emit

    return _function(name, doc, definition)


def two_operand(name: str, doc: str, rule: VectorRule, kinds: tuple[str, ...] = ("float",)) -> KernelFunction:
    """A function of two operands (tiles, or a tile and a number), by a rule on vectors."""
    return _function(name, doc, binary(name, rule, kinds))


_PREDICATES = frozenset({"isnan", "isinf", "isfinite", "signbit"})


def _nv(name: str) -> ScalarRule:
    return lambda builder, dtype, x: scalar_math.libdevice(builder, name, dtype, [x])


def _nv2(name: str) -> VectorRule:
    return per_element(lambda builder, dtype, x, y: scalar_math.libdevice(builder, name, dtype, [x, y]))


#: Kernel name -> libdevice function and what it computes.
_LIBDEVICE: dict[str, tuple[str, str]] = {
    "floor": ("floor", "Largest integer not above x."),
    "ceil": ("ceil", "Smallest integer not below x."),
    "trunc": ("trunc", "x without its fraction."),
    "round_": ("rint", "Nearest integer, halves to even."),
    "sqrt": ("sqrt", "Square root, correctly rounded."),
    "rsqrt": ("rsqrt", "1 / sqrt(x); at most 2 ulp in float32, as torch's."),
    "exp": ("exp", "e ** x."),
    "exp2": ("exp2", "2 ** x."),
    "expm1": ("expm1", "e ** x - 1, accurate near 0."),
    "log": ("log", "Natural logarithm."),
    "log2": ("log2", "Logarithm to base 2."),
    "log10": ("log10", "Logarithm to base 10."),
    "log1p": ("log1p", "log(1 + x), accurate near 0."),
    "sin": ("sin", "Sine; x in radians."),
    "cos": ("cos", "Cosine; x in radians."),
    "tan": ("tan", "Tangent; x in radians."),
    "asin": ("asin", "Arc sine, in radians."),
    "acos": ("acos", "Arc cosine, in radians."),
    "atan": ("atan", "Arc tangent, in radians."),
    "sinh": ("sinh", "Hyperbolic sine."),
    "cosh": ("cosh", "Hyperbolic cosine."),
    "tanh": ("tanh", "Hyperbolic tangent."),
    "asinh": ("asinh", "Inverse hyperbolic sine."),
    "acosh": ("acosh", "Inverse hyperbolic cosine."),
    "atanh": ("atanh", "Inverse hyperbolic tangent."),
    "erf": ("erf", "Error function."),
    "erfc": ("erfc", "1 - erf(x), accurate where erf is near 1."),
    "erfinv": ("erfinv", "Inverse of erf."),
    "lgamma": ("lgamma", "Logarithm of the absolute gamma function."),
}

_LIBDEVICE_BINARY: dict[str, tuple[str, str]] = {
    "atan2": ("atan2", "Angle of the point (b, a), in radians."),
    "hypot": ("hypot", "sqrt(a*a + b*b) without overflow in between."),
    "copysign": ("copysign", "Magnitude of a, sign of b."),
    "nextafter": ("nextafter", "Next float from a towards b."),
}


def _abs(builder: ir.IRBuilder, dtype: DType, x: ir.Value) -> ir.Value:
    if dtype.is_float:
        return scalar_math.libdevice(builder, "fabs", dtype, [x])
    if dtype.kind == "uint":
        return x
    return builder.select(builder.icmp_signed("<", x, zero(x.type)), builder.sub(zero(x.type), x), x)


def _sign(builder: ir.IRBuilder, dtype: DType, x: ir.Value) -> ir.Value:
    one = ir.Constant(x.type, 1.0 if dtype.is_float else 1)
    if dtype.kind == "uint":
        return builder.select(builder.icmp_unsigned("!=", x, zero(x.type)), one, zero(x.type))
    minus = ir.Constant(x.type, -1.0 if dtype.is_float else -1)
    less = builder.fcmp_ordered if dtype.is_float else builder.icmp_signed
    positive = builder.select(less(">", x, zero(x.type)), one, zero(x.type))
    return builder.select(less("<", x, zero(x.type)), minus, positive)


def _reciprocal(builder: ir.IRBuilder, _: DType, x: ir.Value) -> ir.Value:
    return builder.fdiv(ir.Constant(x.type, 1.0), x)


def _isnan(builder: ir.IRBuilder, _: DType, x: ir.Value) -> ir.Value:
    return builder.fcmp_unordered("uno", x, x)


def _isinf(builder: ir.IRBuilder, dtype: DType, x: ir.Value) -> ir.Value:
    return builder.fcmp_ordered("==", _abs(builder, dtype, x), ir.Constant(x.type, float("inf")))


def _isfinite(builder: ir.IRBuilder, dtype: DType, x: ir.Value) -> ir.Value:
    return builder.fcmp_ordered("<", _abs(builder, dtype, x), ir.Constant(x.type, float("inf")))


def _signbit(builder: ir.IRBuilder, dtype: DType, x: ir.Value) -> ir.Value:
    bits = builder.bitcast(x, ir.IntType(dtype.bits)) if dtype.is_float else x
    return builder.icmp_signed("<", bits, zero(bits.type))


def _extremum(largest: bool) -> VectorRule:
    return per_element(lambda b, d, x, y: scalar_math.extremum(b, d, x, y, largest=largest))


def _number_extremum(name: str, largest: bool) -> VectorRule:
    def rule(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
        if dtype.is_float:
            return scalar_math.libdevice(builder, name, dtype, [a, b])
        return scalar_math.extremum(builder, dtype, a, b, largest=largest)

    return per_element(rule)


def _fmod(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    if dtype.is_float:
        return _nv2("fmod")(builder, dtype, a, b)
    return builder.srem(a, b) if dtype.kind == "int" else builder.urem(a, b)


@kernel_function
def where(mask: types.Type, a: types.Type, b: types.Type) -> Typed:
    """``a`` where the boolean tile ``mask`` is true, else ``b``; tiles of any dtype, or numbers."""
    if not isinstance(mask, TileType) and not is_number(mask):
        raise TypingError(f"where takes a boolean tile, not {mask}")
    if isinstance(mask, TileType) and mask.dtype != boolean:
        raise TypingError(f"where takes a boolean tile, not {mask}")
    values = common_tile("where", a, b)
    n = common_length("where", values, mask) if isinstance(mask, TileType) else values.n
    result = TileType(values.dtype, n)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        x, y = (operand(builder, t, v, values.dtype, n) for t, v in zip((a, b), args[1:], strict=True))
        condition = operand(builder, mask, args[0], boolean, n)
        if x.type.count == n:
            return builder.select(condition, x, y)
        return _select_words(builder, condition, x, y)

    return result, emit


def _select_words(builder: ir.IRBuilder, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Select between packed words, each of two elements."""
    conditions = vector_lanes(builder, condition)
    words = []
    pairs = zip(vector_lanes(builder, x), vector_lanes(builder, y), strict=True)
    for i, (a, b) in enumerate(pairs):
        low, high = conditions[2 * i], conditions[2 * i + 1]
        zero_word = zero(a.type)
        mask = builder.or_(
            builder.select(low, ir.Constant(a.type, 0xFFFF), zero_word),
            builder.select(high, ir.Constant(a.type, -0x10000), zero_word),
        )
        words.append(builder.or_(builder.and_(a, mask), builder.and_(b, builder.not_(mask))))
    return build_vector(builder, words[0].type, words)


@kernel_function
def fma(a: types.Type, b: types.Type, c: types.Type) -> Typed:
    """``a * b + c`` with one rounding (``fma.rn``); float32 and float64 tiles and numbers."""
    tile = common_tile("fma", a, b, c)
    if tile.dtype.name not in ("float32", "float64"):
        raise TypingError(f"fma does not take {tile}")
    name = f"llvm.fma.f{tile.dtype.bits}"

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        vectors = [operand(builder, t, v, tile.dtype, tile.n) for t, v in zip((a, b, c), args, strict=True)]
        lanes = zip(*(vector_lanes(builder, vector) for vector in vectors), strict=True)
        values = [scalar_math.intrinsic(builder, name, list(element)) for element in lanes]
        return build_vector(builder, element_type(tile.dtype), values)

    return tile, emit


FUNCTIONS: tuple[KernelFunction, ...] = (
    where,
    fma,
    *(elementwise(name, doc, _nv(nv)) for name, (nv, doc) in _LIBDEVICE.items()),
    *(two_operand(name, doc, _nv2(nv)) for name, (nv, doc) in _LIBDEVICE_BINARY.items()),
    elementwise("abs_", "Absolute value; the most negative integer stays.", _abs, _NUMBERS),
    elementwise("sign", "-1, 0 or 1; 0 for NaN, as torch.", _sign, _NUMBERS),
    elementwise("reciprocal", "1 / x, correctly rounded.", _reciprocal),
    elementwise("digamma", "Logarithmic derivative of the gamma function.", scalar_math.digamma),
    elementwise("isnan", "Boolean tile: NaN.", _isnan),
    elementwise("isinf", "Boolean tile: infinite.", _isinf),
    elementwise("isfinite", "Boolean tile: neither infinite nor NaN.", _isfinite),
    elementwise("signbit", "Boolean tile: the sign bit is set.", _signbit, ("int", "float")),
    two_operand("maximum", "Larger of two; NaN propagates.", _extremum(True), _NUMBERS),
    two_operand("minimum", "Smaller of two; NaN propagates.", _extremum(False), _NUMBERS),
    two_operand("fmax", "Larger of two; NaN loses.", _number_extremum("fmax", True), _NUMBERS),
    two_operand("fmin", "Smaller of two; NaN loses.", _number_extremum("fmin", False), _NUMBERS),
    two_operand("pow_", "a ** b; an integer to a negative power is 0, except 1 and -1.", power_rule, _NUMBERS),
    two_operand("fmod", "Remainder with the dividend's sign.", _fmod, _NUMBERS),
    two_operand("remainder", "Remainder with the divisor's sign.", remainder_rule, _NUMBERS),
)
