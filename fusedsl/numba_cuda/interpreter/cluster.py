# SPDX-License-Identifier: Apache-2.0
"""Blocks of a cluster on the CPU: its barrier and the shared memory of the other blocks; and barriers of the whole grid
and of some warps."""

from __future__ import annotations

import attrs

from fusedsl.numba_cuda.interpreter import tracked
from fusedsl.numba_cuda.interpreter.async_copy import send
from fusedsl.numba_cuda.interpreter.block import Block, Thread, call_site, current_thread
from fusedsl.numba_cuda.interpreter.errors import BarrierMisuse, InvalidOperand, OutOfBounds, RemoteAccess
from fusedsl.numba_cuda.interpreter.mbarrier import MBarriers
from fusedsl.numba_cuda.interpreter.ordering import Event, Knowledge, acquire, merge, order_of, release, sent
from fusedsl.numba_cuda.interpreter.pointer import Pointer
from fusedsl.numba_cuda.interpreter.shared import SharedArray, locate, stored_values
from fusedsl.numba_cuda.interpreter.tile import Scalar, Tile


def cluster_rank() -> int:
    """Index of the block in its cluster."""
    block = current_thread().block
    return block.number % block.scheduler.geometry.cluster


def cluster_size() -> int:
    """Blocks of the cluster."""
    return current_thread().block.scheduler.geometry.cluster


@attrs.define
class ClusterBarrier:
    """The barrier of one cluster.

    Attributes:
        size: threads of the cluster.
        generation: times it has completed.
        arrived: threads that have arrived since.
        gathered: what they know.
        published: what those knew who arrived at earlier generations.
        waiting: parked threads.
    """

    size: int
    generation: int = 0
    arrived: int = 0
    gathered: Knowledge = attrs.field(factory=dict)
    published: Knowledge = attrs.field(factory=dict)
    waiting: list[Thread] = attrs.field(factory=list)

    def __str__(self) -> str:
        return f"cluster_wait: {self.arrived} of the cluster's {self.size} threads have arrived"


def _barrier_of(block: Block) -> ClusterBarrier:
    scheduler = block.scheduler
    barrier = scheduler.cluster_barriers.get(block.cluster)
    if barrier is None:
        barrier = ClusterBarrier(scheduler.threads * scheduler.geometry.cluster)
        scheduler.cluster_barriers[block.cluster] = barrier
    assert isinstance(barrier, ClusterBarrier)
    return barrier


def cluster_arrive() -> None:
    """First half of the cluster barrier."""
    barrier = _next_arrival("cluster_arrive")
    barrier.gathered = merge(barrier.gathered, order_of(current_thread()).known)
    _count_arrival(barrier)


def cluster_arrive_relaxed() -> None:
    """First half of the cluster barrier, ordering only fenced mbarriers."""
    barrier = _next_arrival("cluster_arrive_relaxed")
    order = order_of(current_thread())
    order.relaxed.add(order.arrivals - 1)
    _count_arrival(barrier)


def _next_arrival(what: str) -> ClusterBarrier:
    thread = current_thread()
    order = order_of(thread)
    if order.arrivals != order.waits:
        raise BarrierMisuse(f"{what} twice", expected="cluster_wait in between")
    order.arrivals += 1
    return _barrier_of(thread.block)


def _count_arrival(barrier: ClusterBarrier) -> None:
    """One thread has arrived; the last one lets all go on."""
    block = current_thread().block
    barrier.arrived += 1
    if barrier.arrived < barrier.size:
        return
    barrier.generation += 1
    barrier.arrived = 0
    barrier.published = merge(barrier.gathered, {("cluster", block.cluster): barrier.generation})
    barrier.gathered = {}
    block.scheduler.ready.extend(barrier.waiting)
    barrier.waiting = []


def cluster_wait() -> None:
    """Second half of the cluster barrier: wait until all threads of the cluster have arrived."""
    thread = current_thread()
    order = order_of(thread)
    if order.arrivals == order.waits:
        raise BarrierMisuse("cluster_wait before cluster_arrive", expected="cluster_arrive, then cluster_wait")
    barrier = _barrier_of(thread.block)
    order.waits += 1
    if barrier.generation < order.waits:
        barrier.waiting.append(thread)
        thread.park(barrier)
    acquire(thread, barrier.published)


def _peer(what: str, rank: int) -> Block:
    """A block of the cluster that certainly runs."""
    thread = current_thread()
    block, scheduler = thread.block, thread.block.scheduler
    size = scheduler.geometry.cluster
    if not 0 <= rank < size:
        raise OutOfBounds(f"{what} to block {rank} of the cluster", expected=f"ranks 0 to {size - 1}")
    peer = scheduler.blocks[block.number - block.number % size + rank]
    if peer is block:
        return peer
    if ("cluster", block.cluster) not in order_of(thread).known:
        raise RemoteAccess(
            f"{what} touches the shared memory of block {peer.index}, which may not have started",
            hint="cluster_arrive() and cluster_wait() before the first access",
        )
    if all(other.worker is None for other in peer.threads):
        raise RemoteAccess(
            f"{what} touches the shared memory of block {peer.index}, which has ended",
            hint="cluster_arrive() and cluster_wait() after the last access, in every block",
        )
    return peer


def _note_visit(target: SharedArray, event: Event) -> None:
    if target.block is not event.thread.block:
        target.block.scheduler.visits.append((target.block, event))


def remote_store(s: SharedArray, index: int, tile: Tile | Scalar, rank: int) -> None:
    """`shared_store` into the same array of another block of the cluster."""
    values = stored_values("remote_store", s, tile)
    target = s.of(_peer("remote_store", rank))
    thread = current_thread()
    event = Event(thread, "remote_store", call_site())
    tracked.claim("remote_store", target, locate("remote_store", target, index, len(values)), thread, event)
    target.raw[index : index + len(values)] = values
    _note_visit(target, event)


def remote_load(s: SharedArray, index: int, n: int, rank: int) -> Tile:
    """`shared_load` from the same array of another block of the cluster."""
    target = s.of(_peer("remote_load", rank))
    thread, site = current_thread(), call_site()
    tracked.read("remote_load", target, locate("remote_load", target, index, n), thread, site)
    _note_visit(target, Event(thread, "remote_load", site, is_read=True))
    return s.tile(s.dtype, target.raw[index : index + n].copy())


def remote_store_async(s: SharedArray, index: int, tile: Tile | Scalar, rank: int, m: MBarriers, i: int) -> None:
    """Store into the same array of another block, counting down the bytes that its mbarrier i expects."""
    values = stored_values("remote_store_async", s, tile)
    if s.dtype.itemsize not in (4, 8) or len(values) * s.dtype.itemsize not in (4, 8, 16):
        raise InvalidOperand(
            f"remote_store_async of {len(values)} elements of {s.dtype}",
            expected="1, 2 or 4 elements of 4 bytes, or 1 or 2 of 8",
        )
    peer = _peer("remote_store_async", rank)
    target = s.of(peer)
    units = locate("remote_store_async", target, index, len(values))
    barrier = m.of(peer).usable(i, by_copies=True)
    send("remote_store_async", target, index, units, values, barrier, call_site(), sent(current_thread()))


@attrs.define
class NamedBarrier:
    """A barrier of some threads of a block."""

    id: int
    size: int
    gathered: Knowledge = attrs.field(factory=dict)
    published: Knowledge = attrs.field(factory=dict)
    waiting: list[Thread] = attrs.field(factory=list)

    def __str__(self) -> str:
        return f"named_barrier({self.id}, {self.size}): {len(self.waiting)} of {self.size} threads have arrived"


def named_barrier(id: int, threads: int) -> None:
    """Wait for ``threads`` threads of the block at barrier ``id``."""
    thread = current_thread()
    block = thread.block
    if not 1 <= id <= 15 or threads % 32 or not 32 <= threads <= block.scheduler.threads:
        raise InvalidOperand(
            f"named_barrier({id}, {threads})", expected="an id of 1 to 15, and whole warps of the block"
        )
    barrier = block.named.setdefault(id, NamedBarrier(id, threads))
    if barrier.size != threads:
        raise BarrierMisuse(f"named_barrier({id}, {threads}) while others wait for {barrier.size} threads there")
    barrier.gathered = merge(barrier.gathered, release(thread))
    if len(barrier.waiting) + 1 < threads:
        barrier.waiting.append(thread)
        thread.park(barrier)
    else:
        del block.named[id]
        barrier.published = barrier.gathered
        block.scheduler.ready.extend(barrier.waiting)
    acquire(thread, barrier.published)


def grid_barrier(p: Pointer, index: int) -> None:
    """Wait for all threads of the grid."""
    thread = current_thread()
    scheduler = thread.block.scheduler
    if not scheduler.geometry.cooperative:
        raise BarrierMisuse("grid_barrier in a launch that is not cooperative", expected="Geometry(cooperative=True)")
    if p.dtype.name != "int32" or not 0 <= index < p.size:
        raise OutOfBounds(f"grid_barrier on element {index} of {p.name} ({p.dtype})", expected="an int32 element")
    if p.is_watched:
        p.check_read("grid_barrier", [(index, index + 1)])
    if p.raw[index] & 0xFFFF:
        raise BarrierMisuse(f"the counter of grid_barrier holds {p.raw[index]}", expected="0 in its low 16 bits")
    if not thread.arrive(scheduler.grid_meeting, "grid_barrier", call_site()):
        return
    for block in scheduler.blocks.values():
        block.epoch += 1
    for pointer in scheduler.pointers:
        pointer.writers = None
    thread.release(scheduler.grid_meeting)
