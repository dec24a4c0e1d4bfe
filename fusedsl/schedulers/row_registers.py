# SPDX-License-Identifier: Apache-2.0
"""Rows in registers: a row is one tile of its threads, in a block or a cluster, loaded once."""

from __future__ import annotations

import contextlib

import torch

from fusedsl.analysis.edges import upstream
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.cluster import prepare_cluster
from fusedsl.schedulers.combine import Exchange, Reducer, ShiftedSum, Single
from fusedsl.schedulers.emit import Emitter, Variable
from fusedsl.schedulers.joint import Joint
from fusedsl.schedulers.moments import RowMoments
from fusedsl.schedulers.row_writer import RowWriter, pairs_of_rows


def write_rows_in_registers(w: RowWriter, e: Emitter) -> None:
    """A row is one tile, loaded once and kept until its results are stored."""
    p = w.params
    if p.cluster > 1:
        w.locate_part(e)
    if p.lines > 1:
        w.locate_lines(e)
    else:
        w.locate_column(e, *(w.bounds() or (None,)))
    for node_id in _first_loads(w):
        e.prefetch(node_id)
    if p.lines == 1:  # rows of two loops leave no register free
        w.load_scalars(e)
    _reduce(w, e)
    outputs = w.full_outputs()
    if outputs:
        with w.live(e):
            for node_id in outputs:
                e.store(node_id)


def _reduce(w: RowWriter, e: Emitter) -> None:
    """The reductions, one exchange between threads after the other."""
    p, found = w.params, w.rounds(pairs_of_rows(w.problem))
    if p.cluster > 1:
        prepare_cluster(e, [w.round_bytes(r) for r in found], p.threads // 32, p.cluster)
    for entries in found:
        with e.block() if p.again else contextlib.nullcontext():
            items = [_exchange(w, e, entry) for entry in entries]
        w.combine(e, items)
        if p.again:
            _convert_after(e, entries)
            e.hoist(w.full_outputs())


def _first_loads(w: RowWriter) -> list[int]:
    """Inputs along the row that are loaded before anything is computed."""
    graph = w.problem.graph
    needed = 0
    for node_id in w.reductions.nodes:
        needed |= upstream(graph)[node_id]
    along = [i for i in graph.inputs if w.space.strides[i][-1] and graph.users()[i]]
    return [i for i in along if w.params.prefetch or all(w.space.strides[i]) or needed >> i & 1]


def _convert_after(e: Emitter, entries: list[int | Joint]) -> None:
    """From here on inputs are converted anew, when a result of this round is known."""
    for entry in entries:
        node_id = entry.inner if isinstance(entry, Joint) else entry
        variable = e.known(node_id)
        if variable is not None and compute_dtype(e.graph[node_id].tensor.dtype) == torch.float32:
            e.after = variable.text


def _exchange(w: RowWriter, e: Emitter, entry: int | Joint) -> Exchange:
    """The thread's part of a reduction or a joint pair of a row in registers."""
    if isinstance(entry, Joint):
        return _moments(w, e, entry) if e.graph[entry.first].op == "sum" else _shifted(w, e, entry)
    reducer = Reducer(e, e.graph[entry])
    operand = reducer.operand(e.constant("TILE", e.tile.numel), w.mask(e))
    return Single(reducer, reducer.once(operand, w.positions(e, reducer)))


def _moments(w: RowWriter, e: Emitter, entry: Joint) -> RowMoments:
    """The thread's part of a sum and of the squares about the mean."""
    item = RowMoments(e, entry, w.space.size(w.space.reduced))
    tile, padded = e.tile_of(entry.source, e.constant("TILE", e.tile.numel)), e.zero_padded(entry.source)
    item.start(tile, e.tile.numel, w.mask(e), padded=padded)
    return item


def _shifted(w: RowWriter, e: Emitter, entry: Joint) -> ShiftedSum:
    """The thread's part of a maximum and a sum of exponentials; its own maximum stands in for the row's."""
    item = ShiftedSum(e, entry)
    count = e.constant("TILE", e.tile.numel)
    own = item.start(Reducer(e, e.graph[entry.first]).operand(count, w.mask(e)))
    with e.block():
        e.define(entry.first, Variable(own))
        terms = Reducer(e, e.graph[entry.second]).operand(count, w.mask(e))
    item.fold(terms, keep=True)
    return item
