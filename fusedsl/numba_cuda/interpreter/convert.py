# SPDX-License-Identifier: Apache-2.0
"""Tiles from nothing and from tiles of another dtype: iota, full, cast, bitcast."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np

from fusedsl.numba_cuda.dtypes import DTYPES, DType, boolean
from fusedsl.numba_cuda.interpreter.errors import InvalidOperand, TileMismatch
from fusedsl.numba_cuda.interpreter.storage import (
    constant,
    element_type,
    fill_value,
    round_to_bfloat16,
    widen_bfloat16,
)
from fusedsl.numba_cuda.interpreter.tile import Array, BoolTile, Scalar, Tile, make_tile

Converter: TypeAlias = Callable[[Array], Array]


def iota(batch: int, stride: int, vector: int, dtype: DType) -> Tile:
    """The offsets ``b * stride + k`` of a tile's elements, int32 or int64."""
    if dtype.kind != "int" or dtype.bits < 32:
        raise InvalidOperand(f"iota of {dtype}", expected="int32 or int64")
    return Tile(dtype, _offsets(batch, stride, vector, dtype.bits))


@lru_cache(maxsize=1024)
def _offsets(batch: int, stride: int, vector: int, bits: int) -> Array:
    return (np.arange(batch)[:, None] * stride + np.arange(vector)).reshape(-1).astype(f"i{bits // 8}")


def chunk_mask(limit: int, batch: int, step: int, vector: int) -> Tile:
    """Boolean tile of ``batch * vector``: true in the chunks b with ``b*step < limit``."""
    return BoolTile(boolean, _offsets(batch, step, 1, 64).repeat(vector) < limit)


def repeat(t: Tile, batch: int) -> Tile:
    """The tile ``batch`` times: element ``b*t.n + k`` is ``t[k]``."""
    return t.__class__(t.dtype, np.tile(t.values, batch))


def spread(t: Tile, vector: int) -> Tile:
    """Each element ``vector`` times: element ``i*vector + k`` is ``t[i]``."""
    return t.__class__(t.dtype, t.values.repeat(vector))


def join(a: Tile, b: Tile) -> Tile:
    """The elements of ``a``, then those of ``b``."""
    for tile in (a, b):
        if not isinstance(tile, Tile) or tile.dtype is not a.dtype:
            raise TileMismatch(f"join of {a!r} and {b!r}", expected="two tiles of one dtype")
    return a.__class__(a.dtype, np.concatenate((a.values, b.values)))


def take(t: Tile, first: int, n: int) -> Tile:
    """n elements of a tile from element ``first`` on."""
    if first < 0 or n < 1 or first + n > t.n:
        raise TileMismatch(f"take of elements {first} to {first + n - 1} of a tile of {t.n}")
    return t.__class__(t.dtype, t.values[first : first + n])


def full(n: int, value: Tile | Scalar, dtype: DType) -> Tile:
    """n copies of a number, or of a one-element tile of the dtype."""
    if not isinstance(value, Tile):
        return make_tile(dtype, constant(dtype, n, value))
    if value.dtype is not dtype or value.n not in (1, n):
        raise TileMismatch(f"full of a {value.dtype} tile of {value.n} elements", expected=f"one element of {dtype}")
    return make_tile(dtype, np.repeat(value.values, n) if value.n != n else value.values)


def _from_bfloat16(rest: Converter) -> Converter:
    return lambda bits: rest(widen_bfloat16(bits))


@cache
def _converter(source: str, target: str) -> Converter:
    """What turns elements of one dtype into another, as a GPU does.

    Float to int truncates; NaN gives 0 and what does not fit saturates in 32 and 64 bits, narrower integers wrap.
    """
    from_, to = DTYPES[source], DTYPES[target]
    if from_.numpy is None:
        return widen_bfloat16 if target == "float32" else _from_bfloat16(_converter("float32", target))
    if to.kind == "bool":
        return lambda values: np.asarray(values != 0)
    if to.is_half and to.numpy is None:
        return lambda values: round_to_bfloat16(values.astype(np.float32, copy=False))
    if to.is_half:
        return lambda values: values.astype(np.float32, copy=False).astype(to.numpy)
    if from_.is_float and to.is_integer:
        return lambda values: _truncate(values, to)
    return lambda values: values.astype(to.numpy)


def _truncate(values: Array, target: DType) -> Array:
    name = "int32" if target.kind == "int" and target.bits < 64 else "int64"
    wide = np.dtype(target.name if target.bits >= 32 else name)
    info = np.iinfo(wide)
    exact = np.trunc(values.astype(np.float64))
    exact[np.isnan(exact)] = 0.0
    high, low = exact >= float(info.max), exact <= float(info.min)
    whole = np.where(high | low, 0.0, exact).astype(wide)
    whole[high] = info.max
    whole[low] = info.min
    return whole.astype(element_type(target))


def cast(tile: Tile | Scalar, dtype: DType) -> Tile:
    """Convert to another dtype, as torch's ``.to``; a number becomes a tile of one element."""
    if not isinstance(tile, Tile):
        return make_tile(dtype, constant(dtype, 1, tile))
    source = tile.dtype
    if source is dtype:
        return tile
    return make_tile(dtype, _converter(source.name, dtype.name)(tile.values))


def recast(tile: Tile, dtype: DType, after: Tile | None = None) -> Tile:
    """`cast` of a tile of 16-bit floats to float32; ``after`` only matters to the compiler's order of instructions."""
    if not isinstance(tile, Tile) or not tile.dtype.is_half or dtype.name != "float32":
        raise TileMismatch(f"recast of {tile!r} to {dtype}", expected="a tile of 16-bit floats, and float32")
    if after is not None and (not isinstance(after, Tile) or after.n != 1 or after.dtype.bits != 32):
        raise TileMismatch(f"recast after {after!r}", expected="a one-element tile of 4 bytes")
    return cast(tile, dtype)


def bitcast(tile: Tile, dtype: DType) -> Tile:
    """The same bits as another dtype of the same width."""
    if tile.dtype.bits != dtype.bits:
        raise TileMismatch(f"bitcast of {tile.dtype} to {dtype}", expected="dtypes of the same width")
    if dtype.kind == "bool":
        return make_tile(dtype, np.ascontiguousarray(tile.values).view(np.uint8) != 0)
    return make_tile(dtype, np.ascontiguousarray(tile.values).view(element_type(dtype)))


def select(mask: Any, a: Any, b: Any) -> Tile:
    """``where`` of the kernel language: ``a`` where the mask is on, else ``b``; tiles of one dtype, or one a number."""
    if isinstance(mask, Tile) and mask.dtype.kind != "bool":
        raise TileMismatch(f"where with a mask of {mask.dtype}", expected="a boolean tile or a condition")
    chosen = mask.values if isinstance(mask, Tile) else np.bool_(mask)
    tile = a if isinstance(a, Tile) else b
    if not isinstance(tile, Tile):
        raise TileMismatch("where of two numbers", expected="at least one tile")
    dtype = tile.dtype
    sides = []
    for side in (a, b):
        if not isinstance(side, Tile):
            sides.append(fill_value(dtype, side))
        elif side.dtype is dtype:
            sides.append(side.values)
        else:
            raise TileMismatch(f"where of a {a.dtype} tile and a {b.dtype} tile", expected="tiles of one dtype")
    try:
        return make_tile(dtype, np.where(chosen, *sides))
    except ValueError:
        sizes = f"{np.size(chosen)}, {np.size(sides[0])} and {np.size(sides[1])}"
        raise TileMismatch(f"where of tiles of {sizes} elements", expected="equal sizes, or one element") from None
