# SPDX-License-Identifier: Apache-2.0
"""Python operators on tiles: typing and lowering for `+ - * / // % ** & | ^ ~ << >>`, comparisons, `-`, and
`bool`/`int` of one element."""

from __future__ import annotations

import operator
from collections.abc import Callable

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda import scalar_math
from fusedsl.numba_cuda.convert import common_tile, convert_arithmetic, operand, zero
from fusedsl.numba_cuda.dtypes import DType, boolean, int64
from fusedsl.numba_cuda.registry import Typed, python_function
from fusedsl.numba_cuda.tile import TileType, build_vector, vector_lanes

#: Emits an operation on two vectors of a dtype.
VectorRule = Callable[[ir.IRBuilder, DType, ir.Value, ir.Value], ir.Value]


def per_element(rule: VectorRule) -> VectorRule:
    """A rule on scalars, applied to each element of vectors."""

    def apply(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
        lanes = zip(vector_lanes(builder, a), vector_lanes(builder, b), strict=True)
        values = [rule(builder, dtype, x, y) for x, y in lanes]
        return build_vector(builder, values[0].type, values)

    return apply


def binary(name: str, rule: VectorRule, kinds: tuple[str, ...], result: DType | None = None) -> Callable[..., Typed]:
    """Typing and lowering of a two-operand operation on tiles and numbers.

    Args:
        name: for messages.
        rule: the code.
        kinds: dtype kinds it takes.
        result: result dtype if not the operands'.
    """

    def definition(a: types.Type, b: types.Type) -> Typed:
        tile = common_tile(name, a, b)
        if tile.dtype.kind not in kinds or tile.dtype.is_half:
            raise TypingError(f"{name} does not take {tile}")

        def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
            x, y = (operand(builder, t, v, tile.dtype, tile.n) for t, v in zip((a, b), args, strict=True))
            return rule(builder, tile.dtype, x, y)

        return TileType(result or tile.dtype, tile.n), emit

    return definition


def unary(
    name: str, rule: Callable[[ir.IRBuilder, DType, ir.Value], ir.Value], kinds: tuple[str, ...]
) -> Callable[..., Typed]:
    """Typing and lowering of a one-operand operation on a tile's vector."""

    def definition(a: types.Type) -> Typed:
        if not isinstance(a, TileType) or a.dtype.kind not in kinds or a.dtype.is_half:
            raise TypingError(f"{name} does not take {a}")
        return a, lambda builder, args: rule(builder, a.dtype, args[0])

    return definition


def _by_kind(floats: str, ints: str) -> VectorRule:
    """A builder method for floats and one for integers and booleans."""
    return lambda builder, dtype, a, b: getattr(builder, floats if dtype.is_float else ints)(a, b)


def _compare(symbol: str) -> VectorRule:
    def rule(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
        if dtype.is_float:
            return builder.fcmp_unordered("!=", a, b) if symbol == "!=" else builder.fcmp_ordered(symbol, a, b)
        return builder.icmp_signed(symbol, a, b) if dtype.kind == "int" else builder.icmp_unsigned(symbol, a, b)

    return rule


def _floor_divide(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    if dtype.is_float:
        return per_element(scalar_math.float_floor_divide)(builder, dtype, a, b)
    return scalar_math.int_floor_divide(builder, dtype, a, b)


def remainder_rule(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    """Remainder with the divisor's sign."""
    if dtype.is_float:
        return per_element(scalar_math.float_remainder)(builder, dtype, a, b)
    return scalar_math.int_remainder(builder, dtype, a, b)


def power_rule(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    """Power: libdevice for floats, repeated squaring for integers."""
    if dtype.is_float:
        return per_element(lambda inner, kind, x, y: scalar_math.libdevice(inner, "pow", kind, [x, y]))(
            builder, dtype, a, b
        )
    return per_element(scalar_math.int_power)(builder, dtype, a, b)


def _negate(builder: ir.IRBuilder, dtype: DType, a: ir.Value) -> ir.Value:
    if not dtype.is_float:
        return builder.sub(zero(a.type), a)
    minus_zero = ir.Constant(a.type, [ir.Constant(a.type.element, -0.0)] * a.type.count)
    return builder.fsub(minus_zero, a)


def _invert(builder: ir.IRBuilder, _: DType, a: ir.Value) -> ir.Value:
    return builder.not_(a)


_NUMBERS = ("int", "uint", "float")
_INTS = ("int", "uint")
_BITS = ("bool", "int", "uint")
_ALL = ("bool", "int", "uint", "float")

_BINARY: dict[Callable[..., object], tuple[VectorRule, tuple[str, ...]]] = {
    operator.add: (_by_kind("fadd", "add"), _NUMBERS),
    operator.sub: (_by_kind("fsub", "sub"), _NUMBERS),
    operator.mul: (_by_kind("fmul", "mul"), _NUMBERS),
    operator.truediv: (_by_kind("fdiv", ""), ("float",)),
    operator.floordiv: (_floor_divide, _NUMBERS),
    operator.mod: (remainder_rule, _NUMBERS),
    operator.pow: (power_rule, _NUMBERS),
    operator.and_: (_by_kind("", "and_"), _BITS),
    operator.or_: (_by_kind("", "or_"), _BITS),
    operator.xor: (_by_kind("", "xor"), _BITS),
    operator.lshift: (lambda b, d, x, y: scalar_math.shift(b, d, x, y, left=True), _INTS),
    operator.rshift: (lambda b, d, x, y: scalar_math.shift(b, d, x, y, left=False), _INTS),
}

_IN_PLACE = {
    operator.add: operator.iadd,
    operator.sub: operator.isub,
    operator.mul: operator.imul,
    operator.truediv: operator.itruediv,
    operator.floordiv: operator.ifloordiv,
    operator.mod: operator.imod,
    operator.pow: operator.ipow,
    operator.and_: operator.iand,
    operator.or_: operator.ior,
    operator.xor: operator.ixor,
    operator.lshift: operator.ilshift,
    operator.rshift: operator.irshift,
}

_COMPARISONS = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def _to_python(name: str, dtype: DType, result: types.Type) -> Callable[..., Typed]:
    """`bool` or `int` of a one-element tile, for branches and indices."""

    def definition(a: types.Type) -> Typed:
        if not isinstance(a, TileType) or a.n != 1 or a.dtype.is_half:
            raise TypingError(f"{name}() takes a tile of one element, not {a}")

        def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
            (value,) = vector_lanes(builder, args[0])
            return convert_arithmetic(builder, value, a.dtype, dtype)

        return result, emit

    return definition


for _function, (_rule, _kinds) in _BINARY.items():
    _definition = binary(_function.__name__, _rule, _kinds)
    python_function(_function, 2, _definition)
    python_function(_IN_PLACE[_function], 2, _definition)
for _function, _symbol in _COMPARISONS.items():
    python_function(_function, 2, binary(_function.__name__, _compare(_symbol), _ALL, boolean))
python_function(operator.neg, 1, unary("-", _negate, _NUMBERS))
python_function(operator.invert, 1, unary("~", _invert, _BITS))
python_function(bool, 1, _to_python("bool", boolean, types.boolean))
python_function(int, 1, _to_python("int", int64, types.int64))
