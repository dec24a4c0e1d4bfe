# SPDX-License-Identifier: Apache-2.0
"""Normalisations along the innermost loop: results of reductions meet the row again (layer norm, softmax).

A row stays in registers from its one load to its store. Rows that registers cannot hold are streamed: one pass a stage.
"""

from __future__ import annotations

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.persistent import find_persistent_buffers
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
from fusedsl.schedulers.rows import RowParams, row_kernels
from fusedsl.schedulers.space import iteration_space, vector_width

NAME = "inner_persistent"

#: Elements of a row that one thread may hold in registers, by the number of values it keeps of each element.
MAX_ELEMENTS_PER_THREAD = 32
MAX_THREADS = 1024


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """Agreeing reductions whose rows are needed again, or are outputs themselves."""
    found = find_reductions(graph)
    if not found.nodes:
        return Refusal("no_reduction_op", "the segment has no reduction")
    refusal = first_refusal(
        check_ops(graph), check_self_mapping(graph), check_agreement(graph), check_coverage(graph)
    )
    if refusal is not None:
        return refusal
    domains = domain_map(graph)
    full_outputs = any(found.classes & set(domains.classes(output)) for output in graph.outputs)
    if not full_outputs and not find_persistent_buffers(graph):
        return Refusal("no_persistent_buffer", "no value of the row is needed after a reduction of it")
    return None


def can_schedule_run_time(problem: Problem) -> Refusal | None:
    """The innermost loop in memory is reduced."""
    space = iteration_space(problem)
    if not space.axes[-1].reduced:
        return Refusal("type_mismatch", "the innermost loop in memory is kept; this scheduler reduces the innermost loop")
    return check_positions(space)


def _pow2_at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def compute_heuristics(problem: Problem) -> RowParams:
    """Threads so that each holds 8 to 32 elements; several short rows a block; streamed when registers do not suffice."""
    space = iteration_space(problem)
    last = len(space.axes) - 1
    extent = space.axes[last].extent
    vector = vector_width(space, last)
    chunks = max(-(-extent // vector), 1)
    if len(space.reduced) > 1 or extent > MAX_THREADS * MAX_ELEMENTS_PER_THREAD:
        threads = min(_pow2_at_least(chunks), 512)
        batch = max(16 // vector, 1)
        return RowParams(threads, 1, vector, batch, resident=False, prefetch=False)
    threads = min(_pow2_at_least(chunks), 32)
    while threads < MAX_THREADS and -(-chunks // threads) * vector > (8 if threads < 128 else 16 if threads < 256 else 32):
        threads *= 2
    batch = -(-chunks // threads)
    rows = max(128 // threads, 1) if space.kept else 1
    return RowParams(threads, rows, vector, batch, exact=threads * batch * vector == extent)


def schedule(problem: Problem, params: RowParams) -> KernelPlan:
    """One launch."""
    return row_kernels(problem, params, f"{problem.graph.name}_inner_persistent", NAME)
