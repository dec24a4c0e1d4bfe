# SPDX-License-Identifier: Apache-2.0
"""Rows split over blocks: each block reduces its part of a row, a second kernel adds the parts in a fixed order."""

from __future__ import annotations

import attrs

from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.base import KernelPlan, Launch
from fusedsl.schedulers.combine import Reducer, Single, combine_in_block
from fusedsl.schedulers.emit import Emitter
from fusedsl.schedulers.partials import add_partials, share_of_block, store_partials
from fusedsl.schedulers.row_writer import RowWriter


def split_rows(w: RowWriter) -> KernelPlan:
    """The two launches, and the buffers of partial results between them."""
    p, split = w.params, w.params.split
    e = w.emitter(f"{w.name}_partial")
    w.locate_row(e, 1)
    bounds = share_of_row(w, e, split)
    stage = w.reductions.stages[0]
    partials = [Single(r, a) for r, a in w.stream_pass(e, list(stage), bounds)]
    combine_in_block(e, list(partials), w.params.threads, finish=False)
    place = f"block_y() * {e.integer('rows', w.rows)} + {'row' if w.space.kept else '0'}"
    parts = [part for item in partials for part in item.parts]
    with e.block("if thread_x() == 0:"):
        workspaces = store_partials(e, parts, split * w.rows, place)
    first_launch = e.launch(e.source(p.threads, p.min_blocks), Geometry((w.rows, split, 1), (p.threads, 1, 1)))
    return KernelPlan((first_launch, _finish(w, stage, split)), workspaces)


def share_of_row(w: RowWriter, e: Emitter, blocks: int) -> tuple[str, str]:
    """Texts of where this block's share of a row begins and ends, for so many blocks; whole tiles of a single loop."""
    first, single = w.space.reduced[0], len(w.space.reduced) == 1
    per = -(-w.space.axes[first].extent // blocks)
    if single:
        per = -(-per // w.params.tile) * w.params.tile
    return _share_of_chunks(w, e, per) if single and w.params.peeled else share_of_block(e, first, per)


def _share_of_chunks(w: RowWriter, e: Emitter, per: int) -> tuple[str, str]:
    """`share_of_block` of the aligned chunks of a peeled row."""
    w.locate_chunks(e)
    share = e.integer("share", per)
    e.line(f"begin = head + block_y() * {share}")
    e.line(f"end = min(begin + {share}, right)")
    return "begin", "end"


def _finish(w: RowWriter, stage: tuple[int, ...], split: int) -> Launch:
    """Reduce the partial results of a row with one warp, in a fixed order, then the row's epilogue."""
    rows_per_block = 4 if w.rows > 1 else 1
    params = attrs.evolve(w.params, rows=rows_per_block, threads=32, peeled=False)
    writer = RowWriter(w.problem, params, w.name, w.header)
    e = writer.emitter(f"{w.name}_finish")
    writer.locate_row(e, rows_per_block)
    rows, parts = e.integer("rows", w.rows), e.integer("parts", split)
    row = "row" if w.space.kept else "0"
    reducers = [Reducer(e, e.graph[node_id]) for node_id in stage]
    sums = [(reducer, reducer.start("1")) for reducer in reducers]
    with e.block(f"for part in range(thread_x(), {parts}, 32):"):
        add_partials(e, sums, f"part * {rows} + {row}")
    combine_in_block(e, [Single(r, a) for r, a in sums], 32, rows_per_block)
    writer.row_outputs(e)
    grid = (-(-w.rows // rows_per_block), 1, 1)
    return e.launch(e.source(32 * rows_per_block), Geometry(grid, (32, rows_per_block, 1)))
