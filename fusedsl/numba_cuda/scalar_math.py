# SPDX-License-Identifier: Apache-2.0
"""LLVM code of operations on one element or vector whose rule is more than one instruction: torch's floor division,
shifts, NaN-propagating extrema, integer powers, digamma."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from fusedsl.numba_cuda.convert import asm, zero
from fusedsl.numba_cuda.dtypes import DType, float32
from fusedsl.numba_cuda.tile import F32, I1, element_type


def libdevice(
    builder: ir.IRBuilder, name: str, dtype: DType, args: list[ir.Value], result: ir.Type | None = None
) -> ir.Value:
    """A call of libdevice's ``__nv_<name>`` on scalars of float32 (suffix f) or float64."""
    full = f"__nv_{name}{'f' if dtype == float32 else ''}"
    function = builder.module.globals.get(full)
    if function is None:
        kind = ir.FunctionType(result or element_type(dtype), [arg.type for arg in args])
        function = ir.Function(builder.module, kind, full)
    return builder.call(function, args)


def intrinsic(builder: ir.IRBuilder, name: str, args: list[ir.Value]) -> ir.Value:
    """A call of an LLVM intrinsic whose result has the type of its operands, on scalars."""
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(args[0].type, [arg.type for arg in args])
        function = ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def helper(
    builder: ir.IRBuilder,
    name: str,
    result: ir.Type,
    args: list[ir.Value],
    body: Callable[[ir.IRBuilder, list[ir.Value]], None],
) -> ir.Value:
    """A call of a function private to the module, written once: for operations that need a loop."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [arg.type for arg in args]), name)
        function.linkage = "internal"
        body(ir.IRBuilder(function.append_basic_block("entry")), list(function.args))
    return builder.call(function, args)


def _less(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    if dtype.is_float:
        return builder.fcmp_ordered("<", a, b)
    return builder.icmp_signed("<", a, b) if dtype.kind == "int" else builder.icmp_unsigned("<", a, b)


def extremum(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value, *, largest: bool) -> ir.Value:
    """Scalar maximum or minimum; NaN propagates (``max.NaN.f32``, PTX ISA ``max``, sm_80)."""
    if dtype == float32:
        name = "max" if largest else "min"
        return asm(builder, F32, f"{name}.NaN.f32 $0, $1, $2;", "=f,f,f", [a, b])
    better = _less(builder, dtype, b, a) if largest else _less(builder, dtype, a, b)
    if dtype.is_float:
        better = builder.or_(better, builder.fcmp_unordered("uno", a, a))
    return builder.select(better, a, b)


def float_remainder(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    """Scalar remainder with the divisor's sign (torch.remainder)."""
    mod = libdevice(builder, "fmod", dtype, [a, b])
    return builder.select(_signs_differ(builder, mod, b), builder.fadd(mod, b), mod)


def _signs_differ(builder: ir.IRBuilder, mod: ir.Value, b: ir.Value) -> ir.Value:
    nil = zero(mod.type)
    nonzero = builder.fcmp_unordered("!=", mod, nil)
    flipped = builder.xor(builder.fcmp_ordered("<", b, nil), builder.fcmp_ordered("<", mod, nil))
    return builder.and_(nonzero, flipped)


def float_floor_divide(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    """Scalar floor division as torch and Python define it: exact where ``floor(a / b)`` would be off by one."""
    kind = a.type
    one, half = ir.Constant(kind, 1.0), ir.Constant(kind, 0.5)
    mod = libdevice(builder, "fmod", dtype, [a, b])
    quotient = builder.fdiv(builder.fsub(a, mod), b)
    quotient = builder.select(_signs_differ(builder, mod, b), builder.fsub(quotient, one), quotient)
    floored = libdevice(builder, "floor", dtype, [quotient])
    up = builder.fcmp_ordered(">", builder.fsub(quotient, floored), half)
    floored = builder.select(up, builder.fadd(floored, one), floored)
    signed_zero = libdevice(builder, "copysign", dtype, [zero(kind), builder.fdiv(a, b)])
    result = builder.select(builder.fcmp_unordered("!=", quotient, zero(kind)), floored, signed_zero)
    return builder.select(builder.fcmp_ordered("==", b, zero(kind)), builder.fdiv(a, b), result)


def int_floor_divide(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    """Floor division of integers (scalars or vectors)."""
    if dtype.kind == "uint":
        return builder.udiv(a, b)
    quotient = builder.sdiv(a, b)
    return builder.add(quotient, builder.sext(_inexact_negative(builder, a, b), a.type))


def _inexact_negative(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    rest = builder.srem(a, b)
    nonzero = builder.icmp_signed("!=", rest, zero(a.type))
    return builder.and_(nonzero, builder.icmp_signed("<", builder.xor(rest, b), zero(a.type)))


def int_remainder(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    """Remainder of integers with the divisor's sign (scalars or vectors)."""
    if dtype.kind == "uint":
        return builder.urem(a, b)
    return builder.add(builder.srem(a, b), builder.select(_inexact_negative(builder, a, b), b, zero(a.type)))


def shift(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value, *, left: bool) -> ir.Value:
    """Shifts of integer vectors by any amount: too far or negative gives 0, or the sign for a signed right shift."""
    count = a.type.count
    far = ir.Constant(a.type, [ir.Constant(a.type.element, dtype.bits - 1)] * count)
    beyond = builder.icmp_unsigned(">", b, far)
    if not left and dtype.kind == "int":
        return builder.ashr(a, builder.select(beyond, far, b))
    amount = builder.select(beyond, zero(a.type), b)
    moved = builder.shl(a, amount) if left else builder.lshr(a, amount)
    return builder.select(beyond, zero(a.type), moved)


def int_power(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    """Scalar integer power by squaring; a negative exponent gives 0, except for bases 1 and -1, as torch."""

    def body(inner: ir.IRBuilder, args: list[ir.Value]) -> None:
        base, exponent = args
        kind = base.type
        one, nil = ir.Constant(kind, 1), ir.Constant(kind, 0)
        entry = inner.block
        loop = inner.append_basic_block("loop")
        done = inner.append_basic_block("done")
        inner.branch(loop)
        inner.position_at_end(loop)
        result, square, left = (inner.phi(kind) for _ in range(3))
        odd = inner.trunc(left, I1)
        next_result = inner.select(odd, inner.mul(result, square), result)
        next_square = inner.mul(square, square)
        next_left = inner.lshr(left, one)
        for phi, start, following in (
            (result, one, next_result),
            (square, base, next_square),
            (left, exponent, next_left),
        ):
            phi.add_incoming(start, entry)
            phi.add_incoming(following, loop)
        inner.cbranch(inner.icmp_unsigned("!=", next_left, nil), loop, done)
        inner.position_at_end(done)
        answer = next_result
        if dtype.kind == "int":
            minus = ir.Constant(kind, -1)
            sign = inner.select(inner.trunc(exponent, I1), minus, one)
            unit = inner.select(inner.icmp_signed("==", base, one), one, nil)
            unit = inner.select(inner.icmp_signed("==", base, minus), sign, unit)
            answer = inner.select(inner.icmp_signed("<", exponent, nil), unit, next_result)
        inner.ret(answer)

    return helper(builder, f"fusedsl_power_{dtype}", a.type, [a, b], body)


#: Bernoulli numbers over 2k of digamma's asymptotic series, highest power of 1/x^2 first.
_DIGAMMA_SERIES = (
    8.33333333333333333333e-2,
    -2.10927960927960927961e-2,
    7.57575757575757575758e-3,
    -4.16666666666666666667e-3,
    3.96825396825396825397e-3,
    -8.33333333333333333333e-3,
    8.33333333333333333333e-2,
)


def digamma(builder: ir.IRBuilder, dtype: DType, x: ir.Value) -> ir.Value:
    """Scalar digamma: reflection for negative x, recurrence up to x >= 10, then the asymptotic series.

    Abramowitz and Stegun 6.3.5, 6.3.7, 6.3.18. ``digamma(+-0)`` is the infinity of opposite sign, negative integers
    give NaN.
    """

    def number(value: float) -> ir.Constant:
        return ir.Constant(element_type(dtype), value)

    def body(inner: ir.IRBuilder, args: list[ir.Value]) -> None:
        (value,) = args
        negative = inner.fcmp_ordered("<", value, number(0.0))
        whole = libdevice(inner, "trunc", dtype, [value])
        fraction = inner.fsub(value, whole)
        sine, cosine = (libdevice(inner, name, dtype, [fraction]) for name in ("sinpi", "cospi"))
        reflected = inner.fdiv(inner.fmul(number(-3.141592653589793), cosine), sine)
        start = inner.select(negative, inner.fsub(number(1.0), value), value)
        shifted = inner.select(negative, reflected, number(0.0))
        entry = inner.block
        test, step, series = (inner.append_basic_block(name) for name in ("test", "step", "series"))
        inner.branch(test)
        inner.position_at_end(test)
        at, total = inner.phi(x.type), inner.phi(x.type)
        at.add_incoming(start, entry)
        total.add_incoming(shifted, entry)
        inner.cbranch(inner.fcmp_ordered("<", at, number(10.0)), step, series)
        inner.position_at_end(step)
        at.add_incoming(inner.fadd(at, number(1.0)), step)
        total.add_incoming(inner.fsub(total, inner.fdiv(number(1.0), at)), step)
        inner.branch(test)
        inner.position_at_end(series)
        square = inner.fdiv(number(1.0), inner.fmul(at, at))
        tail = number(_DIGAMMA_SERIES[0])
        for coefficient in _DIGAMMA_SERIES[1:]:
            tail = inner.fadd(inner.fmul(tail, square), number(coefficient))
        tail = inner.fmul(tail, square)
        log = libdevice(inner, "log", dtype, [at])
        answer = inner.fsub(inner.fsub(log, inner.fdiv(number(0.5), at)), tail)
        answer = inner.fadd(total, answer)
        pole = inner.and_(negative, inner.fcmp_ordered("==", value, whole))
        answer = inner.select(pole, number(float("nan")), answer)
        infinite = libdevice(inner, "copysign", dtype, [number(float("inf")), inner.fsub(number(-0.0), value)])
        inner.ret(inner.select(inner.fcmp_ordered("==", value, number(0.0)), infinite, answer))

    return helper(builder, f"fusedsl_digamma_{dtype}", x.type, [x], body)
