# SPDX-License-Identifier: Apache-2.0
"""Threads as greenlets, blocks, and the meetings (barriers, warp collectives) at which threads wait for each other.

A scheduler keeps one queue of runnable threads over all live blocks; usually one block is live at a time, a cluster's
blocks or a cooperative grid's are live together. A thread that reaches a meeting parks; the last one to come makes the
others runnable again. When nobody can run and somebody is parked, the launch is deadlocked.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from types import CodeType
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from fusedsl.numba_cuda.interpreter.errors import Index3, KernelCrash, KernelFault
from fusedsl.numba_cuda.interpreter.ordering import Event, Order
from fusedsl.numba_cuda.interpreter.reports import describe_deadlock, describe_visit
from fusedsl.numba_cuda.interpreter.text import KernelText, line_at
from fusedsl.numba_cuda.kernel import Geometry

WARP = 32

# A stamp packs who wrote a global element and when: block number, block-wide barriers passed, thread of the block.
_THREAD_BITS = 11
_EPOCH_BITS = 24


class Meeting:
    """A place where ``size`` threads wait for each other; all of them must come from one call site.

    Attributes:
        values: what each participant brought, by its place.
        result: what the last participant made of ``values``.
    """

    __slots__ = ("count", "result", "site", "size", "values", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        self.site = -1
        self.waiting: list[Thread] = []
        self.values: list[Any] = [None] * size
        self.result: Any = None


class Warp:
    """The lanes that share collectives, and two clocks for the race checks.

    ``sync_epoch`` counts warp barriers: they order every access before with every access after. ``read_epoch`` counts
    shuffles too: what a lane read before a shuffle, it has read, but its writes need not be visible after one.
    """

    __slots__ = ("meeting", "read_epoch", "size", "sync_epoch")

    def __init__(self, size: int) -> None:
        self.size = size
        self.meeting = Meeting(size)
        self.sync_epoch = 0
        self.read_epoch = 0


class Thread:
    """One thread of a block and everything the intrinsics ask of it.

    Attributes:
        order: its clocks and knowledge, in kernels that synchronise by more than barriers of blocks and warps.
        wait_name: what it waits for; written into a deadlock report as it is then.
    """

    __slots__ = ("block", "index", "lane", "linear", "order", "wait_name", "warp", "worker")

    def __init__(self, block: Block, index: Index3, linear: int, warp: Warp) -> None:
        self.block = block
        self.index = index
        self.linear = linear
        self.lane = linear % WARP
        self.warp = warp
        self.order = Order() if block.scheduler.tracked else None
        self.wait_name: object = ""
        self.worker: Worker | None = None

    def arrive(self, meeting: Meeting, name: str, site: int) -> bool:
        """Come to a meeting: the last one gets True at once and must `release`, the others get False after that."""
        if meeting.count == 0:
            meeting.site = site
        elif meeting.site != site:
            self.park(name)  # the others wait elsewhere in the text: nobody will come, and the deadlock report says so
        meeting.count += 1
        if meeting.count == meeting.size:
            return True
        meeting.waiting.append(self)
        self.park(name)
        return False

    def release(self, meeting: Meeting) -> None:
        """Let the participants of a complete meeting go on."""
        meeting.count = 0
        self.block.scheduler.ready.extend(meeting.waiting)
        meeting.waiting = []

    def park(self, name: object) -> None:
        """Let others run until somebody puts this thread back into the queue."""
        self.wait_name = name
        self.block.scheduler.hub.switch()
        self.wait_name = ""

    @property
    def stamp(self) -> int:
        """Who and when, for a write to global memory."""
        block = self.block
        return (block.number << _EPOCH_BITS | block.epoch) << _THREAD_BITS | self.linear

    def unordered(self, stamp: int) -> bool:
        """For a write stamp of this launch: another thread's, with no barrier between that write and this moment?"""
        block = self.block
        when = stamp >> _THREAD_BITS
        if when >> _EPOCH_BITS != block.number:
            return True
        return when & ((1 << _EPOCH_BITS) - 1) == block.epoch and stamp & ((1 << _THREAD_BITS) - 1) != self.linear

    def may_see(self, stamp: int) -> bool:
        """Whether an unordered write may be visible: in the warp by a warp barrier, of another block by an atomic."""
        if self.order is not None and self.order.known:
            return True  # by an mbarrier, a named or a cluster barrier
        if stamp >> (_EPOCH_BITS + _THREAD_BITS) != self.block.number:
            return self.block.has_synchronised
        return (stamp & ((1 << _THREAD_BITS) - 1)) // WARP == self.linear // WARP and self.warp.sync_epoch > 0

    def describe_stamp(self, stamp: int) -> str:
        """The thread of a write stamp in words."""
        linear = stamp & ((1 << _THREAD_BITS) - 1)
        number = stamp >> (_EPOCH_BITS + _THREAD_BITS)
        scheduler = self.block.scheduler
        return (
            f"thread {scheduler.unravel(linear, scheduler.shape)} of block {scheduler.unravel(number, scheduler.grid)}"
        )


class Block:
    """A live block: its threads, its barrier and its shared arrays.

    Attributes:
        epoch: block-wide barriers passed.
        has_synchronised: one of its threads has done an atomic operation on global memory.
        shared: shared arrays by call site; the dynamic part at -1.
        shared_bytes: what they take.
        cluster: number of its cluster.
        named: its named barriers by id.
    """

    def __init__(self, scheduler: Scheduler, number: int) -> None:
        self.scheduler = scheduler
        self.number = number
        self.index = scheduler.unravel(number, scheduler.grid)
        self.epoch = 0
        self.has_synchronised = False
        size = scheduler.threads
        self.barrier = Meeting(size)
        self.warps = [Warp(min(WARP, size - start)) for start in range(0, size, WARP)]
        self.shared: dict[int, Any] = {}
        self.shared_bytes = 0
        self.cluster = number // scheduler.geometry.cluster
        self.named: dict[int, Any] = {}
        self.threads = [
            Thread(self, index, linear, self.warps[linear // WARP]) for linear, index in enumerate(scheduler.indices)
        ]


class Abandoned(BaseException):
    """Thrown into parked threads of a launch that failed, so that their greenlets can be used again."""


class Worker(greenlet):
    """A greenlet that runs one thread after another; making one costs more than running a small kernel's thread."""

    thread: Thread

    def run(self) -> None:
        while True:
            thread = self.thread
            scheduler = thread.block.scheduler
            try:
                scheduler.body()
            except Abandoned:
                pass
            except Exception as error:
                scheduler.failure = (thread, error)
            else:
                scheduler.running -= 1
            scheduler.idle.append(self)
            thread.worker = None
            scheduler.hub.switch()


_pools = threading.local()


def current_thread() -> Thread:
    """The kernel thread that is running; only kernel text may ask."""
    worker: Any = getcurrent()
    thread: Thread = worker.thread
    return thread


def call_site(depth: int = 1) -> int:
    """A number for the place in the kernel text that called the caller's caller (at ``depth`` 1)."""
    return sys._getframe(depth + 1).f_lasti


def literal_argument(position: int, keyword: str, depth: int = 1) -> bool:
    """Whether an argument of the kernel-text call that is running is a literal or a module-level constant there."""
    frame = sys._getframe(depth + 1)
    text = current_thread().block.scheduler.text
    return text.literal_argument(frame.f_lineno, position, keyword)


class Scheduler:
    """Runs the threads of a launch.

    Attributes:
        grid: blocks in x, y, z.
        shape: threads a block in x, y, z.
        body: the kernel with its arguments bound.
        ready: threads that can run, in order.
        running: threads of the live blocks that have not returned.
        geometry: the launch.
        dynamic_smem_bytes: size of each block's dynamic shared array.
        tracked: the kernel text uses what needs `ordering`.
        blocks: the live blocks by number.
        landing: what asynchronous copies still have to do; done when no thread can run, so as late as can be.
        pointers: the kernel's pointer arguments.
        cluster_barriers: barriers of the live clusters.
        grid_meeting: where all threads of a cooperative launch meet.
        visits: accesses to the shared memory of a block that must be over before it ends: other blocks', and copies.
    """

    def __init__(
        self,
        text: KernelText,
        code: CodeType,
        body: Callable[[], object],
        geometry: Geometry,
        context: Context,
    ) -> None:
        self.text = text
        self.code = code
        self.body = body
        self.geometry = geometry
        self.grid = geometry.grid
        self.shape = shape = geometry.block
        self.threads = shape[0] * shape[1] * shape[2]
        self.indices = [(x, y, z) for z in range(shape[2]) for y in range(shape[1]) for x in range(shape[0])]
        self.dynamic_smem_bytes = geometry.dynamic_smem_bytes
        self.tracked = text.is_asynchronous
        self.blocks: dict[int, Block] = {}
        self.landing: deque[Callable[[], None]] = deque()
        self.visits: list[tuple[Block, Event]] = []
        self.pointers: list[Any] = []
        self.cluster_barriers: dict[int, Any] = {}
        self.grid_meeting = Meeting(0)
        self.context = context
        self.ready: deque[Thread] = deque()
        self.running = 0
        self.failure: tuple[Thread, Exception] | None = None
        self.hub = getcurrent()
        if not hasattr(_pools, "idle"):
            _pools.idle = []
        self.idle: list[Worker] = _pools.idle

    @staticmethod
    def unravel(number: int, extents: Index3) -> Index3:
        """x, y, z of a number that counts x fastest."""
        x, y, _ = extents
        return (number % x, number // x % y, number // (x * y))

    def line_at(self, site: int) -> int:
        """The kernel line of a call site."""
        return line_at(self.code, site)

    def run(self, numbers: Iterable[int], thread_order: Callable[[list[Thread]], list[Thread]]) -> None:
        """Run the blocks ``numbers`` together until all their threads have returned.

        Raises:
            KernelFault: what went wrong, with its place.
        """
        blocks = [Block(self, number) for number in numbers]
        everyone = thread_order([thread for block in blocks for thread in block.threads])
        self.blocks = {block.number: block for block in blocks}
        self.visits.clear()
        self.cluster_barriers.clear()
        self.grid_meeting = Meeting(len(blocks) * self.threads)
        self.ready.extend(everyone)
        self.running = len(everyone)
        ready, idle, landing = self.ready, self.idle, self.landing
        while ready or landing:
            if not ready:
                landing.popleft()()
                continue
            thread = ready.popleft()
            worker = thread.worker
            if worker is None:
                worker = idle.pop() if idle else self.new_worker()
                worker.thread = thread
                thread.worker = worker
            worker.switch()
            if self.failure is not None:
                thread, error = self.failure
                fault = self.locate(thread, error)
                self.abandon(everyone)
                raise fault
        if self.running:
            fault = describe_deadlock(self, blocks)
            self.abandon(everyone)
            raise fault
        for block, event in self.visits:
            if not any(event.is_before(thread) for thread in block.threads):
                raise describe_visit(self, block, event)

    def new_worker(self) -> Worker:
        """A greenlet whose NumPy is as quiet as a GPU."""
        worker = Worker()
        worker.gr_context = self.context
        return worker

    def abandon(self, threads: Iterable[Thread]) -> None:
        """Unwind the parked threads of a failed launch."""
        self.ready.clear()
        self.landing.clear()
        for thread in threads:
            if thread.worker is not None:
                thread.worker.throw(Abandoned)

    def locate(self, thread: Thread, error: Exception) -> KernelFault:
        """The fault to raise for an exception that left the kernel in ``thread``."""
        if not isinstance(error, KernelFault):
            crash = KernelCrash(f"the kernel raised {type(error).__name__}: {error}")
            crash.__cause__ = error
            crash.__traceback__ = error.__traceback__
            error = crash
        span, origin = self.text.find(error.__traceback__)
        error.locate(span, thread.index, thread.block.index, origin)
        return error.with_traceback(None)


def quiet_context() -> Context:
    """A context for greenlets in which NumPy computes infinities and NaN without warnings, as a GPU does."""
    context = Context()
    context.run(np.seterr, all="ignore")
    return context
