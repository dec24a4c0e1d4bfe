# SPDX-License-Identifier: Apache-2.0
"""Normalisations along the innermost loop: results of reductions meet the row again (layer norm, softmax).

A row stays in registers from its one load to its store; longer rows in shared memory, of one block or of a cluster. Rows
that nothing holds are streamed: one pass a stage.
"""

from __future__ import annotations

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.persistent import find_persistent_buffers
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.base import KernelPlan, Problem, Refusal
from fusedsl.schedulers.checks import (
    check_agreement,
    check_coverage,
    check_ops,
    check_positions,
    check_self_mapping,
    first_refusal,
)
from fusedsl.schedulers.combine import SPELLINGS
from fusedsl.schedulers.rows import RowParams, row_kernels, shared_inputs
from fusedsl.schedulers.space import IterationSpace, iteration_space, vector_width

NAME = "inner_persistent"

#: Longest row that is held in registers, and the elements of it a thread holds.
REGISTER_ROW = 4096
ELEMENTS_PER_THREAD = 16
#: Bytes of a row that a block keeps in shared memory before the row is spread over more blocks (H200, 6 blocks a multiprocessor).
SHARED_PART = 32 << 10


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
    """16 elements a thread, short rows several to a block; longer rows in shared memory, then over a cluster, then streamed."""
    space = iteration_space(problem)
    last = len(space.axes) - 1
    extent = space.axes[last].extent
    vector = vector_width(space, last)
    chunks = max(-(-extent // vector), 1)
    if len(space.reduced) > 1:
        return _streamed(chunks, vector)
    if extent > REGISTER_ROW:
        return _shared(problem, space, chunks, vector) or _streamed(chunks, vector)
    threads = min(_pow2_at_least(chunks), 32)
    while -(-chunks // threads) * vector > ELEMENTS_PER_THREAD:
        threads *= 2
    batch = -(-chunks // threads)
    rows = max(64 // threads, 1) if space.kept else 1
    return RowParams(threads, rows, vector, batch, exact=threads * batch * vector == extent)


def _streamed(chunks: int, vector: int) -> RowParams:
    return RowParams(min(_pow2_at_least(chunks), 512), 1, vector, max(16 // vector, 1), "stream", prefetch=False)


def _shared(problem: Problem, space: IterationSpace, chunks: int, vector: int) -> RowParams | None:
    """Rows in shared memory: 256 threads, and a cluster wide enough that several blocks fit a multiprocessor."""
    last = len(space.axes) - 1
    item = sum(problem.graph[i].tensor.dtype.itemsize for i in shared_inputs(space))
    narrow = any(problem.graph[i].tensor.dtype.itemsize * vector < 4 for i in shared_inputs(space))
    if item == 0 or narrow or any(space.strides[i][last] != 1 for i in shared_inputs(space)):
        return None
    threads, batch = 256, max(16 // vector, 1)
    largest = problem.device.max_cluster if not _needs_whole_row(problem) else 1
    for cluster in (1, 2, 4, 8, 16):
        if cluster > largest:
            return None
        tiles = -(-chunks // (threads * batch * cluster))
        part_bytes = tiles * threads * batch * vector * item
        if part_bytes <= (SHARED_PART if cluster < largest else problem.device.smem_per_block_optin - 4096):
            exact = tiles * threads * batch * cluster == chunks
            return RowParams(threads, 1, vector, batch, "shared", exact, prefetch=False, cluster=cluster)
    return None


def _needs_whole_row(problem: Problem) -> bool:
    """Reductions whose partial results cannot be sent as 4-byte words stay within a block."""
    graph = problem.graph
    for node_id in find_reductions(graph).nodes:
        dtype = compute_dtype(graph[graph[node_id].inputs[0]].tensor.dtype)
        if SPELLINGS[graph[node_id].op].pair or dtype.itemsize != 4:
            return True
    return False


def schedule(problem: Problem, params: RowParams) -> KernelPlan:
    """One launch."""
    return row_kernels(problem, params, f"{problem.graph.name}_inner_persistent", NAME)
