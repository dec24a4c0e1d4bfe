# SPDX-License-Identifier: Apache-2.0
"""Approximate functions of float32: one instruction of the special-function unit where the full form takes a routine
(PTX ISA ``ex2``, ``lg2``, ``rcp``, ``rsqrt``, ``tanh``, ``div``).

Each docstring states the error. Subnormals are kept, and NaN and infinities behave as in the full form.
"""

from __future__ import annotations

from llvmlite import ir
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda import scalar_math
from fusedsl.numba_cuda.convert import asm
from fusedsl.numba_cuda.dtypes import DType, float32
from fusedsl.numba_cuda.intrinsics.math import ScalarRule, elementwise, two_operand
from fusedsl.numba_cuda.operators import per_element
from fusedsl.numba_cuda.registry import KernelFunction
from fusedsl.numba_cuda.tile import F32

_LOG2_E = 1.4426950408889634
_LN_2 = 0.6931471805599453


def _number(value: float) -> ir.Constant:
    return ir.Constant(F32, value)


def _instruction(builder: ir.IRBuilder, text: str, x: ir.Value) -> ir.Value:
    return asm(builder, F32, f"{text} $0, $1;", "=f,f", [x])


def _check(dtype: DType) -> None:
    if dtype != float32:
        raise TypingError(f"fast_ functions take float32, not {dtype}")


def _approximate(text: str, before: float | None = None, after: float | None = None) -> ScalarRule:
    """An instruction, with a factor on its operand or on its result."""

    def rule(builder: ir.IRBuilder, dtype: DType, x: ir.Value) -> ir.Value:
        _check(dtype)
        if before is not None:
            x = builder.fmul(x, _number(before))
        value = _instruction(builder, text, x)
        return value if after is None else builder.fmul(value, _number(after))

    return rule


def _divide(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    _check(dtype)
    return asm(builder, F32, "div.full.f32 $0, $1, $2;", "=f,f,f", [a, b])


#: erfc(x) = exp(-x*x) * (1 + sum of c[k] * s**(k+1)), s = p*x / (1 + p*x): minimax coefficients for x >= 0 of the
#: form of Abramowitz and Stegun 7.1.26, written in s = 1 - t so that the error of t does not count near x = 0. In exact
#: arithmetic the largest error is 2.4e-8.
_ERF_P = 0.444
_ERF_C = (-2.541390891253374, 2.5310714266812147, -0.9877599933276084, -0.2601031269063402, 0.2734314307111734)
#: Beyond this erf is 1 in float32; keeps s finite.
_ERF_LARGEST = 8.0


def _erf(builder: ir.IRBuilder, dtype: DType, x: ir.Value) -> ir.Value:
    """1 - exp(-x*x) * polynomial, with the sign of x; a NaN comes through the exponential."""
    _check(dtype)
    fma = "llvm.fma.f32"
    one = _number(1.0)
    size = scalar_math.intrinsic(builder, "llvm.fabs.f32", [x])
    bounded = scalar_math.intrinsic(builder, "llvm.minnum.f32", [size, _number(_ERF_LARGEST)])
    scaled = builder.fmul(bounded, _number(_ERF_P))
    # The operand is between 1 and 5, so flushing subnormals changes nothing; below, what it flushes is under 1e-38.
    t = _instruction(builder, "rcp.approx.ftz.f32", builder.fadd(scaled, one))
    s = builder.fmul(scaled, t)
    exponential = _instruction(builder, "ex2.approx.ftz.f32", builder.fmul(builder.fmul(size, size), _number(-_LOG2_E)))
    negative: ir.Value = _number(-_ERF_C[-1])
    for coefficient in (*reversed(_ERF_C[:-1]), 1.0):
        negative = scalar_math.intrinsic(builder, fma, [negative, s, _number(-coefficient)])
    positive = scalar_math.intrinsic(builder, fma, [negative, exponential, one])
    return scalar_math.intrinsic(builder, "llvm.copysign.f32", [positive, x])


FUNCTIONS: tuple[KernelFunction, ...] = (
    elementwise(
        "fast_exp",
        "e ** x by ``ex2.approx.f32`` of x * log2(e): relative error 2**-22 for abs(x) <= 1, growing as "
        "abs(x) * 2**-23.5.",
        _approximate("ex2.approx.f32", before=_LOG2_E),
    ),
    elementwise("fast_exp2", "2 ** x by ``ex2.approx.f32``: relative error 2**-22.5.", _approximate("ex2.approx.f32")),
    elementwise(
        "fast_log2",
        "log2(x) by ``lg2.approx.f32``: absolute error 2**-22 on (0.5, 2), relative error 2**-22 outside.",
        _approximate("lg2.approx.f32"),
    ),
    elementwise(
        "fast_log",
        "log(x) by ``lg2.approx.f32`` times ln 2: errors as of fast_log2.",
        _approximate("lg2.approx.f32", after=_LN_2),
    ),
    elementwise("fast_reciprocal", "1 / x by ``rcp.approx.f32``: 1 ulp.", _approximate("rcp.approx.f32")),
    elementwise(
        "fast_rsqrt",
        "1 / sqrt(x) by ``rsqrt.approx.f32``: relative error 2**-22.9.",
        _approximate("rsqrt.approx.f32"),
    ),
    elementwise(
        "fast_tanh",
        "tanh(x) by ``tanh.approx.f32``: relative error 2**-11; for 16-bit results only.",
        _approximate("tanh.approx.f32"),
    ),
    elementwise(
        "fast_erf",
        "erf(x) by ``ex2.approx``, ``rcp.approx`` and a polynomial of degree 5: absolute error 2e-7, no bound on the "
        "relative error near 0.",
        _erf,
    ),
    two_operand(
        "fast_divide",
        "a / b by ``div.full.f32``: 2 ulp over the full range.",
        per_element(_divide),
    ),
)
