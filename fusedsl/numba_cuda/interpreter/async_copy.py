# SPDX-License-Identifier: Apache-2.0
"""Asynchronous copies on the CPU: the source is read when a copy is issued; the data lands when it is waited for
(``cp.async``) or when no thread can run (copies that complete on an mbarrier), and until then nobody may touch it."""

from __future__ import annotations

from functools import partial

import numpy as np

from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.interpreter import tracked
from fusedsl.numba_cuda.interpreter.block import Block, call_site, current_thread
from fusedsl.numba_cuda.interpreter.errors import (
    InvalidOperand,
    MisalignedAccess,
    OutOfBounds,
    SharedRace,
    TileMismatch,
    UninitializedRead,
)
from fusedsl.numba_cuda.interpreter.mbarrier import MBarrier, MBarriers
from fusedsl.numba_cuda.interpreter.memory import check_alignment
from fusedsl.numba_cuda.interpreter.ordering import Copy, Event, Knowledge, merge, order_of
from fusedsl.numba_cuda.interpreter.pointer import Pointer
from fusedsl.numba_cuda.interpreter.shared import SharedArray, locate
from fusedsl.numba_cuda.interpreter.tile import Array

_BULK = 16


def _same_dtype(what: str, s: SharedArray, p: Pointer) -> DType:
    if s.dtype is not p.dtype:
        raise TileMismatch(f"{what} between {s.label} and {p.name} of {p.dtype}", expected="one dtype")
    return s.dtype


def _source(what: str, p: Pointer, offset: int, n: int) -> Array:
    """The n elements a copy reads, after checking them."""
    if offset < 0 or offset + n > p.size:
        touched = f"element {offset}" if n == 1 else f"elements {offset} to {offset + n - 1}"
        raise OutOfBounds(f"{what} touches {touched} of {p.name}", expected=p.legal)
    if p.is_watched:
        p.check_read(what, [(offset, offset + n)])
    return p.raw[offset : offset + n].copy()


def async_copy(
    s: SharedArray, index: int, p: Pointer, offset: int, limit: int | None, batch: int, stride: int, vector: int
) -> None:
    """Begin copying ``batch`` chunks of ``vector`` elements; zeros where ``b*stride >= limit``."""
    _copy("async_copy", s, (index, stride), p, (offset, stride), limit, batch, stride, vector)


def async_copy_strided(
    s: SharedArray,
    index: int,
    stride: int,
    p: Pointer,
    offset: int,
    limit: int | None,
    batch: int,
    step: int,
    batch_stride: int,
    vector: int,
) -> None:
    """The same with a stride for either side; zeros where ``b*step >= limit``."""
    _copy("async_copy_strided", s, (index, stride), p, (offset, batch_stride), limit, batch, step, vector)


def _copy(
    name: str,
    s: SharedArray,
    to: tuple[int, int],
    p: Pointer,
    source: tuple[int, int],
    limit: int | None,
    batch: int,
    step: int,
    vector: int,
) -> None:
    """Copies between two starts, each with a stride."""
    nbytes = vector * _same_dtype(name, s, p).itemsize
    if nbytes < 4 or nbytes & (nbytes - 1):
        raise InvalidOperand(f"{name} of chunks of {nbytes} bytes", expected="a power of two, at least 4")
    thread = current_thread()
    group = order_of(thread).copies[-1]
    copy = Copy(thread, name, call_site(2), "async_commit() and async_wait(n); barrier() for other threads")
    for b in range(batch):
        index, place = to[0] + b * to[1], source[0] + b * source[1]
        units = locate(name, s, index, vector)
        if limit is None or b * step < limit:
            check_alignment(name, p, place, 1, vector, vector)
            values = _source(name, p, place, vector)
        else:
            values = np.zeros(vector, s.raw.dtype)
        tracked.claim(name, s, units, thread, copy)
        group.append((copy, partial(_put, s, index, values)))


def _put(s: SharedArray, index: int, values: Array) -> None:
    s.raw[index : index + len(values)] = values


def async_commit() -> None:
    """Close a group of this thread's copies."""
    order_of(current_thread()).copies.append([])


def async_wait(n: int) -> None:
    """Wait until at most n of this thread's newest groups are pending."""
    thread = current_thread()
    groups = order_of(thread).copies
    site = call_site()
    while len(groups) - 1 > n:
        for copy, land in groups.pop(0):
            land()
            copy.after = Event(thread, copy.what, site)


def _check_bulk(what: str, s: SharedArray, index: int, p: Pointer, offset: int, count: int) -> None:
    size = s.dtype.itemsize
    for name, nbytes in (
        ("size", count * size),
        (f"address in {p.name}", p.address + offset * size),
        (f"offset in {s.label}", index * size),
    ):
        if nbytes % _BULK:
            raise MisalignedAccess(
                f"{what} of elements {offset} to {offset + count - 1} of {p.name}: the {name} is "
                f"{nbytes % _BULK} bytes past a multiple of {_BULK}",
                expected=f"sizes and addresses that are multiples of {_BULK} bytes",
            )
    if count < 1:
        raise InvalidOperand(f"{what} of {count} elements", expected="at least one")


def _locate_bulk(what: str, s: SharedArray, index: int, count: int) -> tracked.Units:
    if index < 0 or index + count > len(s.raw):
        raise OutOfBounds(
            f"{what} touches elements {index} to {index + count - 1} of {s.label}",
            expected=f"indices 0 to {len(s.raw) - 1}",
        )
    return index * s.unit + s.start, (index + count) * s.unit + s.start


def bulk_load(s: SharedArray, index: int, p: Pointer, offset: int, count: int, m: MBarriers, i: int) -> None:
    """Begin copying ``p[offset : offset + count]`` to ``s[index]`` on, completing on mbarrier i."""
    _same_dtype("bulk_load", s, p)
    _check_bulk("bulk_load", s, index, p, offset, count)
    units = _locate_bulk("bulk_load", s, index, count)
    values = _source("bulk_load", p, offset, count)
    send("bulk_load", s, index, units, values, m.usable(i, by_copies=True), call_site())


def send(
    what: str,
    s: SharedArray,
    index: int,
    units: tracked.Units,
    values: Array,
    barrier: MBarrier,
    site: int,
    told: Knowledge | None = None,
) -> None:
    """Begin putting values into an array of the block whose mbarrier counts their bytes.

    ``told``: what who waits there learns besides.
    """
    thread = current_thread()
    copy = Copy(thread, what, site, f"mbarrier_wait on {barrier.name}", barrier.serial)
    tracked.claim(what, s, units, thread, copy)
    thread.block.scheduler.landing.append(partial(_land, copy, s, index, values, barrier, told or {}))
    _visit(s.block, copy)


def _visit(block: Block, event: Event) -> None:
    block.scheduler.visits.append((block, event))


def _land(copy: Copy, s: SharedArray, index: int, values: Array, barrier: MBarrier, told: Knowledge) -> None:
    _put(s, index, values)
    copy.phase = barrier.phase
    barrier.gathered = merge(barrier.gathered, told)
    barrier.land(values.nbytes)


def bulk_store(p: Pointer, offset: int, s: SharedArray, index: int, count: int) -> None:
    """Begin copying ``s[index : index + count]`` to ``p[offset]`` on."""
    _same_dtype("bulk_store", s, p)
    _check_bulk("bulk_store", s, index, p, offset, count)
    first, last = _locate_bulk("bulk_store", s, index, count)
    if offset < 0 or offset + count > p.size:
        raise OutOfBounds(f"bulk_store touches elements {offset} to {offset + count - 1} of {p.name}", expected=p.legal)
    thread, site = current_thread(), call_site()
    for write in set(s.watch.writes[first:last]):
        if write is None:
            unit = s.watch.writes.index(None, first, last)
            raise UninitializedRead(
                f"bulk_store reads element {(unit - s.start) // s.unit} of {s.label}, which nobody has written"
            )
        if write.is_before(thread) and not write.is_fenced():
            raise SharedRace(
                f"bulk_store reads what {write.describe()} wrote, with no async_fence() of that thread in between",
                hint="async_fence() by every thread that wrote, then barrier(), then bulk_store by one thread",
            )
    tracked.read("bulk_store", s, (first, last), thread, site)
    copy = Copy(thread, "bulk_store", site, "bulk_commit() and bulk_wait(n); barrier() for other threads")
    tracked.note_read(s, (first, last), copy)
    p.write("bulk_store", [(offset, offset + count)], s.raw[index : index + count].copy())
    order_of(thread).stores[-1].append(copy)
    _visit(s.block, copy)


def bulk_commit() -> None:
    """Close a group of this thread's bulk stores."""
    order_of(current_thread()).stores.append([])


def bulk_wait(n: int) -> None:
    """Wait until at most n of this thread's newest groups of bulk stores still read shared memory."""
    thread = current_thread()
    groups = order_of(thread).stores
    site = call_site()
    while len(groups) - 1 > n:
        for copy in groups.pop(0):
            copy.after = Event(thread, copy.what, site, is_read=True)


def async_fence() -> None:
    """Make this thread's writes to shared memory visible to bulk copies."""
    order = order_of(current_thread())
    order.fenced = order.clock
    order.clock += 1
