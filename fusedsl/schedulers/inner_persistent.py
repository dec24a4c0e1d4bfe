# SPDX-License-Identifier: Apache-2.0
"""Normalisations along the innermost loop: results of reductions meet the row again (layer norm, softmax).

A row stays in registers from its one load to its store; longer rows in shared memory, of one block or of a cluster.
Rows that nothing holds are streamed: one pass a stage.
"""

from __future__ import annotations

import functools
import operator

import attrs
import torch

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.edges import downstream, upstream
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.base import KernelPlan, Problem, Refusal
from fusedsl.schedulers.checks import check_innermost, check_positions, check_row_used_again, check_structure
from fusedsl.schedulers.combine import SPELLINGS
from fusedsl.schedulers.joint import find_shifted_sums
from fusedsl.schedulers.names import kernel_name
from fusedsl.schedulers.peel import across_inputs, count_chunks, row_vector
from fusedsl.schedulers.row_params import ELEMENTS_PER_THREAD, RowParams, resident_row, shared_inputs
from fusedsl.schedulers.rows import row_kernels
from fusedsl.schedulers.space import IterationSpace, iteration_space, pow2_at_least, tile_limit, vector_width

NAME = "inner_persistent"

#: Up to this many inputs and outputs along the row the elements a thread holds were measured; beyond, registers are
#: counted.
MEASURED_TENSORS = 4
#: Cost of the arithmetic, an element, up to which a row's results are computed again from the inputs.
AGAIN_COST = 4
#: Elements that a thread holds of a row so (H200: 4 blocks of 256 threads a multiprocessor).
AGAIN_ELEMENTS = 32
#: Bytes of a row that a block keeps in shared memory before the row is spread over more blocks (H200, 6 blocks a
#: multiprocessor); twice as many before 16 blocks share it, which was faster with one weight only.
SHARED_PART = 32 << 10
#: Threads a multiprocessor holds where blocks share rows, and the least tiles of a block's part (not measured).
GRID_THREADS = 1024
GRID_TILES = 4
#: Most threads of a block that holds a row of two loops.
MAX_LINE_THREADS = 512


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """Agreeing reductions whose rows are needed again, or are outputs themselves."""
    return check_structure(graph) or check_row_used_again(graph)


def can_schedule_run_time(problem: Problem) -> Refusal | None:
    """The innermost loop in memory is reduced; rows that nothing holds are many enough to stream one a block."""
    space = iteration_space(problem)
    return check_innermost(space) or check_positions(space) or _check_blocks(problem, space)


def _check_blocks(problem: Problem, space: IterationSpace) -> Refusal | None:
    """A block a row leaves most of the GPU idle when few long rows are streamed: splitting the rows is faster."""
    rows, length = space.size(space.kept), space.size(space.reduced)
    long, few = 4 * problem.device.max_threads_per_sm, problem.device.multiprocessors
    params = compute_heuristics(problem)
    if rows >= few or length < long or params.storage != "stream" or params.grid > 1:
        return None
    reason = (
        f"{rows} rows of {length} elements fit no storage and leave most of the GPU idle when streamed; "
        f"from {long} elements on at least {few} rows are needed"
    )
    return Refusal("not_enough_blocks", reason)


def compute_heuristics(problem: Problem) -> RowParams:
    """Registers, short rows several to a block, then of a cluster; then shared memory, then streaming."""
    space = iteration_space(problem)
    last = len(space.axes) - 1
    extent = space.axes[last].extent
    held, tile = elements_per_thread(space), ELEMENTS_PER_THREAD
    if not _is_measured(space):
        held, tile = min(held, tile_limit(space)), min(tile, tile_limit(space))
    vector, peeled = row_vector(space, tile)
    chunks = count_chunks(extent, vector, peeled=peeled)
    beside = count_weights(space)
    again = len(space.reduced) == 1 and beside <= 2 and is_cheap_again(problem)
    if len(space.reduced) == 1 and _is_measured(space):
        held, tile = _preferred(space, held, tile, again=again)
        held = min(held, AGAIN_ELEMENTS) if peeled and beside else held  # weights lie across: two accesses each
    short = min(tile, ELEMENTS_PER_THREAD)
    if peeled and (len(space.reduced) > 1 or across_inputs(space, vector)):
        short //= 2  # loops that spell out two positions, or move weights, need registers
    if len(space.reduced) > 1:
        params = _lines(problem, space, tile, held) or _streamed(chunks, vector, short)
    elif extent <= 256 * held:
        params = resident_row(space, vector, tile, peeled=peeled)
    else:
        params = (
            _registers_of_cluster(problem, space, chunks, vector, held)
            or _shared(problem, space, chunks, vector, short)
            or _streamed(chunks, vector, short)
        )
    if params.storage == "register" and params.batch * vector > ELEMENTS_PER_THREAD:
        again = again and (params.cluster > 1 or beside == 2)
        params = attrs.evolve(params, again=again, prefetch=not (again and beside == 2))
    if peeled:
        return attrs.evolve(params, peeled=True, exact=False) if params.lines == 1 else params
    return (_over_grid(problem, space, params) if params.storage == "stream" else None) or params


def _over_grid(problem: Problem, space: IterationSpace, params: RowParams) -> RowParams | None:
    """Few long rows: shared by as many blocks as are resident at once; None if those would leave much of the GPU idle.

    A block may have 64 registers a thread, which one access a thread does not exceed.
    """
    device, rows = problem.device, space.size(space.kept)
    length, outer = space.size(space.reduced), space.axes[space.reduced[0]].extent
    if params.threads < 32 or rows >= device.multiprocessors or length < 4 * device.max_threads_per_sm:
        return None
    blocks = GRID_THREADS // params.threads
    tile = params.threads * params.vector
    pieces = outer if len(space.reduced) > 1 else outer // tile
    grid = min(device.multiprocessors * blocks // rows, pieces, length // (GRID_TILES * tile))
    if grid < 2 or rows * grid < device.multiprocessors // 2:
        return None
    return attrs.evolve(params, batch=1, grid=grid, min_blocks=blocks)


def _preferred(space: IterationSpace, held: int, tile: int, *, again: bool) -> tuple[int, int]:
    """Most elements of a thread, and how many before a row has more threads, as they were fastest (H200, bfloat16)."""
    graph = space.problem.graph
    weights, stores = count_weights(space), any(space.strides[i][-1] for i in graph.outputs)
    if again and weights:
        return (64, 32) if weights == 2 else (max(held, AGAIN_ELEMENTS), tile)
    if weights == 0 and held == 64:
        most = 32 if stores and space.problem.device.max_cluster > 1 else 64
        return most, 32 if stores else 64
    return held, tile


def elements_per_thread(space: IterationSpace) -> int:
    """Elements of a row that a thread of 256 may hold: fewer the more inputs take registers, and the wider they are.

    Measured on an H200 in bfloat16: of rows as computed 64 without weights (softmax), 32 with one (RMS norm), 8 with
    two (layer norm).
    """
    graph = space.problem.graph
    along = [i for i in graph.inputs if space.strides[i][-1]]
    weights = count_weights(space)
    rows = max(len(along) - weights, 1)
    held = {0: 64, 1: 32}.get(weights, 8) // rows
    wide = any(graph[i].tensor.dtype.itemsize > 2 for i in along)
    return max(held // 2 if wide else held, 8)


def _is_measured(space: IterationSpace) -> bool:
    """Whether kernels with so many tensors along the row, and so many values a row, were measured."""
    if len(space.reduced) > 1:
        return len(space.strides) <= MEASURED_TENSORS
    along = sum(1 for strides in space.strides.values() if strides[-1])
    return along <= MEASURED_TENSORS and len(space.strides) - along <= MEASURED_TENSORS


def count_weights(space: IterationSpace) -> int:
    """Inputs along the row that other rows share."""
    return sum(1 for i in space.problem.graph.inputs if space.strides[i][-1] and not all(space.strides[i]))


def is_cheap_again(problem: Problem) -> bool:
    """Whether what reductions read and the results need again can be computed twice from the inputs as they lie in
    memory: those are 16-bit floats, and there is little arithmetic. The exponentials of a softmax are kept."""
    graph = problem.graph
    if problem.numerics == "eager" or find_shifted_sums(graph):
        return False
    reductions = find_reductions(graph)
    read = functools.reduce(operator.or_, (upstream(graph)[n] for n in reductions.nodes), 0)
    late = functools.reduce(operator.or_, (downstream(graph)[n] for n in reductions.nodes), 0)
    varies = domain_map(graph).varies
    twice = [
        graph[n]
        for n in _before_results(graph)
        if read >> n & 1 and not late >> n & 1 and reductions.classes <= varies[n]
    ]
    inputs = [n for n in twice if OPS[n.op].kind is Kind.INPUT]
    arithmetic = [n for n in twice if OPS[n.op].kind not in (Kind.INPUT, Kind.CAST, Kind.REINDEX)]
    halves = all(n.tensor.dtype in (torch.bfloat16, torch.float16) for n in inputs)
    cheap = all(OPS[n.op].kind is Kind.POINTWISE for n in arithmetic)
    return bool(inputs) and halves and cheap and sum(OPS[n.op].cost for n in arithmetic) <= AGAIN_COST


def _before_results(graph: Graph) -> set[int]:
    """The tensors that outputs are computed from, up to results of reductions."""
    found: set[int] = set()
    stack = list(graph.outputs)
    while stack:
        current = stack.pop()
        if current not in found and graph[current].is_tensor and OPS[graph[current].op].kind is not Kind.REDUCTION:
            found.add(current)
            stack.extend(graph[current].inputs)
    return found


def _registers_of_cluster(
    problem: Problem, space: IterationSpace, chunks: int, vector: int, held: int
) -> RowParams | None:
    """Rows in the registers of up to 8 blocks of 256 threads; 32 elements a thread where that many blocks suffice."""
    if held < AGAIN_ELEMENTS or _needs_whole_row(problem):
        return None
    for cluster in (2, 4, 8):
        batch = -(-chunks // (256 * cluster))
        if cluster <= problem.device.max_cluster and batch * vector <= min(held, AGAIN_ELEMENTS):
            return RowParams(256, 1, vector, batch, exact=256 * cluster * batch == chunks, cluster=cluster)
    return None


def _lines(problem: Problem, space: IterationSpace, tile: int, held: int) -> RowParams | None:
    """Rows of two loops in registers: threads along both, a thread's batch along the outer one (not measured)."""
    pair = any(SPELLINGS[problem.graph[i].op].pair for i in find_reductions(problem.graph).nodes)
    if len(space.reduced) != 2 or pair:
        return None
    outer, last = (space.axes[axis].extent for axis in space.reduced)
    vector = min(vector_width(space, len(space.axes) - 1), tile)
    columns = pow2_at_least(-(-last // vector))
    for threads, most in ((64, tile), (128, tile), (256, tile), (256, held), (MAX_LINE_THREADS, held)):
        lines = threads // columns
        if lines > 1 and -(-outer // lines) * vector <= most:
            exact = columns * vector == last
            return RowParams(threads, 1, vector, -(-outer // lines), exact=exact, lines=lines)
    return None


def _streamed(chunks: int, vector: int, tile: int) -> RowParams:
    return RowParams(min(pow2_at_least(chunks), 512), 1, vector, max(tile // vector, 1), "stream")


def _shared(problem: Problem, space: IterationSpace, chunks: int, vector: int, tile: int) -> RowParams | None:
    """Rows in shared memory: 256 threads, and a cluster wide enough that several blocks fit a multiprocessor."""
    last = len(space.axes) - 1
    item = sum(problem.graph[i].tensor.dtype.itemsize for i in shared_inputs(space))
    narrow = any(problem.graph[i].tensor.dtype.itemsize * vector < 4 for i in shared_inputs(space))
    if item == 0 or narrow or any(space.strides[i][last] != 1 for i in shared_inputs(space)):
        return None
    threads, batch = (256, tile) if chunks * vector >= 8192 else (128, tile // 2)
    batch = max(batch // vector, 1)
    largest = problem.device.max_cluster if not _needs_whole_row(problem) else 1
    for cluster in (1, 2, 4, 8, 16):
        if cluster > largest:
            return None
        tiles = -(-chunks // (threads * batch * cluster))
        part_bytes = tiles * threads * batch * vector * item
        room = SHARED_PART * (2 if cluster == 8 and count_weights(space) != 1 else 1)
        if part_bytes <= (room if cluster < largest else problem.device.smem_per_block_optin - 4096):
            exact = tiles * threads * batch * cluster == chunks
            return RowParams(threads, 1, vector, batch, "shared", exact, cluster=cluster)
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
    return row_kernels(problem, params, kernel_name(problem.graph, NAME), NAME)
