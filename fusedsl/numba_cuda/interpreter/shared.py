# SPDX-License-Identifier: Apache-2.0
"""Shared memory: poisoned arrays that watch who touches which element, and the barriers that order the touches."""

from __future__ import annotations

import numpy as np

from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.interpreter.block import WARP, Block, Thread, call_site, current_thread
from fusedsl.numba_cuda.interpreter.errors import (
    InvalidOperand,
    MisalignedAccess,
    OutOfBounds,
    SharedRace,
    TileMismatch,
    UninitializedRead,
)
from fusedsl.numba_cuda.interpreter.storage import access_bytes, constant, element_type
from fusedsl.numba_cuda.interpreter.tile import Array, Scalar, Tile, tile_class

#: An access: block barriers passed, warp epoch (of warp barriers for writes, of collectives for reads), thread (-2 - w
#: for several lanes of warp w, -1 for threads of several warps), call site.
Access = tuple[int, int, int, int]

_SEVERAL_WARPS = -1

_STATIC_LIMIT_BYTES = 48 * 1024
_BLOCK_LIMIT_BYTES = 227 * 1024


class Watch:
    """Who wrote and who read each unit (an element, or a byte of dynamic shared memory) since it was last ordered."""

    __slots__ = ("reads", "writes")

    def __init__(self, units: int) -> None:
        self.writes: list[Access | None] = [None] * units
        self.reads: list[Access | None] = [None] * units


class SharedArray:
    """A view of shared memory.

    Attributes:
        dtype: element type.
        raw: the elements as they lie in memory.
        unit: watched units an element.
    """

    __slots__ = ("dtype", "label", "raw", "tile", "unit", "watch")

    def __init__(self, label: str, dtype: DType, raw: Array, watch: Watch, unit: int) -> None:
        self.label = label
        self.dtype = dtype
        self.raw = raw
        self.watch = watch
        self.unit = unit
        self.tile = tile_class(dtype)


def _reserve(block: Block, label: str, nbytes: int, limit: int) -> None:
    block.shared_bytes += nbytes
    if block.shared_bytes > limit:
        raise InvalidOperand(
            f"{label} brings the block to {block.shared_bytes} bytes of shared memory", expected=f"at most {limit}"
        )


def shared(dtype: DType, n: int) -> SharedArray:
    """A static shared array of n elements, one for each place in the text that calls this."""
    block = current_thread().block
    site = call_site()
    array = block.shared.get(site)
    if array is None:
        label = f"shared({dtype}, {n})"
        _reserve(block, label, n * dtype.itemsize, _STATIC_LIMIT_BYTES + block.scheduler.dynamic_smem_bytes)
        array = SharedArray(label, dtype, np.zeros(n, element_type(dtype)), Watch(n), 1)
        block.shared[site] = array
    assert isinstance(array, SharedArray)
    return array


_DYNAMIC = -1


def dynamic_shared(dtype: DType) -> SharedArray:
    """The dynamic part of shared memory as an array; arrays of other dtypes view the same bytes."""
    block = current_thread().block
    size = block.scheduler.dynamic_smem_bytes
    if _DYNAMIC not in block.shared:
        _reserve(block, f"dynamic_shared({dtype})", size, _BLOCK_LIMIT_BYTES)
        block.shared[_DYNAMIC] = (np.zeros(size, np.uint8), Watch(size))
    data, watch = block.shared[_DYNAMIC]
    n = size // dtype.itemsize
    raw = data[: n * dtype.itemsize].view(element_type(dtype))
    return SharedArray(f"dynamic_shared({dtype})", dtype, raw, watch, dtype.itemsize)


def _locate(what: str, s: SharedArray, index: int, n: int) -> tuple[int, int]:
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
    return index * s.unit, (index + n) * s.unit


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
    return SharedRace(
        f"{what} {verb} element {unit // s.unit} of {s.label} with no barrier after {_describe(thread, other)}",
        hint="barrier() between the two",
    )


def shared_load(s: SharedArray, index: int, n: int) -> Tile:
    """n contiguous elements from ``index`` on."""
    first, last = _locate("shared_load", s, index, n)
    thread = current_thread()
    watch = s.watch
    writes = watch.writes
    sync_epoch = thread.warp.sync_epoch
    for write in (writes[first],) if last - first == 1 else set(writes[first:last]):
        if write is None:
            unit = writes.index(None, first, last)
            raise UninitializedRead(
                f"shared_load reads element {unit // s.unit} of {s.label}, which nobody has written",
                hint="barrier() before the read, if another thread is to write it",
            )
        if not _ordered(write, thread, sync_epoch):
            unit = writes.index(write, first, last)
            raise _race("shared_load", "reads", s, unit, thread, write)
    access = (thread.block.epoch, thread.warp.read_epoch, thread.linear, call_site())
    reads = watch.reads
    for unit in range(first, last):
        before = reads[unit]
        reads[unit] = access if before is None or before[0] != access[0] else _merge(before, access)
    return s.tile(s.dtype, s.raw[index : index + n].copy())


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
    values = tile.values if isinstance(tile, Tile) else constant(s.dtype, 1, tile)
    if isinstance(tile, Tile) and tile.dtype is not s.dtype:
        raise TileMismatch(f"shared_store of {tile.dtype} into {s.label}", expected=f"a {s.dtype} tile")
    n = len(values)
    first, last = _locate("shared_store", s, index, n)
    thread = current_thread()
    watch = s.watch
    warp = thread.warp
    single = last - first == 1
    writes, reads = watch.writes, watch.reads
    for write in (writes[first],) if single else set(writes[first:last]):
        if write is not None and not _ordered(write, thread, warp.sync_epoch):
            raise _race("shared_store", "overwrites", s, writes.index(write, first, last), thread, write)
    for read in (reads[first],) if single else set(reads[first:last]):
        if read is not None and not _ordered(read, thread, warp.read_epoch):
            raise _race("shared_store", "overwrites", s, reads.index(read, first, last), thread, read)
    access = (thread.block.epoch, warp.sync_epoch, thread.linear, call_site())
    writes[first:last] = [access] * (last - first)
    s.raw[index : index + n] = values


def barrier() -> None:
    """Wait for all threads of the block."""
    thread = current_thread()
    block = thread.block
    if thread.arrive(block.barrier, "barrier", call_site()):
        block.epoch += 1
        thread.release(block.barrier)


def warp_barrier() -> None:
    """Wait for all lanes of the warp; orders their memory accesses."""
    thread = current_thread()
    warp = thread.warp
    if thread.arrive(warp.meeting, "warp_barrier", call_site()):
        warp.sync_epoch += 1
        warp.read_epoch += 1
        thread.release(warp.meeting)
