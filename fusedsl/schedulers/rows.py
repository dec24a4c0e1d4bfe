# SPDX-License-Identifier: Apache-2.0
"""Kernels whose threads stand along a row: the innermost loop is reduced.

Three forms. *Register*: a row is one tile, loaded once (:mod:`~fusedsl.schedulers.row_registers`). *Shared*: the row's
inputs are copied to shared memory and each stage passes over them there (:mod:`~fusedsl.schedulers.row_shared`).
*Stream*: each stage passes over global memory; rows may be split over blocks, with results that only leave
(:mod:`~fusedsl.schedulers.row_split`) or over a cooperative grid (:mod:`~fusedsl.schedulers.row_grid`).
A block is ``threads`` along the row times ``rows`` rows.
"""

from __future__ import annotations

from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.base import KernelPlan, Launch, Problem
from fusedsl.schedulers.row_grid import rows_over_grid
from fusedsl.schedulers.row_params import RowParams
from fusedsl.schedulers.row_passes import reduce_in_passes
from fusedsl.schedulers.row_registers import write_rows_in_registers
from fusedsl.schedulers.row_shared import copy_row
from fusedsl.schedulers.row_split import split_rows
from fusedsl.schedulers.row_writer import RowWriter


def row_kernels(problem: Problem, params: RowParams, name: str, scheduler: str) -> KernelPlan:
    """The plan of a row kernel: one launch, or two when rows are split over blocks."""
    writer = RowWriter(problem, params, name, (f"{problem.graph.name}: {scheduler}", str(params)))
    if params.split > 1:
        return split_rows(writer)
    if params.grid > 1:
        return rows_over_grid(writer)
    return KernelPlan((_whole(writer),))


def _whole(w: RowWriter) -> Launch:
    """One kernel, whole rows in every block or cluster."""
    p = w.params
    e = w.emitter(w.name)
    w.locate_row(e, p.rows)
    if len(w.space.reduced) == 1:
        w.locate_chunks(e)
    smem_bytes = 0
    if p.storage == "register":
        write_rows_in_registers(w, e)
    else:
        if p.storage == "shared":
            smem_bytes = copy_row(w, e)
        else:
            w.load_scalars(e)
        reduce_in_passes(w, e)
        w.stream_outputs(e, w.bounds())
    w.row_outputs(e)
    blocks = -(-w.rows // p.rows) * p.cluster
    source = e.source(p.threads * p.rows, p.min_blocks)
    return e.launch(source, Geometry((blocks, 1, 1), (p.threads, p.rows, 1), p.cluster, smem_bytes))
