# SPDX-License-Identifier: Apache-2.0
"""Who touches which element of shared memory, in kernels whose threads are ordered by mbarriers, named barriers,
cluster barriers or waits for copies; each touch is an `Event` of `ordering`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fusedsl.numba_cuda.interpreter.errors import KernelFault, SharedRace, UnfinishedCopy, UninitializedRead
from fusedsl.numba_cuda.interpreter.ordering import Copy, Event

if TYPE_CHECKING:
    from fusedsl.numba_cuda.interpreter.block import Thread
    from fusedsl.numba_cuda.interpreter.shared import SharedArray

#: First unit of an access and one past its last.
Units = tuple[int, int]


def _fault(what: str, verb: str, s: SharedArray, unit: int, other: Event) -> KernelFault:
    element = f"element {(unit - s.start) // s.unit} of {s.label}"
    if isinstance(other, Copy) and other.after is not None:
        other = other.after
    elif isinstance(other, Copy):
        return UnfinishedCopy(
            f"{what} {verb} {element} without having waited for the {other.what} of {other.describe()}", hint=other.wait
        )
    return SharedRace(
        f"{what} {verb} {element} with no barrier after {other.describe()}", hint="barrier() between the two"
    )


def _check_writes(what: str, s: SharedArray, units: Units, thread: Thread, *, overwrites: bool) -> None:
    first, last = units
    writes = s.watch.writes
    verb = "overwrites" if overwrites else "reads"
    for write in set(writes[first:last]):
        if write is not None and not (write.is_over(thread) if overwrites else write.is_before(thread)):
            raise _fault(what, verb, s, writes.index(write, first, last), write)


def read(what: str, s: SharedArray, units: Units, thread: Thread, site: int) -> None:
    """Check that a read comes after the writes of its elements, and note it."""
    first, last = units
    if None in s.watch.writes[first:last]:
        unit = s.watch.writes.index(None, first, last)
        raise UninitializedRead(
            f"{what} reads element {(unit - s.start) // s.unit} of {s.label}, which nobody has written",
            hint="barrier() before the read, if another thread is to write it",
        )
    _check_writes(what, s, units, thread, overwrites=False)
    note_read(s, units, Event(thread, what, site, is_read=True))


def note_read(s: SharedArray, units: Units, event: Event) -> None:
    """Add a reader to each element: one event, or a dictionary of several threads' last ones."""
    reads = s.watch.reads
    thread = event.thread
    for unit in range(*units):
        before = reads[unit]
        if before is None or (before.__class__ is not dict and before.is_before(thread)):
            reads[unit] = event
        elif before.__class__ is dict:
            before[thread] = event
        else:
            reads[unit] = {before.thread: before, thread: event}


def _readers(s: SharedArray, units: Units) -> Iterator[tuple[int, Event]]:
    first, last = units
    reads = s.watch.reads
    seen: set[int] = set()
    for unit in range(first, last):
        before = reads[unit]
        if before is None or id(before) in seen:
            continue
        seen.add(id(before))
        for event in before.values() if before.__class__ is dict else (before,):
            yield unit, event


def claim(what: str, s: SharedArray, units: Units, thread: Thread, event: Event) -> None:
    """Check that a write comes after the reads and writes of its elements, and note it."""
    _check_writes(what, s, units, thread, overwrites=True)
    for unit, reader in _readers(s, units):
        if not reader.is_before(thread):
            raise _fault(what, "overwrites", s, unit, reader)
    first, last = units
    s.watch.writes[first:last] = [event] * (last - first)
    s.watch.reads[first:last] = [None] * (last - first)


def write(what: str, s: SharedArray, units: Units, thread: Thread, site: int) -> None:
    """`claim` by an ordinary store."""
    claim(what, s, units, thread, Event(thread, what, site))
