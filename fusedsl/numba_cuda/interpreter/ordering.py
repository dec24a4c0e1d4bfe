# SPDX-License-Identifier: Apache-2.0
"""What has certainly happened before what, in kernels that synchronise by more than block and warp barriers.

Every access of shared memory is an `Event`; asynchronous copies are `Copy` events. A thread knows events through its
own block's and warp's barriers, and through *knowledge* that others release (by arriving at an mbarrier, a named or a
cluster barrier) and that it acquires by waiting there. Knowledge is a mapping of clocks, merged by maximum:

* ``("thread", block, t)``: accesses of that thread up to this clock of its own;
* ``("block", block)``: accesses of earlier epochs of that block;
* ``("warp", block, w)``, ``("lanes", block, w)``: writes, reads of earlier epochs of that warp;
* ``("cluster", c)``: accesses before that many arrivals at the cluster's barrier;
* ``("mbarrier", serial)``: copies that completed up to that phase;
* ``("landed", serial)``: such copies, by a thread that has heard of it from who waited: over, but perhaps not visible.

An asynchronous remote store makes no access visible but its own. But who sends it has used what its warp read before
and has waited for what it waited for: that is over for who receives it, and may be overwritten (`sent`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from fusedsl.numba_cuda.interpreter.block import Block, Thread

Knowledge: TypeAlias = dict[tuple[Any, ...], int]

WARP = 32
_NOTHING: Knowledge = {}


class Order:
    """A thread's clocks, what it knows, and its asynchronous copies.

    Attributes:
        clock: moves on with every release.
        known: what it has acquired; replaced, never changed.
        fenced: clock of its last `async_fence`.
        arrivals: of its own at the cluster barrier.
        relaxed: which of them order nothing but fenced mbarriers.
        waits: of its own there.
        unfenced: mbarriers it has initialised and not fenced.
        copies: its ``cp.async`` groups, the open one last.
        stores: its bulk-store groups, the open one last.
    """

    __slots__ = ("arrivals", "clock", "copies", "fenced", "known", "relaxed", "stores", "unfenced", "waits")

    def __init__(self) -> None:
        self.clock = 0
        self.known = _NOTHING
        self.fenced = -1
        self.arrivals = 0
        self.relaxed: set[int] = set()
        self.waits = 0
        self.unfenced: list[Any] = []
        self.copies: list[list[tuple[Copy, Callable[[], None]]]] = [[]]
        self.stores: list[list[Copy]] = [[]]


def order_of(thread: Thread) -> Order:
    """The order state of a thread of a kernel that has one."""
    assert thread.order is not None, "the kernel text uses no finer synchronisation"
    return thread.order


class Event:
    """One access by a thread.

    Attributes:
        thread: who.
        what: the function of the kernel language.
        site: its call site.
    """

    __slots__ = ("_arrivals", "_clock", "_epoch", "_is_read", "_warp_epoch", "site", "thread", "what")

    def __init__(self, thread: Thread, what: str, site: int, *, is_read: bool = False) -> None:
        self.thread = thread
        self.what = what
        self.site = site
        order = order_of(thread)
        self._clock = order.clock
        self._arrivals = order.arrivals
        self._epoch = thread.block.epoch
        self._is_read = is_read
        self._warp_epoch = thread.warp.read_epoch if is_read else thread.warp.sync_epoch

    def is_before(self, thread: Thread) -> bool:
        """Whether it is certain to be over and visible for what a thread does now."""
        mine = self.thread
        block = mine.block
        if block is thread.block:
            if mine is thread or self._epoch != block.epoch:
                return True
            if mine.warp is thread.warp:
                now = thread.warp.read_epoch if self._is_read else thread.warp.sync_epoch
                if now != self._warp_epoch:
                    return True
        known = order_of(thread).known
        if not known:
            return False
        number, warp = block.number, mine.linear // WARP
        return (
            known.get(("thread", number, mine.linear), -1) >= self._clock
            or known.get(("block", number), -1) > self._epoch
            or known.get(("lanes" if self._is_read else "warp", number, warp), -1) > self._warp_epoch
            or known.get(("cluster", block.cluster), 0) > self._released()
        )

    def is_over(self, thread: Thread) -> bool:
        """Whether a thread may overwrite what this accessed."""
        return self.is_before(thread)

    def is_before_arrivals(self, thread: Thread) -> bool:
        """`is_before`, or before an arrival at the cluster barrier of whatever kind that the thread has waited for."""
        block = self.thread.block
        return self.is_before(thread) or order_of(thread).known.get(("cluster", block.cluster), 0) > self._arrivals

    def _released(self) -> int:
        """The first arrival at the cluster barrier that orders this."""
        arrival, relaxed = self._arrivals, order_of(self.thread).relaxed
        while arrival in relaxed:
            arrival += 1
        return arrival

    def is_fenced(self) -> bool:
        """Whether its thread has run `async_fence` since."""
        return order_of(self.thread).fenced >= self._clock

    def describe(self) -> str:
        """``thread (3, 0, 0) at line 7: shared_store(...)``, with the block if there are several."""
        scheduler = self.thread.block.scheduler
        line = scheduler.line_at(self.site)
        where = f" of block {self.thread.block.index}" if len(scheduler.blocks) > 1 else ""
        return f"thread {self.thread.index}{where} at line {line}: {scheduler.text.line(line)}"


class Copy(Event):
    """An asynchronous copy: over only for those who know that it has been waited for.

    Attributes:
        after: the wait of the issuing thread that completed it.
        barrier: serial number of the mbarrier it completes on, and `phase` of that, once it has landed.
        wait: what to call for it, for messages.
    """

    __slots__ = ("after", "barrier", "phase", "wait")

    def __init__(self, thread: Thread, what: str, site: int, wait: str, barrier: int | None = None) -> None:
        super().__init__(thread, what, site)
        self.wait = wait
        self.after: Event | None = None
        self.barrier = barrier
        self.phase: int | None = None

    def is_before(self, thread: Thread) -> bool:
        if self.after is not None:
            return self.after.is_before(thread)
        return self.phase is not None and order_of(thread).known.get(("mbarrier", self.barrier), -1) >= self.phase

    def is_over(self, thread: Thread) -> bool:
        landed = order_of(thread).known.get(("landed", self.barrier), -1)
        return self.is_before(thread) or (self.phase is not None and landed >= self.phase)

    def is_fenced(self) -> bool:
        return self.barrier is not None or (self.after is not None and self.after.is_fenced())


def merge(first: Knowledge, second: Knowledge) -> Knowledge:
    """Both; neither is changed."""
    if not second or first is second:
        return first
    merged = dict(first)
    for key, clock in second.items():
        if merged.get(key, -1) < clock:
            merged[key] = clock
    return merged


def release(thread: Thread) -> Knowledge:
    """All that a thread knows, its own accesses so far included."""
    order, block, warp = order_of(thread), thread.block, thread.warp
    number, index = block.number, thread.linear // WARP
    own: Knowledge = {
        ("thread", number, thread.linear): order.clock,
        ("block", number): block.epoch,
        ("warp", number, index): warp.sync_epoch,
        ("lanes", number, index): warp.read_epoch,
    }
    order.clock += 1
    return merge(order.known, own)


def sent(thread: Thread) -> Knowledge:
    """What an asynchronous remote store tells who waits for it: which reads and copies are over."""
    told: Knowledge = {("lanes", thread.block.number, thread.linear // WARP): thread.warp.read_epoch}
    for (kind, *rest), clock in order_of(thread).known.items():
        if kind in ("lanes", "landed", "mbarrier"):
            told = merge(told, {("landed" if kind == "mbarrier" else kind, *rest): clock})
    return told


def acquire(thread: Thread, knowledge: Knowledge) -> None:
    """Let a thread know more."""
    order = order_of(thread)
    order.known = merge(order.known, knowledge)


def join(threads: Iterable[Thread], block: Block | None = None) -> None:
    """Let all threads know what any of them knows; after a barrier of a whole block, its own epochs are not needed."""
    threads = list(threads)
    distinct = {id(known): known for known in (order_of(thread).known for thread in threads)}
    if len(distinct) == 1:
        return
    together: Knowledge = {}
    for known in distinct.values():
        together = merge(together, known)
    if block is not None:
        together = {key: clock for key, clock in together.items() if key[0] in _SHARED_KEYS or key[1] != block.number}
    for thread in threads:
        order_of(thread).known = together


_SHARED_KEYS = ("cluster", "landed", "mbarrier")
