# SPDX-License-Identifier: Apache-2.0
"""Warp shuffles of tiles (PTX ISA ``shfl.sync``): 32-bit registers, all 32 lanes taking part."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import asm, from_bits, to_bits
from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function
from fusedsl.numba_cuda.tile import I32, I64, TileType, build_vector, elements, from_elements, is_packed, vector_lanes

#: Clamp operand of each mode for full-width groups of 32 lanes.
_CLAMP = 31


def shuffle_word(builder: ir.IRBuilder, mode: str, word: ir.Value, operand: ir.Value) -> ir.Value:
    """``shfl.sync.<mode>.b32`` of one 32-bit register."""
    text = f"shfl.sync.{mode}.b32 $0, $1, $2, {_CLAMP}, -1;"
    return asm(builder, I32, text, "=r,r,r", [word, operand], effect=True, convergent=True)


def shuffle_element(builder: ir.IRBuilder, dtype: DType, mode: str, value: ir.Value, operand: ir.Value) -> ir.Value:
    """A shuffle of one element of any dtype: narrow ones widened, 64-bit ones in two halves."""
    bits = to_bits(builder, dtype, value)
    if dtype.bits < 32:
        moved = builder.trunc(shuffle_word(builder, mode, builder.zext(bits, I32), operand), bits.type)
    elif dtype.bits == 32:
        moved = shuffle_word(builder, mode, bits, operand)
    else:
        low = shuffle_word(builder, mode, builder.trunc(bits, I32), operand)
        high = builder.trunc(builder.lshr(bits, ir.Constant(I64, 32)), I32)
        high = shuffle_word(builder, mode, high, operand)
        moved = builder.or_(builder.zext(low, I64), builder.shl(builder.zext(high, I64), ir.Constant(I64, 32)))
    return from_bits(builder, dtype, moved)


def shuffle_elements(
    builder: ir.IRBuilder, dtype: DType, mode: str, values: Sequence[ir.Value], operand: ir.Value
) -> list[ir.Value]:
    """A shuffle of several elements with one lane operand."""
    return [shuffle_element(builder, dtype, mode, value, operand) for value in values]


def _shuffle(mode: str, tile: types.Type, operand: types.Type) -> Typed:
    if not isinstance(tile, TileType):
        raise TypingError(f"a shuffle takes a tile, not {tile}")
    if not isinstance(types.unliteral(operand), types.Integer):
        raise TypingError(f"the lane operand of a shuffle must be an int, not {operand}")

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        vector, amount = args[0], builder.trunc(args[1], I32)
        if is_packed(tile.dtype, tile.n):
            words = [shuffle_word(builder, mode, word, amount) for word in vector_lanes(builder, vector)]
            return build_vector(builder, I32, words)
        values = shuffle_elements(builder, tile.dtype, mode, elements(builder, tile, vector), amount)
        return from_elements(builder, tile.dtype, values)

    return tile, emit


@kernel_function
def shuffle_xor(t: types.Type, mask: types.Type) -> Typed:
    """The tile of the lane whose number is this lane's exclusive-or ``mask`` (``shfl.sync.bfly``)."""
    return _shuffle("bfly", t, mask)


@kernel_function
def shuffle_down(t: types.Type, delta: types.Type) -> Typed:
    """The tile of the lane ``delta`` above; this lane's own where there is none (``shfl.sync.down``)."""
    return _shuffle("down", t, delta)


@kernel_function
def shuffle_index(t: types.Type, lane: types.Type) -> Typed:
    """The tile of a given lane, modulo 32 (``shfl.sync.idx``)."""
    return _shuffle("idx", t, lane)


FUNCTIONS: tuple[KernelFunction, ...] = (shuffle_xor, shuffle_down, shuffle_index)
