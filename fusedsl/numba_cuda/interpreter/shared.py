# SPDX-License-Identifier: Apache-2.0
"""Shared memory: poisoned arrays that watch who touches which element, and the barriers that order the touches."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.interpreter import tracked
from fusedsl.numba_cuda.interpreter.block import WARP, Block, Thread, call_site, current_thread
from fusedsl.numba_cuda.interpreter.errors import (
    InvalidOperand,
    MisalignedAccess,
    OutOfBounds,
    SharedRace,
    TileMismatch,
    UninitializedRead,
)
from fusedsl.numba_cuda.interpreter.ordering import join
from fusedsl.numba_cuda.interpreter.storage import access_bytes, constant, element_type
from fusedsl.numba_cuda.interpreter.tile import Array, Scalar, Tile, tile_class

#: An access: block barriers passed, warp epoch (of warp barriers for writes, of collectives for reads), thread (-2 - w
#: for several lanes of warp w, -1 for threads of several warps), call site.
Access = tuple[int, int, int, int]

_SEVERAL_WARPS = -1

_STATIC_LIMIT_BYTES = 48 * 1024
_BLOCK_LIMIT_BYTES = 227 * 1024


class Watch:
    """Who wrote and who read each unit (an element, or a byte of dynamic shared memory) since it was last ordered: an
    `Access`, or what `tracked` keeps."""

    __slots__ = ("reads", "writes")

    def __init__(self, units: int) -> None:
        self.writes: list[Any] = [None] * units
        self.reads: list[Any] = [None] * units


class SharedArray:
    """A view of shared memory.

    Attributes:
        block: whose.
        site: call site of a static array, -1 for a view of the dynamic part.
        dtype: element type.
        raw: the elements as they lie in memory.
        unit: watched units an element.
        start: watched units before the first.
    """

    __slots__ = ("block", "dtype", "label", "raw", "site", "start", "tile", "unit", "watch")

    def __init__(
        self, block: Block, site: int, label: str, dtype: DType, raw: Array, watch: Watch, unit: int, start: int = 0
    ) -> None:
        self.block = block
        self.site = site
        self.label = label
        self.dtype = dtype
        self.raw = raw
        self.watch = watch
        self.unit = unit
        self.start = start
        self.tile = tile_class(dtype)

    def of(self, block: Block) -> SharedArray:
        """The same array of another block."""
        if block is self.block:
            return self
        if self.site == _DYNAMIC:
            return _view(block, self.dtype, self.start)
        return _static(block, self.site, self.dtype, len(self.raw))


def reserve(block: Block, label: str, nbytes: int) -> None:
    """Count bytes of shared memory against the limits of a block."""
    dynamic = block.scheduler.dynamic_smem_bytes
    limit = min(_STATIC_LIMIT_BYTES + dynamic, _BLOCK_LIMIT_BYTES)
    block.shared_bytes += nbytes
    if block.shared_bytes > limit:
        raise InvalidOperand(
            f"{label} brings the block to {block.shared_bytes} bytes of shared memory", expected=f"at most {limit}"
        )


def shared(dtype: DType, n: int) -> SharedArray:
    """A static shared array of n elements, one for each place in the text that calls this."""
    return _static(current_thread().block, call_site(), dtype, n)


def _static(block: Block, site: int, dtype: DType, n: int) -> SharedArray:
    array = block.shared.get(site)
    if array is None:
        label = f"shared({dtype}, {n})"
        reserve(block, label, n * dtype.itemsize)
        array = SharedArray(block, site, label, dtype, np.zeros(n, element_type(dtype)), Watch(n), 1)
        block.shared[site] = array
    assert isinstance(array, SharedArray)
    return array


_DYNAMIC = -1


def dynamic_shared(dtype: DType, byte_offset: int = 0) -> SharedArray:
    """The dynamic part of shared memory from ``byte_offset`` on as an array; arrays of other dtypes view the same
    bytes."""
    if byte_offset < 0 or byte_offset % 16:
        raise InvalidOperand(f"dynamic_shared from byte {byte_offset} on", expected="a multiple of 16")
    return _view(current_thread().block, dtype, byte_offset)


def _view(block: Block, dtype: DType, start: int) -> SharedArray:
    label = f"dynamic_shared({dtype}, {start})" if start else f"dynamic_shared({dtype})"
    size = block.scheduler.dynamic_smem_bytes
    if _DYNAMIC not in block.shared:
        reserve(block, label, size)
        block.shared[_DYNAMIC] = (np.zeros(size, np.uint8), Watch(size))
    data, watch = block.shared[_DYNAMIC]
    n = max(size - start, 0) // dtype.itemsize
    raw = data[start : start + n * dtype.itemsize].view(element_type(dtype))
    return SharedArray(block, _DYNAMIC, label, dtype, raw, watch, dtype.itemsize, start)


def locate(what: str, s: SharedArray, index: int, n: int) -> tuple[int, int]:
    """First and last unit of an access, after checking bounds and alignment."""
    if index < 0 or index + n > len(s.raw):
        touched = f"element {index}" if n == 1 else f"elements {index} to {index + n - 1}"
        raise OutOfBounds(f"{what} touches {touched} of {s.label}", expected=f"indices 0 to {len(s.raw) - 1}")
    if n > 1:
        itemsize = s.dtype.itemsize
        nbytes = access_bytes(n * itemsize)
        if index * itemsize % nbytes:
            raise MisalignedAccess(
                f"{what} by {nbytes} bytes at elements {index} to {index + n - 1} of {s.label}: "
                f"the offset is {index * itemsize % nbytes} bytes past a multiple of {nbytes}",
                expected=f"an index that is a multiple of {nbytes // itemsize}",
            )
    return index * s.unit + s.start, (index + n) * s.unit + s.start


def _describe(thread: Thread, access: Access) -> str:
    scheduler = thread.block.scheduler
    line = scheduler.line_at(access[3])
    if access[2] == _SEVERAL_WARPS:
        who = "threads of several warps"
    elif access[2] < 0:
        who = f"several threads of warp {_warp_of(access)}"
    else:
        who = f"thread {scheduler.unravel(access[2], scheduler.shape)}"
    return f"{who} at line {line}: {scheduler.text.line(line)}"


def _warp_of(access: Access) -> int:
    return access[2] // WARP if access[2] >= 0 else -2 - access[2]


def _ordered(access: Access, thread: Thread, warp_epoch: int) -> bool:
    """Whether an earlier access is certain to be over for ``thread``."""
    if access[0] != thread.block.epoch or access[2] == thread.linear:
        return True
    return access[2] != _SEVERAL_WARPS and access[1] != warp_epoch and _warp_of(access) == thread.linear // WARP


def _race(what: str, verb: str, s: SharedArray, unit: int, thread: Thread, other: Access) -> SharedRace:
    element = (unit - s.start) // s.unit
    return SharedRace(
        f"{what} {verb} element {element} of {s.label} with no barrier after {_describe(thread, other)}",
        hint="barrier() between the two",
    )


def shared_load(s: SharedArray, index: int, n: int) -> Tile:
    """n contiguous elements from ``index`` on."""
    return s.tile(s.dtype, _read("shared_load", s, index, n, call_site()))


def _read(what: str, s: SharedArray, index: int, n: int, site: int) -> Array:
    """Check and note a read; the elements."""
    first, last = locate(what, s, index, n)
    thread = current_thread()
    watch = s.watch
    if thread.order is not None:
        tracked.read(what, s, (first, last), thread, site)
        return s.raw[index : index + n].copy()
    writes = watch.writes
    sync_epoch = thread.warp.sync_epoch
    for write in (writes[first],) if last - first == 1 else set(writes[first:last]):
        if write is None:
            unit = writes.index(None, first, last)
            raise UninitializedRead(
                f"{what} reads element {(unit - s.start) // s.unit} of {s.label}, which nobody has written",
                hint="barrier() before the read, if another thread is to write it",
            )
        if not _ordered(write, thread, sync_epoch):
            unit = writes.index(write, first, last)
            raise _race(what, "reads", s, unit, thread, write)
    access = (thread.block.epoch, thread.warp.read_epoch, thread.linear, site)
    reads = watch.reads
    for unit in range(first, last):
        before = reads[unit]
        reads[unit] = access if before is None or before[0] != access[0] else _merge(before, access)
    return s.raw[index : index + n].copy()


def _merge(before: Access, access: Access) -> Access:
    """One record for two reads of an element since the last barrier.

    A read of an earlier epoch of the same warp is over for every lane of it, so the new one takes its place.
    """
    if before[2] == _SEVERAL_WARPS:
        return before
    warp = access[2] // WARP
    if _warp_of(before) != warp:
        return (access[0], access[1], _SEVERAL_WARPS, access[3])
    if before[1] == access[1] and before[2] != access[2]:
        return (access[0], access[1], -2 - warp, access[3])
    return access


def shared_store(s: SharedArray, index: int, tile: Tile | Scalar) -> None:
    """Write a tile's elements from ``index`` on; a number is one element."""
    _write("shared_store", s, index, stored_values("shared_store", s, tile), call_site())


def stored_values(what: str, s: SharedArray, tile: Tile | Scalar) -> Array:
    """The elements that a store of a tile, or of a number, puts into an array."""
    if not isinstance(tile, Tile):
        return constant(s.dtype, 1, tile)
    if tile.dtype is not s.dtype:
        raise TileMismatch(f"{what} of {tile.dtype} into {s.label}", expected=f"a {s.dtype} tile")
    return tile.values


def _write(what: str, s: SharedArray, index: int, values: Array, site: int) -> None:
    """Check and note a write, and do it."""
    n = len(values)
    first, last = locate(what, s, index, n)
    thread = current_thread()
    watch = s.watch
    if thread.order is not None:
        tracked.write(what, s, (first, last), thread, site)
        s.raw[index : index + n] = values
        return
    warp = thread.warp
    single = last - first == 1
    writes, reads = watch.writes, watch.reads
    for write in (writes[first],) if single else set(writes[first:last]):
        if write is not None and not _ordered(write, thread, warp.sync_epoch):
            raise _race(what, "overwrites", s, writes.index(write, first, last), thread, write)
    for read in (reads[first],) if single else set(reads[first:last]):
        if read is not None and not _ordered(read, thread, warp.read_epoch):
            raise _race(what, "overwrites", s, reads.index(read, first, last), thread, read)
    access = (thread.block.epoch, warp.sync_epoch, thread.linear, site)
    writes[first:last] = [access] * (last - first)
    s.raw[index : index + n] = values


def shared_load_tile(s: SharedArray, index: int, batch: int, stride: int, vector: int) -> Tile:
    """``batch`` chunks of ``vector`` elements, ``stride`` elements apart."""
    site = call_site()
    chunks = [_read("shared_load_tile", s, index + b * stride, vector, site) for b in range(batch)]
    return s.tile(s.dtype, np.concatenate(chunks))


def shared_store_tile(s: SharedArray, index: int, tile: Tile | Scalar, batch: int, stride: int, vector: int) -> None:
    """The reverse of `shared_load_tile`; a number or a tile of one element is spread."""
    site = call_site()
    values = stored_values("shared_store_tile", s, tile)
    if len(values) not in (1, batch * vector):
        raise TileMismatch(
            f"shared_store_tile of {len(values)} elements to {batch * vector} places",
            expected=f"1 or {batch * vector} elements",
        )
    rows = np.broadcast_to(values, (batch * vector,)).reshape(batch, vector)
    for b in range(batch):
        _write("shared_store_tile", s, index + b * stride, rows[b], site)


def barrier() -> None:
    """Wait for all threads of the block."""
    thread = current_thread()
    block = thread.block
    if thread.arrive(block.barrier, "barrier", call_site()):
        block.epoch += 1
        if thread.order is not None:
            join(block.threads, block)
        thread.release(block.barrier)


def warp_barrier() -> None:
    """Wait for all lanes of the warp; orders their memory accesses."""
    thread = current_thread()
    warp = thread.warp
    if thread.arrive(warp.meeting, "warp_barrier", call_site()):
        warp.sync_epoch += 1
        warp.read_epoch += 1
        if thread.order is not None:
            join(other for other in thread.block.threads if other.warp is warp)
        thread.release(warp.meeting)
