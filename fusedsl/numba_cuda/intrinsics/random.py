# SPDX-License-Identifier: Apache-2.0
"""Random numbers keyed by element: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3")."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.dtypes import float32
from fusedsl.numba_cuda.intrinsics.memory import check_index
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function, literal
from fusedsl.numba_cuda.tile import F32, I32, I64, TileType, from_elements

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _philox(builder: ir.IRBuilder, counter: Sequence[ir.Value], key: Sequence[ir.Value]) -> list[ir.Value]:
    """Ten rounds on four 32-bit words; ``mul.wide.u32`` gives both halves of a product."""
    x, y, z, w = counter
    low, high = key

    def product(value: ir.Value, factor: int) -> tuple[ir.Value, ir.Value]:
        wide = builder.mul(builder.zext(value, I64), ir.Constant(I64, factor))
        return builder.trunc(builder.lshr(wide, ir.Constant(I64, 32)), I32), builder.trunc(wide, I32)

    for _ in range(10):
        (high0, low0), (high1, low1) = product(x, _MULTIPLIERS[0]), product(z, _MULTIPLIERS[1])
        x, y = builder.xor(builder.xor(high1, y), low), low1
        z, w = builder.xor(builder.xor(high0, w), high), low0
        low, high = (builder.add(k, ir.Constant(I32, step)) for k, step in zip((low, high), _WEYL, strict=True))
    return [x, y, z, w]


def _uniform(builder: ir.IRBuilder, word: ir.Value) -> ir.Value:
    """A number in (0, 1]: ``word * 2**-32 + 2**-33``, one rounding."""
    scaled = builder.fmul(builder.uitofp(word, F32), ir.Constant(F32, 2.0**-32))
    return builder.fadd(scaled, ir.Constant(F32, 2.0**-33))


def _place(
    builder: ir.IRBuilder, number: ir.Value, threads: ir.Value, chunk: int
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Thread, step and lane of an element, in the width of ``number``."""
    width = number.type

    def const(value: int) -> ir.Constant:
        return ir.Constant(width, value)

    if chunk == 1:
        group = builder.udiv(number, threads)
        return builder.urem(number, threads), builder.lshr(group, const(2)), builder.and_(group, const(3))
    group, inside = builder.udiv(number, const(chunk)), builder.and_(number, const(chunk - 1))
    step = builder.udiv(group, threads)
    if chunk > 4:
        step = builder.add(builder.mul(step, const(chunk // 4)), builder.lshr(inside, const(2)))
    return builder.urem(group, threads), step, builder.and_(inside, const(3))


@kernel_function
def random_uniform(
    first: types.Type,
    batch: types.Type,
    batch_stride: types.Type,
    vector: types.Type,
    element_stride: types.Type,
    seed: types.Type,
    offset: types.Type,
    threads: types.Type,
    chunk: types.Type,
    aligned: types.Type,
    wide: types.Type,
) -> Typed:
    """Tile(float32, batch*vector) of numbers in (0, 1]: element b*vector+k is that of element number
    ``first + b*batch_stride + k*element_stride``.

    Args:
        first: int64, not negative, as all element numbers.
        batch: literal.
        vector: literal.
        seed: int64 key.
        offset: int64, a multiple of 4.
        threads: int64, of the stream's layout (below 2**32).
        chunk: literal 1, 2, 4 or 8: consecutive elements of one thread of the layout.
        aligned: literal; True promises that element_stride is 1, and vector, chunk, ``first`` and batch_stride are
            multiples of 4: one Philox then serves four elements.
        wide: literal; False promises element numbers below 2**31 (32-bit divisions).
    """
    for name, argument in (("first", first), ("seed", seed), ("offset", offset), ("threads", threads)):
        check_index(f"random_uniform: {name}", argument)
    for name, argument in (("batch_stride", batch_stride), ("element_stride", element_stride)):
        check_index(f"random_uniform: {name}", argument)
    b, v, c, grouped = (
        literal(a, n) for a, n in ((batch, "batch"), (vector, "vector"), (chunk, "chunk"), (aligned, "aligned"))
    )
    if c not in (1, 2, 4, 8) or (grouped and (v % 4 or c % 4)):
        raise TypingError(f"random_uniform: chunk {c} with vectors of {v} elements, aligned={grouped}")
    width = I64 if literal(wide, "wide") else I32

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        start, stride, step, seed_, offset_, threads_ = (args[i] for i in (0, 2, 4, 5, 6, 7))
        high = ir.Constant(I64, 32)
        key = (builder.trunc(seed_, I32), builder.trunc(builder.lshr(seed_, high), I32))
        base = builder.lshr(offset_, ir.Constant(I64, 2))
        count = threads_ if width == I64 else builder.trunc(threads_, I32)
        zero = ir.Constant(I32, 0)

        def words(number: ir.Value) -> tuple[list[ir.Value], ir.Value]:
            thread, at, lane = _place(builder, number if width == I64 else builder.trunc(number, I32), count, c)
            wide_at = builder.add(base, at if width == I64 else builder.zext(at, I64))
            low_thread = builder.trunc(thread, I32) if width == I64 else thread
            counter = (builder.trunc(wide_at, I32), builder.trunc(builder.lshr(wide_at, high), I32), low_thread, zero)
            return _philox(builder, counter, key), lane

        found: list[ir.Value] = []
        for i in range(b):
            row = builder.add(start, builder.mul(stride, ir.Constant(I64, i)))
            for k in range(0, v, 4 if grouped else 1):
                four, lane = words(builder.add(row, builder.mul(step, ir.Constant(I64, k))))
                if grouped:
                    found += [_uniform(builder, word) for word in four]
                    continue
                chosen = four[3]
                for place in (2, 1, 0):
                    here = builder.icmp_unsigned("==", lane, ir.Constant(lane.type, place))
                    chosen = builder.select(here, four[place], chosen)
                found.append(_uniform(builder, chosen))
        return from_elements(builder, float32, found)

    return TileType(float32, b * v), emit


FUNCTIONS: tuple[KernelFunction, ...] = (random_uniform,)
