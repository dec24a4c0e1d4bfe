# SPDX-License-Identifier: Apache-2.0
"""LLVM code for dtype conversion, and for bringing mixed operands (tiles, scalars, one-element tiles) to one tile
type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.dtypes import DTYPES, DType, bfloat16, boolean, float32, float64
from fusedsl.numba_cuda.registry import is_number
from fusedsl.numba_cuda.tile import (
    F32,
    F64,
    I1,
    I16,
    I32,
    I64,
    TileType,
    build_vector,
    element_type,
    elements,
    from_elements,
    is_packed,
    spread,
    vector_lanes,
)


def asm(
    builder: ir.IRBuilder,
    result: ir.Type,
    text: str,
    constraints: str,
    args: Sequence[ir.Value],
    *,
    effect: bool = False,
    convergent: bool = False,
) -> ir.Value:
    """One inline-PTX string.

    Args:
        result: result type; a literal struct for several outputs.
        effect: it must be kept and stay in order among others with an effect.
        convergent: it must not move into or out of a divergent branch (warp- and block-wide instructions).
    """
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    inline = ir.InlineAsm(function_type, text, constraints, side_effect=effect)
    return builder.call(inline, list(args), attrs=("convergent",) if convergent else ())


def zero(llvm: ir.Type) -> ir.Constant:
    """Zero of a scalar or vector type."""
    element = llvm.element if isinstance(llvm, ir.VectorType) else llvm
    value = ir.Constant(element, 0.0 if element in (F32, F64) else 0)
    return ir.Constant(llvm, [value] * llvm.count) if isinstance(llvm, ir.VectorType) else value


def float_constant(dtype: DType, value: float) -> ir.Constant:
    """A float32 or float64 constant; values that float32 cannot hold become infinite."""
    if dtype == float32:
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    return ir.Constant(element_type(dtype), value)


def constant(dtype: DType, value: float) -> ir.Constant:
    """An element constant of any arithmetic dtype (not the 16-bit floats)."""
    if dtype.is_float:
        return float_constant(dtype, float(value))
    if dtype.kind == "bool":
        return ir.Constant(I1, int(bool(value)))
    return ir.Constant(element_type(dtype), wrap(int(value), dtype))


def half_constant(dtype: DType, value: float) -> ir.Constant:
    """A 16-bit float constant, as its bits, rounded to nearest even."""
    single = np.float32(constant(float32, value).constant)
    if dtype.numpy is not None:
        with np.errstate(over="ignore"):
            return ir.Constant(I16, int(single.astype(dtype.numpy).view(np.int16)))
    if np.isnan(single):
        return ir.Constant(I16, 0x7FFF)
    bits = int(single.view(np.uint32))
    return ir.Constant(I16, wrap((bits + 0x7FFF + (bits >> 16 & 1)) >> 16, dtype))


def wrap(value: int, dtype: DType) -> int:
    """An integer reduced to the signed pattern of a dtype's width, as LLVM constants want it."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value >> (dtype.bits - 1) else value


def _like(llvm: ir.Type, vector: ir.Type) -> ir.Type:
    return ir.VectorType(llvm, vector.count) if isinstance(vector, ir.VectorType) else llvm


def _resize_int(builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType) -> ir.Value:
    out = _like(element_type(target), value.type)
    if source.bits > target.bits:
        return builder.trunc(value, out)
    if source.bits == target.bits:
        return value
    return builder.sext(value, out) if source.kind == "int" else builder.zext(value, out)


def _float_to_int(builder: ir.IRBuilder, value: ir.Value, target: DType) -> ir.Value:
    """Truncation toward zero; narrow targets go through a wider integer and wrap, as torch's kernels do."""
    if target.bits == 64 or target.bits == 32:
        out = _like(element_type(target), value.type)
        return builder.fptosi(value, out) if target.kind == "int" else builder.fptoui(value, out)
    wide = I32 if target.kind == "int" else I64
    return builder.trunc(builder.fptosi(value, _like(wide, value.type)), _like(element_type(target), value.type))


def convert_arithmetic(builder: ir.IRBuilder, value: ir.Value, source: DType, target: DType) -> ir.Value:
    """Convert a scalar or vector between dtypes other than the 16-bit floats."""
    if source == target:
        return value
    out = _like(element_type(target), value.type)
    if target.kind == "bool":
        if source.is_float:
            return builder.fcmp_unordered("!=", value, zero(value.type))
        return builder.icmp_unsigned("!=", value, zero(value.type))
    if source.kind == "bool":
        return builder.uitofp(value, out) if target.is_float else builder.zext(value, out)
    if source.is_float:
        if target.is_float:
            return builder.fptrunc(value, out) if source.bits > target.bits else builder.fpext(value, out)
        return _float_to_int(builder, value, target)
    if target.is_float:
        return builder.sitofp(value, out) if source.kind == "int" else builder.uitofp(value, out)
    return _resize_int(builder, value, source, target)


_TWO_FLOATS = ir.LiteralStructType([F32, F32])


def _word_to_floats(builder: ir.IRBuilder, word: ir.Value, dtype: DType) -> list[ir.Value]:
    if dtype == bfloat16:
        low = builder.shl(word, ir.Constant(I32, 16))
        high = builder.and_(word, ir.Constant(I32, -0x10000))
        return [builder.bitcast(low, F32), builder.bitcast(high, F32)]
    text = "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }"
    pair = asm(builder, _TWO_FLOATS, text, "=f,=f,r", [word])
    return [builder.extract_value(pair, 0), builder.extract_value(pair, 1)]


def _half_to_float(builder: ir.IRBuilder, half: ir.Value, dtype: DType) -> ir.Value:
    if dtype == bfloat16:
        return builder.bitcast(builder.shl(builder.zext(half, I32), ir.Constant(I32, 16)), F32)
    return asm(builder, F32, "cvt.f32.f16 $0, $1;", "=f,h", [half])


def unpack_halves(builder: ir.IRBuilder, tile: TileType, vector: ir.Value) -> ir.Value:
    """The float32 vector of a tile of 16-bit floats; exact."""
    lanes = vector_lanes(builder, vector)
    if is_packed(tile.dtype, tile.n):
        floats = [value for word in lanes for value in _word_to_floats(builder, word, tile.dtype)]
    else:
        floats = [_half_to_float(builder, half, tile.dtype) for half in lanes]
    return build_vector(builder, F32, floats)


#: Selectors of ``prmt.b32`` over a word and zeros: the low or the high half to the top, and the word as it is.
_LOW_TO_TOP, _HIGH_TO_TOP, _WHOLE = 0x1044, 0x3244, 0x3210


def _opaque(builder: ir.IRBuilder, value: int, after: ir.Value | None) -> ir.Value:
    """A 32-bit constant that neither LLVM nor ptxas knows, that two calls do not share, and that is not available
    before ``after``.

    The running lane's bit of ``activemask`` is always set, which only the hardware knows. A funnel shift by an amount
    that is zero in the same way adds ``after`` (32 bits) without taking anything from it.
    """
    one = "activemask.b32 m; mov.u32 l, %laneid; shr.u32 m, m, l; and.b32 m, m, 1;"
    if after is None:
        text = f"{{ .reg .b32 m, l; {one} add.u32 $0, m, {value - 1}; }}"
        return asm(builder, I32, text, "=r", [], effect=True)
    text = f"{{ .reg .b32 m, l; {one} sub.u32 l, m, 1; shf.r.wrap.b32 $0, {value}, $1, l; }}"
    return asm(builder, I32, text, "=r,r", [after], effect=True)


def unpack_halves_again(
    builder: ir.IRBuilder, tile: TileType, vector: ir.Value, after: ir.Value | None = None
) -> ir.Value:
    """As `unpack_halves`, by code that the compiler cannot merge with that function's or with another call of this,
    and cannot begin before ``after`` (32 bits) is known.

    bfloat16 elements are moved by ``prmt.b32`` (PTX ISA ``prmt``) with an opaque selector, at no cost; words of float16
    elements pass through one before ``cvt.f32.f16``.
    """
    lanes = vector_lanes(builder, vector)
    packed = is_packed(tile.dtype, tile.n)
    words = lanes if packed else [builder.zext(half, I32) for half in lanes]
    if tile.dtype == bfloat16:
        places = (_LOW_TO_TOP, _HIGH_TO_TOP) if packed else (_LOW_TO_TOP,)
        selectors = [_opaque(builder, place, after) for place in places]
        moved = [_permute(builder, word, selector) for word in words for selector in selectors]
        return build_vector(builder, F32, [builder.bitcast(word, F32) for word in moved])
    whole = _opaque(builder, _WHOLE, after)
    again = [_permute(builder, word, whole) for word in words]
    if not packed:
        again = [builder.trunc(word, I16) for word in again]
    return unpack_halves(builder, tile, build_vector(builder, again[0].type, again))


def _permute(builder: ir.IRBuilder, word: ir.Value, selector: ir.Value) -> ir.Value:
    return asm(builder, I32, "prmt.b32 $0, $1, 0, $2;", "=r,r,r", [word, selector])


def round_halves(builder: ir.IRBuilder, vector: ir.Value, dtype: DType) -> ir.Value:
    """A tile of 16-bit floats from a float32 vector, rounded to nearest even (``cvt.rn``)."""
    name = "bf16" if dtype == bfloat16 else "f16"
    lanes = vector_lanes(builder, vector)
    if len(lanes) % 2:
        halves = [asm(builder, I16, f"cvt.rn.{name}.f32 $0, $1;", "=h,f", [lane]) for lane in lanes]
        return build_vector(builder, I16, halves)
    text = f"cvt.rn.{name}x2.f32 $0, $2, $1;"  # the first source goes to the high half
    words = [asm(builder, I32, text, "=r,f,f", [low, high]) for low, high in zip(lanes[::2], lanes[1::2], strict=True)]
    return build_vector(builder, I32, words)


def convert_tile(builder: ir.IRBuilder, tile: TileType, vector: ir.Value, target: DType) -> ir.Value:
    """A tile converted to another dtype, as torch's ``.to``."""
    if tile.dtype == target:
        return vector
    source = tile.dtype
    if source.is_half:
        vector, source = unpack_halves(builder, tile, vector), float32
    if target.is_half:
        return round_halves(builder, convert_arithmetic(builder, vector, source, float32), target)
    return convert_arithmetic(builder, vector, source, target)


def scalar_dtype(argument: types.Type) -> DType:
    """The dtype a numba scalar has in registers."""
    plain = types.unliteral(argument)
    if isinstance(plain, types.Boolean):
        return boolean
    if isinstance(plain, types.Float):
        return float32 if plain.bitwidth == 32 else float64
    if isinstance(plain, types.Integer):
        return DTYPES[plain.name]
    raise TypingError(f"a number is needed, not {argument}")


def _constant_scalar(value: ir.Value) -> int | float | None:
    if isinstance(value, ir.Constant) and not isinstance(value.constant, str | bytes):
        constant_value: int | float = value.constant
        return constant_value
    return None


def convert_scalar(builder: ir.IRBuilder, argument: types.Type, value: ir.Value, target: DType) -> ir.Value:
    """A scalar converted to an element of ``target``; constants are folded here, so float64 literals leave no trace."""
    if isinstance(argument, types.Omitted):
        known: int | float | None = argument.value
    elif isinstance(argument, types.Literal):
        known = argument.literal_value
    else:
        known = _constant_scalar(value)
    arithmetic = float32 if target.is_half else target
    if known is not None and not (isinstance(known, float) and not math.isfinite(known) and not target.is_float):
        element = constant(arithmetic, known)
    else:
        element = convert_arithmetic(builder, value, scalar_dtype(argument), arithmetic)
    if not target.is_half:
        return element
    if known is not None:
        return half_constant(target, known)
    (half,) = vector_lanes(builder, round_halves(builder, build_vector(builder, F32, [element]), target))
    return half


def operand(builder: ir.IRBuilder, argument: types.Type, value: ir.Value, dtype: DType, n: int) -> ir.Value:
    """An operand (tile or scalar) as a tile vector of n elements of ``dtype``."""
    if isinstance(argument, TileType):
        if argument.dtype != dtype:
            raise TypingError(f"{argument} where a tile of {dtype} is needed: cast it first")
        return spread(builder, argument, value, n)
    element = convert_scalar(builder, argument, value, dtype)
    return from_elements(builder, dtype, [element] * n)


def common_tile(name: str, *arguments: types.Type) -> TileType:
    """The tile type that operands combine to: one dtype, and lengths equal or 1.

    Raises:
        TypingError: dtypes or lengths differ, or nothing is a tile.
    """
    tiles = [argument for argument in arguments if isinstance(argument, TileType)]
    if not tiles:
        raise TypingError(f"{name} needs a tile among its operands, got {arguments}")
    for argument in arguments:
        if not isinstance(argument, TileType) and not is_number(argument):
            raise TypingError(f"{name} takes tiles and numbers, not {argument}")
    dtypes = {tile.dtype for tile in tiles}
    if len(dtypes) > 1:
        raise TypingError(f"{name} of different dtypes: {', '.join(map(str, tiles))}")
    return TileType(tiles[0].dtype, common_length(name, *tiles))


def common_length(name: str, *tiles: TileType) -> int:
    """The length that tiles broadcast to: equal, or 1."""
    n = max(tile.n for tile in tiles)
    if any(tile.n not in (1, n) for tile in tiles):
        raise TypingError(f"{name} of different lengths: {', '.join(map(str, tiles))}")
    return n


def tile_words(builder: ir.IRBuilder, tile: TileType, vector: ir.Value) -> tuple[list[ir.Value], int]:
    """The bits of a tile in memory order, as (integers, bits an integer).

    Packed tiles give 32-bit words of two elements, others one integer an element (booleans 8 bits).
    """
    if is_packed(tile.dtype, tile.n):
        return vector_lanes(builder, vector), 32
    return [to_bits(builder, tile.dtype, value) for value in elements(builder, tile, vector)], tile.dtype.bits


def to_bits(builder: ir.IRBuilder, dtype: DType, value: ir.Value) -> ir.Value:
    """The memory bits of one element as an integer."""
    if dtype.kind == "bool":
        return builder.zext(value, ir.IntType(8))
    if dtype.is_float and not dtype.is_half:
        return builder.bitcast(value, ir.IntType(dtype.bits))
    return value


def from_bits(builder: ir.IRBuilder, dtype: DType, bits: ir.Value) -> ir.Value:
    """One element from its memory bits."""
    if dtype.kind == "bool":
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))
    if dtype.is_float and not dtype.is_half:
        return builder.bitcast(bits, element_type(dtype))
    return bits
