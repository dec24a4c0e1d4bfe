# SPDX-License-Identifier: Apache-2.0
"""Rows in shared memory: copied there asynchronously, every thread what it will read itself, and read in each pass.

A row may be spread over the blocks of a cluster.
"""

from __future__ import annotations

import functools

from fusedsl.analysis.budgets import place_arrays
from fusedsl.schedulers.cluster import prepare_cluster
from fusedsl.schedulers.edge import Edge
from fusedsl.schedulers.emit import Emitter
from fusedsl.schedulers.peel import count_chunks
from fusedsl.schedulers.row_params import shared_inputs
from fusedsl.schedulers.row_writer import RowWriter
from fusedsl.schedulers.text import dtype_marker


def copy_row(w: RowWriter, e: Emitter) -> int:
    """Copy the row's inputs to shared memory, up to this thread's own copies. Bytes of a block's part."""
    p, last = w.params, len(w.space.axes) - 1
    chunks = count_chunks(w.space.axes[last].extent, p.vector, peeled=p.peeled)
    tiles = -(-chunks // (p.threads * p.batch * p.cluster))
    part = tiles * p.tile
    if p.cluster > 1:
        share = e.integer("share", part)
        e.line(f"begin = {'head + ' if p.peeled else ''}cluster_rank() * {share}")
        e.line(f"end = min(begin + {share}, {w.end(e)})")
    sizes = {node_id: e.graph[node_id].tensor.dtype.itemsize for node_id in shared_inputs(w.space)}
    places, smem_bytes = place_arrays({node_id: part * size for node_id, size in sizes.items()})
    copies = [(node_id, place // sizes[node_id]) for node_id, place in places.items()]
    names = {}
    for node_id, _ in copies:
        names[node_id] = e.fresh(f"{e.graph[node_id].name}_smem")
        e.line(f"{names[node_id]} = dynamic_shared({dtype_marker(e.graph[node_id].tensor.dtype)}, 0)")
    with w.loops(e, w.bounds()):
        for node_id, base in copies:
            batch, step = e.constant("BATCH", p.batch), e.constant("STEP", p.step)
            slot = _slot(w, e, node_id, base)
            pointer, at = e.pointer(node_id), e.offset(node_id)
            vector = e.constant("VECTOR", p.vector)
            e.line(f"async_copy({names[node_id]}, {slot}, {pointer}, {at}, {e.limit}, {batch}, {step}, {vector})")
    e.line("async_commit()")
    if p.peeled:
        _hold_edges(w, e, [node_id for node_id, _ in copies])
    if p.cluster > 1:
        prepare_cluster(e, [w.round_bytes(s) for s in w.reductions.stages], p.threads // 32, p.cluster)
    e.line("async_wait(0)")
    for node_id, base in copies:
        e.reader[node_id] = functools.partial(_read, w, e, node_id, names[node_id], base)
    return smem_bytes


def _hold_edges(w: RowWriter, e: Emitter, inputs: list[int]) -> None:
    """Load the edges of a peeled row while its chunks are on their way; the first block of a cluster has them."""
    last = len(w.space.axes) - 1
    e.line(f"edges = {e.extent(last)} - edge" + (" if begin == head else 0" if w.params.cluster > 1 else ""))
    edge = Edge("edge", "edges")
    for node_id in inputs:
        name = e.fresh(f"{e.graph[node_id].name}_held")
        e.line(f"{name} = {edge.load(e, node_id, e.fill_text(node_id))}")
        w.held_edges[node_id] = name


def _slot(w: RowWriter, e: Emitter, node_id: int, base: int) -> str:
    """Index of the thread's columns in the shared copy of an input."""
    first = "begin" if w.params.cluster > 1 else "head" if w.params.peeled else ""
    place = f"col - {first}" if first else "col"
    if base == 0:
        return place
    return f"{e.integer(f'{e.pointer(node_id)[:-4]}_base', base)} + {place}"


def _read(w: RowWriter, e: Emitter, node_id: int, name: str, base: int) -> str:
    """Text that reads a tile of an input from its shared copy."""
    batch, step = e.constant("BATCH", e.tile.batch), e.constant("STEP", e.tile.step)
    vector = e.constant("VECTOR", e.tile.vector)
    return f"shared_load_tile({name}, {_slot(w, e, node_id, base)}, {batch}, {step}, {vector})"
