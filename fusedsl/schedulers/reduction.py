# SPDX-License-Identifier: Apache-2.0
"""Reductions whose results only leave the kernel: rows (innermost loop reduced) or columns (innermost loop kept).

Few results are spread over many blocks; a second kernel adds the partial results in a fixed order, so two runs give
equal bits and no block ever waits for another.
"""

from __future__ import annotations

from fusedsl.graph.graph import Graph
from fusedsl.schedulers.base import KernelPlan, Problem, Refusal
from fusedsl.schedulers.checks import check_positions, check_results_only_leave, check_structure
from fusedsl.schedulers.columns import ColumnParams, column_kernels
from fusedsl.schedulers.names import kernel_name
from fusedsl.schedulers.peel import count_chunks, row_vector
from fusedsl.schedulers.row_params import RowParams, resident_row
from fusedsl.schedulers.rows import row_kernels
from fusedsl.schedulers.space import IterationSpace, iteration_space, pow2_at_least, tile_limit, vector_width

NAME = "reduction"

ReductionParams = RowParams | ColumnParams


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """One stage of agreeing reductions; nothing after them varies over the reduced loops."""
    return check_structure(graph) or check_results_only_leave(graph)


def can_schedule_run_time(problem: Problem) -> Refusal | None:
    """argmax and argmin need loops in logical order."""
    return check_positions(iteration_space(problem))


def compute_heuristics(problem: Problem) -> ReductionParams:
    """Threads along the innermost loop; split the reduced loop when there are too few results to fill the device."""
    space = iteration_space(problem)
    if space.axes[-1].reduced:
        return _row_heuristics(space)
    return _column_heuristics(space)


def _row_heuristics(space: IterationSpace) -> RowParams:
    last = len(space.axes) - 1
    extent = space.axes[last].extent
    vector, peeled = row_vector(space, tile_limit(space))
    chunks = count_chunks(extent, vector, peeled=peeled)
    threads = min(pow2_at_least(chunks), 128 if extent <= 8192 else 512)
    tile = threads * vector
    count = space.size(space.kept)
    target = space.problem.device.multiprocessors * 4
    length = space.axes[space.reduced[0]].extent
    unit = tile if len(space.reduced) == 1 else 1
    split = 1
    if count < target // 4 and length >= 4 * unit:
        split = min(-(-length // (2 * unit)), -(-target // count), 1024)
    if split == 1 and len(space.reduced) == 1 and extent <= 4096:
        return resident_row(space, vector, peeled=peeled)
    rows = max(128 // threads, 1) if space.kept and split == 1 else 1
    exact = split == 1 and extent % tile == 0 and not peeled
    return RowParams(threads, rows, vector, 1, "stream", exact, split=split, peeled=peeled)


def _column_heuristics(space: IterationSpace) -> ColumnParams:
    last = len(space.axes) - 1
    extent = space.axes[last].extent
    vector = vector_width(space, last)
    chunks = -(-extent // vector)
    threads = min(pow2_at_least(chunks), 32)
    lines = 256 // threads
    batch = max(min(32 // vector, 8), 1)
    vector = min(vector, tile_limit(space))
    batch = max(min(batch, tile_limit(space) // vector), 1)
    chunks = -(-extent // vector)
    threads = min(pow2_at_least(chunks), 32)
    lines = 256 // threads
    length = space.axes[space.reduced[0]].extent
    blocks = -(-chunks // threads) * (space.size(space.kept) // max(extent, 1))
    target = space.problem.device.multiprocessors * 4
    unit = lines * batch if len(space.reduced) == 1 else 1
    split = 1
    if blocks < target // 2 and length >= 4 * unit:
        split = max(min(-(-length // (2 * unit)), target // max(blocks, 1), 256), 1)
    return ColumnParams(threads, lines, vector, batch, split, chunks % threads == 0)


def schedule(problem: Problem, params: ReductionParams) -> KernelPlan:
    """One launch, or two when the reduced loop is split."""
    name = kernel_name(problem.graph, NAME)
    if isinstance(params, RowParams):
        return row_kernels(problem, params, name, NAME)
    return column_kernels(problem, params, name, NAME)
