# SPDX-License-Identifier: Apache-2.0
"""mbarriers on the CPU: phases that complete when all arrivals have come and all expected bytes have landed."""

from __future__ import annotations

from itertools import count as counter

import attrs

from fusedsl.numba_cuda.interpreter.block import Block, Thread, call_site, current_thread
from fusedsl.numba_cuda.interpreter.errors import BarrierMisuse, InvalidOperand, OutOfBounds
from fusedsl.numba_cuda.interpreter.ordering import Event, Knowledge, acquire, merge, order_of, release
from fusedsl.numba_cuda.interpreter.shared import reserve

_BYTES = 8
_LIMIT = (1 << 20) - 1
_serials = counter()


@attrs.define(eq=False)
class MBarrier:
    """One mbarrier.

    Attributes:
        name: for messages.
        block: whose.
        serial: its number.
        initialised: when; None before.
        is_fenced: `mbarrier_fence` has run since.
        count: arrivals a phase.
        phase: phases completed.
        arrived: arrivals in this phase.
        expected: bytes expected in this phase.
        landed: bytes landed in this phase.
        gathered: knowledge of this phase's arrivals.
        published: knowledge of all completed phases.
        waiting: threads and the parities they wait for.
    """

    name: str
    block: Block
    serial: int = attrs.field(factory=lambda: next(_serials))
    initialised: Event | None = None
    is_fenced: bool = False
    count: int = 0
    phase: int = 0
    arrived: int = 0
    expected: int = 0
    landed: int = 0
    gathered: Knowledge = attrs.field(factory=dict)
    published: Knowledge = attrs.field(factory=dict)
    waiting: list[tuple[Thread, int]] = attrs.field(factory=list)

    def is_complete(self, parity: int) -> bool:
        """Whether the phase of that parity has completed."""
        return self.phase & 1 != parity

    def arrive(self, knowledge: Knowledge) -> None:
        """Count one arrival, with what the thread knows."""
        if self.arrived == self.count:
            raise BarrierMisuse(
                f"arrival {self.arrived + 1} at {self.name} in phase {self.phase}", expected=f"{self.count} a phase"
            )
        self.arrived += 1
        self.gathered = merge(self.gathered, knowledge)
        self.advance()

    def land(self, nbytes: int) -> None:
        """Count bytes of a copy that has landed."""
        self.landed += nbytes
        self.advance()

    def advance(self) -> None:
        """Complete the phase if nothing is missing, and let those go on who wait for it."""
        if self.arrived < self.count or self.landed != self.expected:
            return
        self.published = merge(merge(self.published, self.gathered), {("mbarrier", self.serial): self.phase})
        self.phase += 1
        self.arrived = self.expected = self.landed = 0
        self.gathered = {}
        for item in [item for item in self.waiting if self.is_complete(item[1])]:
            self.waiting.remove(item)
            self.block.scheduler.ready.append(item[0])

    def __str__(self) -> str:
        """What is missing, for deadlock reports."""
        parts = []
        if self.arrived < self.count:
            parts.append(f"{self.count - self.arrived} of {self.count} arrivals missing")
        if self.landed < self.expected:
            parts.append(f"{self.expected - self.landed} of {self.expected} expected bytes missing")
        if self.landed > self.expected:
            parts.append(f"{self.landed - self.expected} bytes landed beyond the {self.expected} expected")
        return f"mbarrier_wait for phase {self.phase} of {self.name}: {', '.join(parts)}"


class MBarriers:
    """What `mbarriers` gives: an array in the shared memory of a block."""

    def __init__(self, block: Block, site: int, n: int) -> None:
        self.block = block
        self.site = site
        self.label = f"mbarriers({n})"
        reserve(block, self.label, n * _BYTES)
        self.barriers = [MBarrier(f"mbarrier {i} of {self.label} of block {block.index}", block) for i in range(n)]

    def of(self, block: Block) -> MBarriers:
        """The same array of another block."""
        return _array(block, self.site, len(self.barriers))

    def at(self, i: int) -> MBarrier:
        """mbarrier i."""
        if not 0 <= i < len(self.barriers):
            raise OutOfBounds(f"mbarrier {i} of {self.label}", expected=f"indices 0 to {len(self.barriers) - 1}")
        return self.barriers[i]

    def usable(self, i: int, *, by_copies: bool = False) -> MBarrier:
        """mbarrier i, which must be initialised before whatever this thread does now."""
        thread, barrier = current_thread(), self.at(i)
        made = barrier.initialised
        if made is None or not (made.is_before_arrivals(thread) if barrier.is_fenced else made.is_before(thread)):
            raise BarrierMisuse(
                f"{barrier.name} is used with nothing that orders this after its mbarrier_init",
                hint="one thread initialises, then barrier() or the cluster barrier",
            )
        if (by_copies or barrier.block is not thread.block) and not barrier.is_fenced:
            raise BarrierMisuse(f"{barrier.name} is used by a copy", hint="mbarrier_fence() after mbarrier_init")
        return barrier


def _array(block: Block, site: int, n: int) -> MBarriers:
    array = block.shared.get(site)
    if array is None:
        array = block.shared[site] = MBarriers(block, site, n)
    assert isinstance(array, MBarriers)
    return array


def mbarriers(n: int) -> MBarriers:
    """A static array of n mbarriers, one for each place in the text that calls this."""
    return _array(current_thread().block, call_site(), n)


def mbarrier_init(m: MBarriers, i: int, count: int) -> None:
    """Make mbarrier i expect ``count`` arrivals a phase."""
    thread, barrier = current_thread(), m.at(i)
    if not 1 <= count <= _LIMIT:
        raise InvalidOperand(f"mbarrier_init with a count of {count}", expected=f"1 to {_LIMIT}")
    if barrier.initialised is not None:
        raise BarrierMisuse(f"{barrier.name} is initialised again", hint="one thread, once")
    barrier.initialised = Event(thread, "mbarrier_init", call_site())
    barrier.count = count
    order_of(thread).unfenced.append(barrier)


def mbarrier_fence() -> None:
    """Make this thread's `mbarrier_init` visible to copies and to the cluster."""
    order = order_of(current_thread())
    for barrier in order.unfenced:
        barrier.is_fenced = True
    order.unfenced = []


def mbarrier_arrive(m: MBarriers, i: int) -> None:
    """One arrival at the current phase."""
    m.usable(i).arrive(release(current_thread()))


def mbarrier_expect(m: MBarriers, i: int, nbytes: int) -> None:
    """One arrival, and bytes to land in the current phase."""
    barrier = m.usable(i)
    if not 0 <= nbytes <= _LIMIT or barrier.expected + nbytes > _LIMIT:
        raise InvalidOperand(f"mbarrier_expect of {nbytes} bytes", expected=f"0 to {_LIMIT} a phase")
    barrier.expected += nbytes
    barrier.arrive(release(current_thread()))


def mbarrier_wait(m: MBarriers, i: int, parity: int) -> None:
    """Wait until the phase of that parity has completed."""
    if parity not in (0, 1):
        raise InvalidOperand(f"mbarrier_wait for parity {parity}", expected="0 or 1")
    thread, barrier = current_thread(), m.usable(i)
    if not barrier.is_complete(parity):
        barrier.waiting.append((thread, parity))
        thread.park(barrier)
    acquire(thread, barrier.published)
