# SPDX-License-Identifier: Apache-2.0
"""Accesses to global memory: vector loads and stores, gathers, scatters, atomics, all checked against the tensor's span."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fusedsl.numba_cuda.interpreter.errors import MisalignedAccess, OutOfBounds, TileMismatch
from fusedsl.numba_cuda.interpreter.pointer import Pointer, Run
from fusedsl.numba_cuda.interpreter.storage import access_bytes, constant
from fusedsl.numba_cuda.interpreter.tile import Array, Scalar, Tile


@lru_cache(maxsize=4096)
def _pattern(chunks: int, stride: int, vector: int) -> Array:
    """Offsets b * stride + k of the elements of some chunks, int64[chunks * vector]."""
    return (np.arange(chunks)[:, None] * stride + np.arange(vector)).reshape(-1)


def _check(what: str, p: Pointer, offset: int, limit: int | None, batch: int, stride: int, vector: int) -> int:
    """The number of chunks an access touches, after checking their bounds and alignment."""
    chunks = batch
    if limit is not None and (batch - 1) * stride >= limit:
        chunks = 0 if limit <= 0 else -(-limit // stride)
        if chunks == 0:
            return 0
    if offset < 0 or offset + (chunks - 1) * stride + vector > p.size:
        touched = _elements(chunks, offset, stride, vector)
        raise OutOfBounds(f"{what} touches {touched} of {p.name}", expected=p.legal)
    if vector > 1:
        itemsize = p.dtype.itemsize
        nbytes = access_bytes(vector * itemsize)
        start = p.address + offset * itemsize
        step = stride * itemsize if chunks > 1 else 0
        if start % nbytes or step % nbytes:
            raise MisalignedAccess(
                f"{what} by {nbytes} bytes at {_elements(chunks, offset, stride, vector)} of {p.name}: "
                f"the address is {start % nbytes} and the stride {step % nbytes} bytes past a multiple of {nbytes}",
                expected=f"addresses that are multiples of {nbytes} bytes",
            )
    return chunks


def _elements(chunks: int, offset: int, stride: int, vector: int) -> str:
    first = f"element {offset}" if vector == 1 else f"elements {offset} to {offset + vector - 1}"
    if chunks == 1:
        return first
    return f"{first} and {chunks - 1} more chunk{'s' if chunks > 2 else ''}, {stride} elements apart,"


def _runs(chunks: int, offset: int, stride: int, vector: int) -> list[Run]:
    """The stretches of elements that chunks cover."""
    if chunks == 1 or stride == vector:
        return [(offset, offset + chunks * vector)]
    return [(first, first + vector) for first in range(offset, offset + chunks * stride, stride)]


def load(p: Pointer, offset: int, limit: int | None, batch: int, stride: int, vector: int, fill: Scalar = 0) -> Tile:
    """``batch`` chunks of ``vector`` elements, ``stride`` elements apart; see the kernel language."""
    chunks = _check("load", p, offset, limit, batch, stride, vector)
    if chunks == 0:
        return p.tile(p.dtype, constant(p.dtype, batch * vector, fill))
    if p.written is not None:
        p.check_written("load", _runs(chunks, offset, stride, vector))
    if chunks == 1 or stride == vector:
        values = p.raw[offset : offset + chunks * vector].copy()
    else:
        values = p.raw[offset:].take(_pattern(chunks, stride, vector))
    if chunks < batch:
        whole = constant(p.dtype, batch * vector, fill)
        whole[: chunks * vector] = values
        values = whole
    return p.tile(p.dtype, values)


def store(
    p: Pointer, offset: int, limit: int | None, tile: Tile | Scalar, batch: int, stride: int, vector: int
) -> None:
    """The reverse of `load`; a number or a tile of one element is spread."""
    values = _stored_values("store", p, tile, batch * vector)
    chunks = _check("store", p, offset, limit, batch, stride, vector)
    if chunks:
        p.write("store", _runs(chunks, offset, stride, vector), values)


def _stored_values(what: str, p: Pointer, tile: Tile | Scalar, n: int) -> Array:
    """The n elements to write: a tile's, or a number or one-element tile spread."""
    if not isinstance(tile, Tile):
        return constant(p.dtype, n, tile)
    if tile.dtype is not p.dtype:
        raise TileMismatch(
            f"{what} of {tile.dtype} into {p.name}", expected=f"a {p.dtype} tile", hint="cast(tile, dtype) first"
        )
    if len(tile.values) == n:
        return tile.values
    if len(tile.values) != 1:
        raise TileMismatch(f"{what} of a tile of {tile.n} elements to {n} places", expected=f"1 or {n} elements")
    return np.repeat(tile.values, n)


def _active(
    what: str, p: Pointer, index: Tile | int, mask: Tile | bool | None, values: object = None
) -> tuple[int, Array | None, Array]:
    """Size of the access, its mask (None: all elements) and the checked offsets of the active elements."""
    if isinstance(index, Tile) and (index.dtype.kind != "int" or index.dtype.bits < 32):
        raise TileMismatch(f"{what} with an index of {index.dtype}", expected="an int, or an int32 or int64 tile")
    if isinstance(mask, Tile) and mask.dtype.kind != "bool":
        raise TileMismatch(f"{what} with a mask of {mask.dtype}", expected="a boolean tile or None")
    sizes = {operand.n for operand in (index, mask, values) if isinstance(operand, Tile)}
    n = max(sizes, default=1)
    if not sizes <= {1, n}:
        raise TileMismatch(f"{what} of tiles of {sorted(sizes)} elements", expected="equal sizes, or one element")
    where = np.broadcast_to(index.values.astype(np.int64) if isinstance(index, Tile) else np.int64(index), (n,))
    flags = None
    if mask is not None:
        flags = np.broadcast_to(mask.values if isinstance(mask, Tile) else np.bool_(mask), (n,))
        where = where[flags]
    if len(where) and (where.min() < 0 or where.max() >= p.size):
        bad = int(where[(where < 0) | (where >= p.size)][0])
        raise OutOfBounds(
            f"{what} touches element {bad} of {p.name}",
            expected=p.legal,
        )
    return n, flags, where


def gather(p: Pointer, index: Tile | int, mask: Tile | bool | None, fill: Scalar = 0) -> Tile:
    """Elements at arbitrary offsets; ``fill`` where the mask is off."""
    n, flags, where = _active("gather", p, index, mask)
    if p.written is not None:
        p.check_written("gather", _single(where))
    values = p.raw.take(where)
    if flags is not None:
        whole = constant(p.dtype, n, fill)
        whole[flags] = values
        values = whole
    return p.tile(p.dtype, values)


def _single(where: Array) -> list[Run]:
    return [(element, element + 1) for element in where.tolist()]


def scatter(p: Pointer, index: Tile | int, mask: Tile | bool | None, tile: Tile | Scalar) -> None:
    """Write elements to arbitrary offsets, where the mask is on; a number or one-element tile is spread."""
    n, flags, where = _active("scatter", p, index, mask, tile)
    values = _stored_values("scatter", p, tile, n)
    p.write("scatter", _single(where), values if flags is None else values[flags])


_ATOMIC_DTYPES = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def atomic_add(p: Pointer, index: int, value: Tile | Scalar) -> Any:
    """Add to one element and return what it held before; the access itself never races."""
    if p.dtype.name not in _ATOMIC_DTYPES:
        raise TileMismatch(f"atomic_add on {p.dtype}", expected=f"one of {', '.join(_ATOMIC_DTYPES)}")
    if not 0 <= index < p.size:
        raise OutOfBounds(f"atomic_add touches element {index} of {p.name}", expected=p.legal)
    if p.written is not None:
        p.check_written("atomic_add", [(index, index + 1)])
    where = slice(index, index + 1)
    old = p.raw[where].copy()
    p.raw[where] = old + _stored_values("atomic_add", p, value, 1)
    return old[0].item()


def fence_gpu() -> None:
    """Order this thread's writes for the whole GPU; blocks here see each other's writes at once."""
