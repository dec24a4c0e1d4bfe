# SPDX-License-Identifier: Apache-2.0
"""Reductions of rows that registers do not hold: passes over the row, in shared memory or in global memory."""

from __future__ import annotations

from fusedsl.schedulers.combine import Exchange, ShiftedSum, Single
from fusedsl.schedulers.emit import Emitter, Variable
from fusedsl.schedulers.joint import Joint
from fusedsl.schedulers.moments import RowMoments
from fusedsl.schedulers.row_writer import RowWriter, pairs_of_rows


def reduce_in_passes(w: RowWriter, e: Emitter) -> None:
    """The reductions: a pass over the row for those of one round; pairs of them share an exchange between threads."""
    bounds = w.bounds()
    for entries in rounds_of_passes(w):
        single = [entry for entry in entries if not isinstance(entry, Joint)]
        items: list[Exchange] = [Single(r, a) for r, a in w.stream_pass(e, single, bounds)] if single else []
        items += [_pair(w, e, entry) for entry in entries if isinstance(entry, Joint)]
        w.combine(e, items)


def rounds_of_passes(w: RowWriter) -> list[list[int | Joint]]:
    """The exchanges. Pairs, of a pass each, where that costs no traffic and all threads have as many elements."""
    paired = w.params.storage == "shared" and w.params.exact
    return w.rounds(pairs_of_rows(w.problem) if paired else ())


def _pair(w: RowWriter, e: Emitter, entry: Joint) -> Exchange:
    """The thread's part of a pair: what the second needs of the first is taken of the thread's own elements."""
    length = w.space.size(w.space.reduced)
    item: RowMoments | ShiftedSum
    ((_, first),) = w.stream_pass(e, [entry.first], w.bounds())
    if e.graph[entry.first].op == "sum":
        item = RowMoments(e, entry, length)
        known, own = entry.inner, item.begin(first.value, length // (w.params.threads * w.params.cluster))
    else:
        item = ShiftedSum(e, entry)
        known, own = entry.first, item.start(first.value)
    with e.block():
        e.define(known, Variable(own))
        ((_, second),) = w.stream_pass(e, [entry.second], w.bounds())
    item.fold(second.value)
    return item
