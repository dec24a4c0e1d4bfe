# SPDX-License-Identifier: Apache-2.0
"""Making tiles and changing their dtype."""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import convert_tile, from_bits, operand, to_bits, unpack_halves_again, wrap
from fusedsl.numba_cuda.dtypes import boolean, float32
from fusedsl.numba_cuda.intrinsics.memory import check_index
from fusedsl.numba_cuda.registry import KernelFunction, Typed, is_none, is_number, kernel_function, literal, marker
from fusedsl.numba_cuda.tile import I1, I64, TileType, build_vector, element_type, elements, from_elements


@kernel_function
def cast(tile: types.Type, dtype: types.Type) -> Typed:
    """The tile in another dtype, as torch's ``.to``: float to int truncates, to boolean is ``!= 0``, to the 16-bit
    floats
    rounds to nearest even (``cvt.rn.bf16x2.f32``, ``cvt.rn.f16x2.f32``). A number becomes a one-element tile."""
    target = marker(dtype)
    if is_number(tile):
        return TileType(target, 1), lambda builder, args: operand(builder, tile, args[0], target, 1)
    if not isinstance(tile, TileType):
        raise TypingError(f"cast takes a tile, not {tile}")
    return TileType(target, tile.n), lambda builder, args: convert_tile(builder, tile, args[0], target)


@kernel_function
def recast(tile: types.Type, dtype: types.Type, after: types.Type = None) -> Typed:
    """The float32 values of a tile of 16-bit floats, as `cast`, computed again where the kernel says so.

    The compiler takes it for another computation than `cast` or an earlier `recast` (``prmt.b32`` with a selector it
    cannot know), so it does not keep their float32 values, which need twice the registers of the tile.

    Args:
        after: a one-element tile of 4 bytes (a reduction's result); nothing of the conversion, and of what depends on
            it, begins before it is known.
    """
    if not isinstance(tile, TileType) or not tile.dtype.is_half or marker(dtype) != float32:
        raise TypingError(f"recast takes a tile of 16-bit floats to float32, not {tile} to {dtype}")
    if not is_none(after) and not (isinstance(after, TileType) and after.n == 1 and after.dtype.bits == 32):
        raise TypingError(f"recast waits for a one-element tile of 4 bytes, not {after}")

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        bits = None
        if isinstance(after, TileType):
            bits = to_bits(builder, after.dtype, elements(builder, after, args[2])[0])
        return unpack_halves_again(builder, tile, args[0], bits)

    return TileType(float32, tile.n), emit


@kernel_function
def bitcast(tile: types.Type, dtype: types.Type) -> Typed:
    """The same bits as another dtype of the same width."""
    target = marker(dtype)
    if not isinstance(tile, TileType) or tile.dtype.bits != target.bits:
        raise TypingError(f"bitcast of {tile} to {target}: the widths differ")
    source = tile.dtype

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        bits = [to_bits(builder, source, value) for value in elements(builder, tile, args[0])]
        return from_elements(builder, target, [from_bits(builder, target, value) for value in bits])

    return TileType(target, tile.n), emit


@kernel_function
def full(n: types.Type, value: types.Type, dtype: types.Type) -> Typed:
    """A tile of n copies of a number (or of a one-element tile of that dtype)."""
    target = marker(dtype)
    count = literal(n, "n")
    return TileType(target, count), lambda builder, args: operand(builder, value, args[1], target, count)


@kernel_function
def iota(batch: types.Type, stride: types.Type, vector: types.Type, dtype: types.Type) -> Typed:
    """Tile of ``b*stride + k`` for element ``b*vector + k``: the offsets `load` reads, from its first; int32 or
    int64."""
    target = marker(dtype)
    if target.name not in ("int32", "int64"):
        raise TypingError(f"iota gives int32 or int64, not {target}")
    batches, step, width = (literal(a, name) for a, name in ((batch, "batch"), (stride, "stride"), (vector, "vector")))
    kind = element_type(target)
    values = [ir.Constant(kind, wrap(b * step + k, target)) for b in range(batches) for k in range(width)]
    return TileType(target, batches * width), lambda builder, _: build_vector(builder, kind, values)


@kernel_function
def chunk_mask(limit: types.Type, batch: types.Type, step: types.Type, vector: types.Type) -> Typed:
    """Boolean tile of ``batch * vector``: true in the chunks that `load` reads, ``b*step < limit``."""
    batches, distance, width = (literal(a, name) for a, name in ((batch, "batch"), (step, "step"), (vector, "vector")))
    check_index("limit", limit)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        inside = [builder.icmp_signed(">", args[0], ir.Constant(I64, b * distance)) for b in range(batches)]
        return build_vector(builder, I1, [bit for bit in inside for _ in range(width)])

    return TileType(boolean, batches * width), emit


@kernel_function
def repeat(t: types.Type, batch: types.Type) -> Typed:
    """The tile ``batch`` times: element ``b*t.n + k`` is ``t[k]``."""
    count = literal(batch, "batch")
    if not isinstance(t, TileType):
        raise TypingError(f"repeat takes a tile, not {t}")
    return TileType(t.dtype, t.n * count), lambda builder, args: from_elements(
        builder, t.dtype, elements(builder, t, args[0]) * count
    )


@kernel_function
def spread(t: types.Type, vector: types.Type) -> Typed:
    """Each element ``vector`` times: element ``i*vector + k`` is ``t[i]``."""
    count = literal(vector, "vector")
    if not isinstance(t, TileType):
        raise TypingError(f"spread takes a tile, not {t}")
    return TileType(t.dtype, t.n * count), lambda builder, args: from_elements(
        builder, t.dtype, [value for value in elements(builder, t, args[0]) for _ in range(count)]
    )


def _tile(name: str, t: types.Type) -> TileType:
    if not isinstance(t, TileType):
        raise TypingError(f"{name} takes a tile, not {t}")
    return t


@kernel_function
def join(a: types.Type, b: types.Type) -> Typed:
    """The elements of ``a``, then those of ``b``."""
    first, second = _tile("join", a), _tile("join", b)
    if first.dtype != second.dtype:
        raise TypingError(f"join of {a} and {b}: the dtypes differ")

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        together = [*elements(builder, first, args[0]), *elements(builder, second, args[1])]
        return from_elements(builder, first.dtype, together)

    return TileType(first.dtype, first.n + second.n), emit


@kernel_function
def take(t: types.Type, first: types.Type, n: types.Type) -> Typed:
    """n elements of a tile from element ``first`` on."""
    tile, begin, count = _tile("take", t), literal(first, "first"), literal(n, "n")
    if begin < 0 or count < 1 or begin + count > tile.n:
        raise TypingError(f"take of elements {begin} to {begin + count - 1} of {t}")
    return TileType(tile.dtype, count), lambda builder, args: from_elements(
        builder, tile.dtype, elements(builder, tile, args[0])[begin : begin + count]
    )


FUNCTIONS: tuple[KernelFunction, ...] = (cast, recast, bitcast, full, iota, chunk_mask, repeat, spread, join, take)
