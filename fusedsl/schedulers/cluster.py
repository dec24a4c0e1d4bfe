# SPDX-License-Identifier: Apache-2.0
"""How partial results meet in a cluster of blocks, once or in every row of a loop.

Every warp sends its partial results to every block by asynchronous remote stores that count down an mbarrier there;
each block waits for all of them and merges them in one order, so all blocks find the same bits.

In a loop over rows every round has two places for parts and two mbarriers, for rows in turns. No barrier is needed:

* Data. A warp sends parts of row k + 2 when it has waited for those of row k + 1 of all warps of the cluster. Each of
  these sent them when it had used what it had read of row k: the place of row k is free.
* Arming. Thread 0 of a block arms the mbarrier of row k for row k + 2 when it has waited there, so that phase is over;
  its warp's parts of row k + 1 follow, which come before anybody's parts of row k + 2. The phase of row k + 2 needs
  parts of all warps, and each has waited for row k by then: no phase is missed.
* Rounds. A row's rounds have places and mbarriers of their own, so both hold for each.
* Ends. A block waits for all parts of its last row, and nobody sends parts of a row that does not exist, so its shared
  memory is not written any more: it may end. What was armed for rows that do not exist stays as it is.

All this takes clusters whose blocks have the same rows, and results that are used before the next row's parts are sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fusedsl.schedulers.combine import Exchange, scratch
from fusedsl.schedulers.emit import Emitter

#: Variables of a loop over rows: the row's number modulo 2, the parity of its mbarriers' phase, and the warp's place
#: among the parts of a row.
TURN, PHASE, SLOT = "turn", "phase", "slot"

#: Up to so many parts every thread reads all; of more, which would take registers, a lane reads a share.
ALL_PARTS = 8


@contextmanager
def new_mbarriers(e: Emitter, name: str, count: int) -> Iterator[None]:
    """An array of mbarriers of one arrival a phase; inside stands what the thread does that initialises them."""
    e.line(f"{name} = mbarriers({count})")
    with e.block("if thread_x() == 0:"):
        for index in range(count):
            e.line(f"mbarrier_init({name}, {index}, 1)")
        e.line("mbarrier_fence()")
        yield


def prepare_cluster(e: Emitter, rounds: list[int], warps: int, cluster: int, *, loop: bool = False) -> None:
    """Arm one mbarrier a round, two in a loop, for what every warp of the cluster will send to this block.

    ``rounds``: bytes a warp sends, a round.
    """
    sizes = [size for size in rounds for _ in range(1 + loop)]
    with new_mbarriers(e, "arrived", len(sizes)):
        for index, size in enumerate(sizes):
            e.line(f"mbarrier_expect(arrived, {index}, {size * warps * cluster})")
    e.line("cluster_arrive_relaxed()")


def begin_rows(e: Emitter, warps: int) -> None:
    """Before a loop over rows; after it nothing waits for the cluster as a whole."""
    e.line(f"{SLOT} = cluster_rank() * {warps} + warp()")
    e.line(f"{TURN} = 0")
    e.line(f"{PHASE} = 0")
    e.line("cluster_wait()")


def end_row(e: Emitter) -> None:
    """At the end of the loop's body: every second row begins a phase."""
    e.line(f"{PHASE} = {PHASE} ^ {TURN}")
    e.line(f"{TURN} = 1 - {TURN}")


def combine_in_cluster(e: Emitter, items: list[Exchange], threads: int, cluster: int, size: int | None = None) -> None:
    """Reduce tiles over the threads of all blocks of a cluster and define the results.

    ``size``: this is a round of a loop over rows, in which a warp sends so many bytes.
    """
    warps = threads // 32
    count = warps * cluster
    index = e.clusters_combined
    e.clusters_combined += 1
    for item in items:
        item.in_warp(32, final=False)
    scratches = [scratch(e, item, count if size is None else 2 * count) for item in items]
    slot, barrier, parity, begin = f"cluster_rank() * {warps} + warp()", str(index), "0", ""
    if size is not None:
        begin = f"{TURN} * {count} + "
        slot, barrier, parity = begin + SLOT, f"{2 * index} + {TURN}" if index else TURN, PHASE
    elif index == 0:
        e.line("cluster_wait()")
    with e.block(f"if lane() < {cluster}:"):
        for item, arrays in zip(items, scratches, strict=True):
            for array, (_, text) in zip(arrays, item.values, strict=True):
                e.line(f"remote_store_async({array}, {slot}, {text}, lane(), arrived, {barrier})")
    e.line(f"mbarrier_wait(arrived, {barrier}, {parity})")
    if size is not None:
        with e.block("if thread_x() == 0:"):
            e.line(f"mbarrier_expect(arrived, {barrier}, {size * count})")
    first = begin.removesuffix(" + ") or "0"
    for item, arrays in zip(items, scratches, strict=True):
        if count <= ALL_PARTS:
            item.across(arrays, first, count, first)
        else:
            width = min(count, 32)
            share, lane = count // width, "lane()" if width == 32 else f"umod(lane(), {width})"
            at = f"{begin}{lane} * {share}" if share > 1 else begin + lane
            item.across(arrays, at, share, first, final=False)
            item.in_warp(width, final=True)
        item.finish()
