# SPDX-License-Identifier: Apache-2.0
"""Normalisations along outer loops: the innermost loop in memory is kept and results of reductions meet the columns
again (batch norm of channels-last data and its gradient, standardised columns).

Few columns are shared by blocks that wait for each other, so that all multiprocessors work and memory is read once as
far as shared memory and the L2 cache hold the tensor.
"""

from __future__ import annotations

import attrs

from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.base import KernelPlan, Problem, Refusal
from fusedsl.schedulers.checks import check_positions, check_row_used_again, check_structure
from fusedsl.schedulers.column_params import (
    PersistentColumnParams,
    column_inputs,
    part_bytes,
    part_lines,
    passes,
    resident_inputs,
    share_rows,
)
from fusedsl.schedulers.columns import count_column_blocks
from fusedsl.schedulers.columns_persistent import persistent_column_kernel
from fusedsl.schedulers.names import kernel_name
from fusedsl.schedulers.space import IterationSpace, iteration_space, pow2_at_least, vector_width

NAME = "outer_persistent"

THREADS = 512
#: Rows of a thread's tile at most.
BATCH = 8
#: Elements that the full tensors of a kernel have in a thread's tiles together: few if tiles gather in as many
#: registers, more where the rows of a tile are added one after another.
ELEMENTS, ADDED_ELEMENTS = 64, 128
#: Bytes a block reads of a row, if the row has them. Wider blocks have more partial results to read after the barrier:
#: those of all their columns, from all the blocks that share these.
ROW_BYTES = 256
#: Bytes that a multiprocessor keeps on their way while it works on others; the rate times the latency is about 40 KB.
COPY_BYTES = 48 << 10
#: Chunks of rows that shared memory holds at least, if they are smaller for it.
PLACES = 3
#: Static shared memory that parts of columns may take.
PARTS_BYTES = 40 << 10
#: Tensors smaller than this are not worth a barrier of all blocks.
SMALL_BYTES = 2 << 20


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """Agreeing reductions whose columns are needed again, or are outputs themselves."""
    return check_structure(graph) or check_row_used_again(graph)


def can_schedule_run_time(problem: Problem) -> Refusal | None:
    """The innermost loop in memory is kept, the reduced loops lie as one, and their parts fit shared memory."""
    space = iteration_space(problem)
    if space.axes[-1].reduced:
        return Refusal("type_mismatch", "the innermost loop in memory is reduced; this scheduler keeps it")
    if len(space.reduced) != 1:
        return Refusal("layout", "the reduced loops do not lie in memory as one loop")
    return check_positions(space)


def compute_heuristics(problem: Problem) -> PersistentColumnParams:
    """512 threads; blocks that share columns where there are fewer columns than multiprocessors can work on."""
    space = iteration_space(problem)
    last = len(space.axes) - 1
    (row,) = space.reduced
    rows, columns = space.axes[row].extent, space.axes[last].extent
    held = _elements(space)
    vector = min(vector_width(space, last), held)
    batch = min(BATCH, held // vector, pow2_at_least(rows))
    chunks = -(-columns // vector)
    deep = pow2_at_least(-(-rows // batch))
    item = max((problem.graph[i].tensor.dtype.itemsize for i in resident_inputs(space)), default=1)
    best: tuple[tuple[int, int], PersistentColumnParams] | None = None
    for wide in (32, 16, 8):
        threads = min(max(wide, THREADS // deep), pow2_at_least(chunks))
        lines = min(THREADS // threads, deep, _most_lines(space, threads, vector))
        found = PersistentColumnParams(threads, lines, vector, batch, exact=chunks % threads == 0)
        found = attrs.evolve(found, blocks=_blocks(space, found))
        used = min(count_column_blocks(space, found.columns) * found.blocks, problem.device.multiprocessors * 19 // 20)
        score = used, min(threads * vector * item, ROW_BYTES)
        if best is None or score >= best[0]:
            best = score, found
    assert best is not None
    return _with_copies(space, best[1])


def _elements(space: IterationSpace) -> int:
    """Elements of a tile, a power of two: fewer the more tensors there are, and the wider their arithmetic is."""
    (row,) = space.reduced
    graph = space.problem.graph
    full = sum(1 for strides in space.strides.values() if strides[row])
    shared = sum(1 for i in column_inputs(space)) - 4
    wide = any(compute_dtype(graph[i].tensor.dtype).itemsize > 4 for i in space.strides)
    adds = all(graph[i].op == "sum" for i in find_reductions(graph).nodes)
    held = ((ADDED_ELEMENTS if adds else ELEMENTS) - 4 * max(shared, 0)) // (max(full, 1) * (2 if wide else 1))
    return 1 << (max(held, 1).bit_length() - 1)


def _blocks(space: IterationSpace, params: PersistentColumnParams) -> int:
    """Blocks that share a column: as many as are resident at once and have some rows each."""
    rows = space.axes[space.reduced[0]].extent
    graph = space.problem.graph
    row_bytes = sum(graph[i].tensor.dtype.itemsize for i in resident_inputs(space))
    if rows * space.size(space.kept) * row_bytes < SMALL_BYTES:
        return 1
    blocks = space.problem.device.multiprocessors // count_column_blocks(space, params.columns)
    blocks = max(min(blocks, rows // params.chunk), 1)
    return -(-rows // -(-rows // blocks))


def _most_lines(space: IterationSpace, threads: int, vector: int) -> int:
    """Lines whose parts of so many columns fit static shared memory, a power of two."""
    lines = THREADS // threads
    while lines > 1:
        params = PersistentColumnParams(threads, lines, vector)
        if part_bytes(space.problem) * params.columns * part_lines(params) <= PARTS_BYTES:
            break
        lines //= 2
    return lines


def _with_copies(space: IterationSpace, params: PersistentColumnParams) -> PersistentColumnParams:
    """With as many of a share's rows in shared memory as it holds, or as are on their way in a kernel of one pass."""
    problem, inputs = space.problem, resident_inputs(space)
    sizes = [problem.graph[i].tensor.dtype.itemsize for i in inputs]
    packed = all(space.strides[i][len(space.axes) - 1] == 1 for i in inputs)
    if not sizes or not packed or min(sizes) * params.vector < 4:
        return params
    parts = part_bytes(problem) * params.columns * part_lines(params) + 8 * params.lines
    room = problem.device.smem_per_block_optin - parts - 1024
    while params.batch > 1 and params.chunk * params.columns * sum(sizes) * PLACES > room:
        params = attrs.evolve(params, batch=params.batch // 2)
    chunk_bytes = params.chunk * params.columns * sum(sizes)
    most = min(room // chunk_bytes, -(-share_rows(space, params) // params.chunk))
    stages = min(-(-COPY_BYTES // chunk_bytes) + 1, most)
    places = most if passes(space) > 1 else stages
    return attrs.evolve(params, resident=places * params.chunk, stages=max(stages, 1))


def schedule(problem: Problem, params: PersistentColumnParams) -> KernelPlan:
    """One launch."""
    return persistent_column_kernel(problem, params, kernel_name(problem.graph, NAME), NAME)
