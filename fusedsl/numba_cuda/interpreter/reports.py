# SPDX-License-Identifier: Apache-2.0
"""Faults of a whole launch in words: who waits for whom, and what is left when a block has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedsl.numba_cuda.interpreter.errors import Deadlock, KernelFault, RemoteAccess, UnfinishedCopy
from fusedsl.numba_cuda.interpreter.ordering import Copy, Event

if TYPE_CHECKING:
    from types import FrameType

    from fusedsl.numba_cuda.interpreter.block import Block, Scheduler, Thread


def describe_deadlock(scheduler: Scheduler, blocks: list[Block]) -> Deadlock:
    """Who waits where, and who has returned."""
    places: dict[tuple[object, int], list[Thread]] = {}
    stuck = next(block for block in blocks if any(t.worker is not None for t in block.threads))
    for thread in stuck.threads:
        frame: FrameType | None = None if thread.worker is None else thread.worker.gr_frame
        line = scheduler.text.line_of(frame)
        places.setdefault((str(thread.wait_name), line), []).append(thread)
    lines = []
    first: tuple[int, Thread] | None = None
    for (name, line), threads in places.items():
        who = f"    {_count(threads)} {_ranges([t.linear for t in threads])}"
        if name:
            one = len(threads) == 1
            lines.append(f"{who} {'waits' if one else 'wait'} at {name}, line {line}: {scheduler.text.line(line)}")
            first = first or (line, threads[0])
        else:
            lines.append(f"{who} {'has' if len(threads) == 1 else 'have'} returned")
    assert first is not None
    fault = Deadlock(
        f"threads of block {stuck.index} wait for others that will never come\n" + "\n".join(lines),
        expected="every thread of the group at the same barrier or collective",
    )
    fault.locate(scheduler.text.span(first[0]), None, None, scheduler.text.origin(first[0]))
    return fault


def describe_visit(scheduler: Scheduler, block: Block, event: Event) -> KernelFault:
    """An access to the shared memory of a block that has ended perhaps too early for it."""
    line = scheduler.line_at(event.site)
    thread = event.thread
    fault: KernelFault
    if isinstance(event, Copy):
        fault = UnfinishedCopy(f"block {block.index} ends without waiting for this {event.what}", hint=event.wait)
    else:
        fault = RemoteAccess(
            f"{event.what} touches the shared memory of block {block.index}, which may have ended before",
            hint="cluster_arrive() and cluster_wait() after the last access, in every block",
        )
    fault.locate(scheduler.text.span(line), thread.index, thread.block.index, scheduler.text.origin(line))
    return fault


def _count(threads: list[Thread]) -> str:
    return f"{len(threads)} thread{'s' if len(threads) > 1 else ''}"


def _ranges(numbers: list[int]) -> str:
    """``(0, 2 to 31)`` for a sorted list of thread numbers."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in parts[:8]]
    if len(parts) > len(shown):
        shown.append("...")
    return f"({', '.join(shown)})"
