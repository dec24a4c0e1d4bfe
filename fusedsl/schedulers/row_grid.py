# SPDX-License-Identifier: Apache-2.0
"""Few long rows, each shared by blocks of a cooperative grid: every stage passes over the block's part of a row, blocks
hand on their partial results in global memory and wait for each other, and each merges all of them in one order.
"""

from __future__ import annotations

import torch

from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.base import KernelPlan, Workspace
from fusedsl.schedulers.combine import Single, combine_in_block
from fusedsl.schedulers.emit import Emitter
from fusedsl.schedulers.partials import add_partials, store_partials
from fusedsl.schedulers.row_split import share_of_row
from fusedsl.schedulers.row_writer import RowWriter


def rows_over_grid(w: RowWriter) -> KernelPlan:
    """One launch of ``rows`` times ``grid`` blocks, all resident at once."""
    p = w.params
    e = w.emitter(w.name)
    w.locate_row(e, 1)
    bounds = share_of_row(w, e, p.grid)
    workspaces = [Workspace(torch.int32, 1, zeroed=True)]
    for stage in w.reductions.stages:
        items = [Single(r, a) for r, a in w.stream_pass(e, list(stage), bounds)]
        combine_in_block(e, list(items), p.threads, finish=False)
        workspaces += _exchange(w, e, items, len(workspaces))
    w.stream_outputs(e, bounds)
    w.row_outputs(e)
    source = e.source(p.threads, p.min_blocks)
    launch = e.launch(source, Geometry((w.rows, p.grid, 1), (p.threads, 1, 1), cooperative=True))
    return KernelPlan((launch,), tuple(workspaces))


def _exchange(w: RowWriter, e: Emitter, items: list[Single], first: int) -> tuple[Workspace, ...]:
    """Merge the partial results of all blocks of a row; the buffers they go through, from number ``first`` on."""
    rows, row = e.integer("rows", w.rows), "row" if w.space.kept else "0"
    parts = [part for item in items for part in item.parts]
    with e.block("if thread_x() == 0:"):
        numel, place = w.params.grid * w.rows, f"block_y() * {rows} + {row}"
        workspaces = store_partials(e, parts, numel, place, first=first)
    e.line(f"grid_barrier({e.workspace(0, torch.int32)}, 0)")
    sums = [(item.reducer, item.reducer.start("1")) for item in items]
    with e.block(f"for part in range(lane(), {e.integer('parts', w.params.grid)}, 32):"):
        add_partials(e, sums, f"part * {rows} + {row}", first)
    for reducer, accumulator in sums:
        reducer.finish(reducer.warp(accumulator, 32), vector=False)
    return workspaces
