# SPDX-License-Identifier: Apache-2.0
"""Rows in registers: a row is one tile of its threads, in a block or a cluster, loaded once."""

from __future__ import annotations

import torch

from fusedsl.graph.graph import Graph
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.cluster import prepare_cluster
from fusedsl.schedulers.combine import Exchange, Reducer, ShiftedSum, Single
from fusedsl.schedulers.emit import Emitter, Variable
from fusedsl.schedulers.joint import Joint, find_shifted_sums, rounds
from fusedsl.schedulers.row_writer import RowWriter


def write_rows_in_registers(w: RowWriter, e: Emitter) -> None:
    """A row is one tile, loaded once and kept until its results are stored."""
    p, last = w.params, len(w.space.axes) - 1
    if p.cluster > 1:
        head = "head + " if p.peeled else ""
        e.line(f"begin = {head}cluster_rank() * {e.constant('PART', p.tile)}")
    if p.lines > 1:
        w.locate_lines(e)
    else:
        w.locate_column(e, "begin" if p.cluster > 1 else None)
    for node_id in e.graph.inputs:
        early = p.prefetch or all(w.space.strides[node_id])
        if early and w.space.strides[node_id][last] and e.graph.users()[node_id]:
            e.prefetch(node_id)
    found = _rounds(w)
    if p.cluster > 1:
        prepare_cluster(e, [w.round_bytes(r) for r in found], p.threads // 32, p.cluster)
    for entries in found:
        w.combine(e, [_exchange(w, e, entry) for entry in entries])
    outputs = w.full_outputs()
    if outputs:
        with w.live(e):
            for node_id in outputs:
                e.store(node_id)


def _rounds(w: RowWriter) -> list[list[int | Joint]]:
    """The exchanges. The exponentials of a pair are kept in registers, so only rows in registers use pairs."""
    graph = w.problem.graph
    if w.problem.numerics == "eager":
        return rounds(graph, ())  # eager torch rounds between the two
    return rounds(graph, [joint for joint in find_shifted_sums(graph) if _is_float32(graph, joint)])


def _exchange(w: RowWriter, e: Emitter, entry: int | Joint) -> Exchange:
    """The thread's part of a reduction or a joint pair of a row in registers."""
    if isinstance(entry, Joint):
        return _shifted(w, e, entry)
    reducer = Reducer(e, e.graph[entry])
    operand = reducer.operand(e.constant("TILE", e.tile.numel), w.mask(e))
    return Single(reducer, reducer.once(operand, w.positions(e, reducer)))


def _shifted(w: RowWriter, e: Emitter, entry: Joint) -> ShiftedSum:
    """The thread's part of a maximum and a sum of exponentials; its own maximum stands in for the row's."""
    item = ShiftedSum(e, entry)
    count = e.constant("TILE", e.tile.numel)
    own = item.start(Reducer(e, e.graph[entry.first]).operand(count, w.mask(e)))
    with e.block():
        e.define(entry.first, Variable(own))
        terms = Reducer(e, e.graph[entry.second]).operand(count, w.mask(e))
    item.fold(terms)
    return item


def _is_float32(graph: Graph, joint: Joint) -> bool:
    """Joint pairs are written for float32 arithmetic."""
    return compute_dtype(graph[joint.source].tensor.dtype) == torch.float32
