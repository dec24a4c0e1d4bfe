# SPDX-License-Identifier: Apache-2.0
"""Rows in shared memory: copied there asynchronously, and read in each pass.

Every thread copies what it will read itself (``cp.async``), so no barrier is needed. A row may be spread over the
blocks of a cluster; then one thread of each copies its part as a whole, completing on an mbarrier, where accesses are
16 bytes: in a cluster ``cp.async`` moves every byte twice from the L2 cache (seen on an H200).
"""

from __future__ import annotations

import functools
from typing import TypeAlias

from fusedsl.analysis.budgets import place_arrays
from fusedsl.schedulers.cluster import new_mbarriers, prepare_cluster
from fusedsl.schedulers.edge import Edge
from fusedsl.schedulers.emit import Emitter
from fusedsl.schedulers.peel import count_chunks
from fusedsl.schedulers.row_params import shared_inputs
from fusedsl.schedulers.row_passes import rounds_of_passes
from fusedsl.schedulers.row_writer import RowWriter
from fusedsl.schedulers.text import dtype_marker


def copy_row(w: RowWriter, e: Emitter) -> int:
    """Copy the row's inputs to shared memory, up to this thread's own copies. Bytes of a block's part."""
    p, last = w.params, len(w.space.axes) - 1
    chunks = count_chunks(w.space.axes[last].extent, p.vector, peeled=p.peeled)
    tiles = -(-chunks // (p.threads * p.batch * p.cluster))
    part = tiles * p.tile
    if p.cluster > 1:
        w.locate_part(e)
    sizes = {node_id: e.graph[node_id].tensor.dtype.itemsize for node_id in shared_inputs(w.space)}
    places, smem_bytes = place_arrays({node_id: part * size for node_id, size in sizes.items()})
    copies = {}
    for node_id, place in places.items():
        name = e.fresh(f"{e.graph[node_id].name}_smem")
        copies[node_id] = name, place // sizes[node_id]
        e.line(f"{name} = dynamic_shared({dtype_marker(e.graph[node_id].tensor.dtype)}, 0)")
    whole = p.cluster > 1 and all(p.vector * size % 16 == 0 for size in sizes.values())
    (_copy_whole if whole else _copy_own)(w, e, copies)
    if p.peeled:
        _hold_edges(w, e, list(copies))
    w.load_scalars(e)
    if p.cluster > 1:
        prepare_cluster(e, [w.round_bytes(r) for r in rounds_of_passes(w)], p.threads // 32, p.cluster)
    e.line("mbarrier_wait(copied, 0, 0)" if whole else "async_wait(0)")
    for node_id, (name, base) in copies.items():
        e.reader[node_id] = functools.partial(_read, w, e, node_id, name, base)
    return smem_bytes


#: By input, the name of its copy in shared memory and the index where that begins.
Copies: TypeAlias = dict[int, tuple[str, int]]


def _copy_whole(w: RowWriter, e: Emitter, copies: Copies) -> None:
    """One thread copies the block's part of the row; all fill the rest of its last tile with zeros."""
    last, exact = len(w.space.axes) - 1, w.params.exact
    item = sum(e.graph[node_id].tensor.dtype.itemsize for node_id in copies)
    e.line("count = end - begin" if exact else "count = max(end - begin, 0)")
    with new_mbarriers(e, "copied", 1):
        e.line(f"mbarrier_expect(copied, 0, count * {item})")
        with e.block(None if exact else "if count > 0:"):
            e.index[last] = "begin"
            for node_id, (name, base) in copies.items():
                source = f"{e.pointer(node_id)}, {e.offset(node_id)}"
                e.line(f"bulk_load({name}, {_base(e, node_id, base)}, {source}, count, copied, 0)")
    if not exact:
        chunk, step, vector = (e.constant("CHUNK", w.params.tile), e.constant("STEP", w.params.step), w.params.vector)
        e.line(f"filled = udiv(count + {chunk} - 1, {chunk}) * {chunk}")
        with e.block(f"for rest in range(count + thread_x() * {e.constant('VECTOR', vector)}, filled, {step}):"):
            for node_id, (name, base) in copies.items():
                zeros = f"full({vector}, 0, {dtype_marker(e.graph[node_id].tensor.dtype)})"
                e.line(f"shared_store({name}, {'rest' if base == 0 else f'{_base(e, node_id, base)} + rest'}, {zeros})")
    e.line("barrier()")


def _copy_own(w: RowWriter, e: Emitter, copies: Copies) -> None:
    """Every thread copies what it will read; beyond the row's end there are zeros."""
    p = w.params
    with w.loops(e, w.bounds()):
        for node_id, (name, base) in copies.items():
            batch, step = e.constant("BATCH", p.batch), e.constant("STEP", p.step)
            slot, pointer, at = _slot(w, e, node_id, base), e.pointer(node_id), e.offset(node_id)
            vector = e.constant("VECTOR", p.vector)
            e.line(f"async_copy({name}, {slot}, {pointer}, {at}, {e.limit}, {batch}, {step}, {vector})")
    e.line("async_commit()")


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
    return place if base == 0 else f"{_base(e, node_id, base)} + {place}"


def _base(e: Emitter, node_id: int, base: int) -> str:
    """Text of where the copy of an input begins, in elements."""
    return e.integer(f"{e.pointer(node_id)[:-4]}_base", base) if base else "0"


def _read(w: RowWriter, e: Emitter, node_id: int, name: str, base: int) -> str:
    """Text that reads a tile of an input from its shared copy."""
    batch, step = e.constant("BATCH", e.tile.batch), e.constant("STEP", e.tile.step)
    vector = e.constant("VECTOR", e.tile.vector)
    return f"shared_load_tile({name}, {_slot(w, e, node_id, base)}, {batch}, {step}, {vector})"
