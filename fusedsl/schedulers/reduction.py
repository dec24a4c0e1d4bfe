# SPDX-License-Identifier: Apache-2.0
"""Reductions whose results only leave the kernel: rows (innermost loop reduced) or columns (innermost loop kept).

Few results are spread over many blocks; a second kernel adds the partial results in a fixed order, so two runs give
equal bits and no block ever waits for another.
"""

from __future__ import annotations

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph
from fusedsl.schedulers.base import KernelPlan, Problem, Refusal
from fusedsl.schedulers.checks import (
    check_agreement,
    check_coverage,
    check_ops,
    check_positions,
    check_self_mapping,
    first_refusal,
)
from fusedsl.schedulers.columns import ColumnParams, column_kernels
from fusedsl.schedulers.rows import RowParams, row_kernels
from fusedsl.schedulers.space import IterationSpace, iteration_space, vector_width

NAME = "reduction"

ReductionParams = RowParams | ColumnParams


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """One stage of agreeing reductions; nothing after them varies over the reduced loops."""
    found = find_reductions(graph)
    if not found.nodes:
        return Refusal("no_reduction_op", "the segment has no reduction")
    refusal = first_refusal(
        check_ops(graph), check_self_mapping(graph), check_agreement(graph), check_coverage(graph)
    )
    if refusal is not None:
        return refusal
    if len(found.stages) > 1:
        return Refusal("persistent_buffer", "a reduction depends on another one over the same loops: a persistent case")
    domains = domain_map(graph)
    for node in graph:
        after = found.stage[node.id] > 0 or node.id in graph.outputs
        if node.is_tensor and after and found.classes & set(domains.classes(node.id)):
            return Refusal("persistent_buffer", f"{node.name} varies over the reduced loops after the reduction")
    return None


def can_schedule_run_time(problem: Problem) -> Refusal | None:
    """argmax and argmin need loops in logical order."""
    return check_positions(iteration_space(problem))


def compute_heuristics(problem: Problem) -> ReductionParams:
    """Threads along the innermost loop; split the reduced loop when there are too few results to fill the device."""
    space = iteration_space(problem)
    if space.axes[-1].reduced:
        return _row_heuristics(space)
    return _column_heuristics(space)


def _pow2_at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _row_heuristics(space: IterationSpace) -> RowParams:
    last = len(space.axes) - 1
    extent = space.axes[last].extent
    vector = vector_width(space, last)
    chunks = max(-(-extent // vector), 1)
    threads = min(_pow2_at_least(chunks), 256)
    rows = max(128 // threads, 1) if space.kept else 1
    batch = min(max(_pow2_at_least(-(-chunks // threads)) // 2, 1), max(32 // vector, 1), 8)
    tile = threads * vector * batch
    count = space.size(space.kept)
    blocks = -(-count // rows)
    target = space.problem.device.multiprocessors * 4
    length = space.axes[space.reduced[0]].extent
    unit = tile if len(space.reduced) == 1 else 1
    split = 1
    if blocks < target // 4 and length >= 4 * unit:
        split = min(-(-length // (2 * unit)), -(-target // count), 1024)
    if split > 1:
        rows = 1
    return RowParams(threads, rows, vector, batch, storage="stream", prefetch=False, split=split)


def _column_heuristics(space: IterationSpace) -> ColumnParams:
    last = len(space.axes) - 1
    extent = space.axes[last].extent
    vector = vector_width(space, last)
    chunks = -(-extent // vector)
    threads = min(_pow2_at_least(chunks), 32)
    lines = 256 // threads
    batch = max(min(32 // vector, 8), 1)
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
    name = f"{problem.graph.name}_reduction"
    if isinstance(params, RowParams):
        return row_kernels(problem, params, name, NAME)
    return column_kernels(problem, params, name, NAME)
