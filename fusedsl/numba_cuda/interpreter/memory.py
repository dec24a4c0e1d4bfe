# SPDX-License-Identifier: Apache-2.0
"""Accesses to global memory: vectors, gathers, scatters, atomics, all checked against the tensor's span."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from fusedsl.numba_cuda.interpreter.block import current_thread, literal_argument
from fusedsl.numba_cuda.interpreter.errors import (
    InvalidOperand,
    MisalignedAccess,
    OutOfBounds,
    TileMismatch,
)
from fusedsl.numba_cuda.interpreter.pointer import Pointer, Run
from fusedsl.numba_cuda.interpreter.storage import access_bytes, constant
from fusedsl.numba_cuda.interpreter.tile import Array, Scalar, Tile


@lru_cache(maxsize=4096)
def _pattern(chunks: int, batch_stride: int, vector: int, element_stride: int) -> Array:
    """Offsets of the elements of some chunks from their first, int64[chunks * vector]."""
    return (np.arange(chunks)[:, None] * batch_stride + np.arange(vector) * element_stride).reshape(-1)


@attrs.frozen
class _Chunks:
    """The chunks that an access touches: element k of chunk b is ``offset + b*batch_stride + k*element_stride``."""

    offset: int
    count: int
    batch_stride: int
    vector: int
    element_stride: int

    @property
    def contiguous(self) -> bool:
        return self.element_stride == 1 and (self.count == 1 or self.batch_stride == self.vector)

    def runs(self) -> list[Run]:
        """The stretches of elements they cover, in the order of the tile."""
        offset, vector = self.offset, self.vector
        if self.contiguous:
            return [(offset, offset + self.count * vector)]
        starts = [offset + b * self.batch_stride for b in range(self.count)]
        if self.element_stride == 1:
            return [(first, first + vector) for first in starts]
        places = [first + k * self.element_stride for first in starts for k in range(vector)]
        return [(place, place + 1) for place in places]

    def __str__(self) -> str:
        last = self.offset + (self.vector - 1) * self.element_stride
        text = f"element {self.offset}" if self.vector == 1 else f"elements {self.offset} to {last}"
        if self.element_stride != 1 and self.vector > 1:
            text += f" by {self.element_stride}"
        if self.count == 1:
            return text
        more = f"{self.count - 1} more chunk{'s' if self.count > 2 else ''}"
        return f"{text} and {more}, {self.batch_stride} elements apart,"


def _select(
    what: str,
    p: Pointer,
    offset: int,
    limit: int | None,
    batch: int,
    step: int,
    batch_stride: int,
    vector: int,
    element_stride: int,
) -> tuple[int, bool]:
    """How many chunks an access touches and whether they are one stretch of memory, after checking their bounds."""
    chunks = batch
    if limit is not None and (batch - 1) * step >= limit:
        chunks = 0 if limit <= 0 else -(-limit // step)
        if chunks == 0:
            return 0, True
    reach = (chunks - 1) * batch_stride, (vector - 1) * element_stride
    low, high = offset, offset + reach[0] + reach[1]
    if batch_stride < 0 or element_stride < 0:
        low, high = offset + min(reach[0], 0) + min(reach[1], 0), offset + max(reach[0], 0) + max(reach[1], 0)
    if low < 0 or high >= p.size:
        touched = _Chunks(offset, chunks, batch_stride, vector, element_stride)
        raise OutOfBounds(f"{what} touches {touched} of {p.name}", expected=p.legal)
    return chunks, element_stride == 1 and (chunks == 1 or batch_stride == vector)


def check_alignment(what: str, p: Pointer, offset: int, chunks: int, stride: int, vector: int) -> None:
    """Fault if chunks that are one access each do not lie at multiples of its size."""
    itemsize = p.dtype.itemsize
    nbytes = access_bytes(vector * itemsize)
    start = (p.address + offset * itemsize) % nbytes
    step = stride * itemsize % nbytes if chunks > 1 else 0
    if start or step:
        raise MisalignedAccess(
            f"{what} by {nbytes} bytes at {_Chunks(offset, chunks, stride, vector, 1)} of {p.name}: "
            f"the address is {start} and the stride {step} bytes past a multiple of {nbytes}",
            expected=f"addresses that are multiples of {nbytes} bytes",
        )


def _load(
    what: str, p: Pointer, chunks: int, batch: int, contiguous: bool, place: tuple[int, int, int, int], fill: Scalar
) -> Tile:
    """Read checked chunks; ``place`` is offset, batch stride, vector, element stride."""
    offset, batch_stride, vector, element_stride = place
    if chunks == 0:
        return p.tile(p.dtype, constant(p.dtype, batch * vector, fill))
    if p.is_watched:
        p.check_read(what, _Chunks(offset, chunks, batch_stride, vector, element_stride).runs())
    if contiguous:
        values = p.raw[offset : offset + chunks * vector].copy()
    elif batch_stride < 0 or element_stride < 0:
        values = p.raw.take(_pattern(chunks, batch_stride, vector, element_stride) + offset)
    else:
        values = p.raw[offset:].take(_pattern(chunks, batch_stride, vector, element_stride))
    if chunks < batch:
        whole = constant(p.dtype, batch * vector, fill)
        whole[: chunks * vector] = values
        values = whole
    return p.tile(p.dtype, values)


def load(p: Pointer, offset: int, limit: int | None, batch: int, stride: int, vector: int, fill: Scalar = 0) -> Tile:
    """``batch`` chunks of ``vector`` elements, ``stride`` elements apart; see the kernel language."""
    chunks, contiguous = _select("load", p, offset, limit, batch, stride, stride, vector, 1)
    if vector > 1 and chunks:
        check_alignment("load", p, offset, chunks, stride, vector)
    return _load("load", p, chunks, batch, contiguous, (offset, stride, vector, 1), fill)


def load_strided(
    p: Pointer,
    offset: int,
    limit: int | None,
    batch: int,
    step: int,
    batch_stride: int,
    vector: int,
    element_stride: int,
    fill: Scalar = 0,
) -> Tile:
    """`load` with strides for chunks and elements; aligned vectors if ``element_stride`` is the literal 1."""
    chunks, contiguous = _select("load_strided", p, offset, limit, batch, step, batch_stride, vector, element_stride)
    if element_stride == 1 and vector > 1 and chunks and literal_argument(7, "element_stride"):
        check_alignment("load_strided", p, offset, chunks, batch_stride, vector)
    return _load("load_strided", p, chunks, batch, contiguous, (offset, batch_stride, vector, element_stride), fill)


def load_across(
    p: Pointer, offset: int, limit: int | None, batch: int, stride: int, vector: int, fill: Scalar = 0
) -> Tile:
    """`load` of chunks that need not be aligned; the aligned accesses that cover them must be within the tensor."""
    nbytes = vector * p.dtype.itemsize
    if nbytes < 4 or (batch > 1 and stride % vector):
        raise InvalidOperand(
            f"load_across of chunks of {nbytes} bytes, {stride} elements apart",
            expected="at least 4 bytes, a multiple of vector apart",
        )
    chunks, contiguous = _select("load_across", p, offset, limit, batch, stride, stride, vector, 1)
    if chunks:
        unit = access_bytes(nbytes) // p.dtype.itemsize
        before = offset % unit
        check_alignment("load_across", p, offset - before, chunks, stride, vector)
        last = offset - before + (chunks - 1) * stride + vector + (unit if before else 0) - 1
        if last >= p.size:
            raise OutOfBounds(f"load_across touches element {last} of {p.name}", expected=p.legal)
    return _load("load_across", p, chunks, batch, contiguous, (offset, stride, vector, 1), fill)


def store(
    p: Pointer, offset: int, limit: int | None, tile: Tile | Scalar, batch: int, stride: int, vector: int
) -> None:
    """The reverse of `load`; a number or a tile of one element is spread."""
    values = _stored_values("store", p, tile, batch * vector)
    chunks, _ = _select("store", p, offset, limit, batch, stride, stride, vector, 1)
    if vector > 1 and chunks:
        check_alignment("store", p, offset, chunks, stride, vector)
    if chunks:
        p.write("store", _Chunks(offset, chunks, stride, vector, 1).runs(), values)


def store_strided(
    p: Pointer,
    offset: int,
    limit: int | None,
    tile: Tile | Scalar,
    batch: int,
    step: int,
    batch_stride: int,
    vector: int,
    element_stride: int,
) -> None:
    """The reverse of `load_strided`."""
    values = _stored_values("store_strided", p, tile, batch * vector)
    chunks, _ = _select("store_strided", p, offset, limit, batch, step, batch_stride, vector, element_stride)
    if element_stride == 1 and vector > 1 and chunks and literal_argument(8, "element_stride"):
        check_alignment("store_strided", p, offset, chunks, batch_stride, vector)
    if chunks:
        p.write("store_strided", _Chunks(offset, chunks, batch_stride, vector, element_stride).runs(), values)


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
    if p.is_watched:
        p.check_read("gather", _single(where))
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
    if p.is_watched:
        p.check_read("atomic_add", [(index, index + 1)])
    current_thread().block.has_synchronised = True
    where = slice(index, index + 1)
    old = p.raw[where].copy()
    p.raw[where] = old + _stored_values("atomic_add", p, value, 1)
    return old[0].item()


def fence_gpu() -> None:
    """Order this thread's writes for the whole GPU; blocks here see each other's writes at once."""
