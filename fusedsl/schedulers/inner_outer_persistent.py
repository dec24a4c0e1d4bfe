# SPDX-License-Identifier: Apache-2.0
"""Normalisation gradients: reductions of every row, and beside them sums over all rows (weight and bias gradients).

Every block walks over rows with its columns fixed to its threads: a row is read once, its results are stored, and the
outer sums gather in registers. Each block hands on one row of partial sums; a second kernel adds these in a fixed
order, so two runs give equal bits and no block waits for another.
"""

from __future__ import annotations

import attrs
import torch

from fusedsl.analysis.patterns import check_inner_outer
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import compute_dtype
from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.ahead import Ahead, load_ahead, take_ahead
from fusedsl.schedulers.base import KernelPlan, Launch, Problem, Refusal, Workspace
from fusedsl.schedulers.checks import check_ops, check_self_mapping
from fusedsl.schedulers.columns import ColumnParams
from fusedsl.schedulers.combine import Reducer, Single, combine_in_block
from fusedsl.schedulers.emit import Emitter
from fusedsl.schedulers.halves import Halves, cut
from fusedsl.schedulers.inner_outer_shared import SharedRows, fit_shared, row_cost, shared_rows_kernel
from fusedsl.schedulers.names import kernel_name
from fusedsl.schedulers.outer_sums import finish, packed
from fusedsl.schedulers.peel import count_chunks, row_vector
from fusedsl.schedulers.row_params import RowParams
from fusedsl.schedulers.row_writer import RowWriter
from fusedsl.schedulers.space import IterationSpace, iteration_space, pow2_at_least, vector_width
from fusedsl.schedulers.text import dtype_marker

NAME = "inner_outer_persistent"

MAX_THREADS = 512
#: Elements of a row a thread has, in the order of preference; the first that serves is taken.
ELEMENTS = (8, 16, 4, 2, 1)
#: Threads that a multiprocessor should hold, and the estimate of registers up to which nothing was seen to spill then.
RESIDENT = ((1024, 71), (768, 84), (640, 100), (512, 126))
#: Rows that so few threads hold with so many elements each, two blocks a multiprocessor (H200, layer norm of 4096
#: columns: 3410 GB/s, 2971 with 512 threads).
FEW_THREADS, MANY_ELEMENTS, MANY_VECTOR, MANY_REGISTERS = 128, 32, 4, 220
#: Cost of a row's arithmetic, an element, beyond which that takes registers of its own (a norm alone costs 7 to 9), and
#: how many an element.
COSTLY = 20
COSTLY_REGISTERS = 4.5
#: Elements of outer sums a thread has from which on what all rows share is read again with each row, from the caches.
LARGE_SUMS = 32


@attrs.frozen
class InnerOuterParams:
    """What decides the kernels.

    Attributes:
        row: the kernel over rows (one row a block, in registers; or in shared memory of a block or a cluster).
        outer: the kernels that add the partial sums.
        blocks: blocks, or clusters of them, of the first kernel: the rows of partial sums; not part of any text.
    """

    row: RowParams | SharedRows
    outer: ColumnParams
    blocks: int


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """Reductions over the row and, complementary to them, sums over the rows whose results only leave."""
    if cut(graph) is None:
        unlike = Refusal("layout", "not reductions of rows beside sums over all rows whose results only leave")
        return check_inner_outer(graph) or unlike
    return check_ops(graph) or check_self_mapping(graph)


def can_schedule_run_time(problem: Problem) -> Refusal | None:
    """The row is innermost and one loop, short enough for registers, and there are rows for the multiprocessors."""
    halves = _cut(problem)
    rows = _row_problem(problem, halves)
    space = iteration_space(rows)
    if len(space.reduced) != 1 or not space.axes[-1].reduced:
        return Refusal("layout", "the rows do not lie along the innermost loop as a whole")
    targets = rows.graph.outputs[halves.stored :]
    if any(not space.strides[t][-1] or len(space.strides[t]) < 2 for t in targets):
        return Refusal("layout", "a sum over rows does not vary along the row")
    count = space.size(space.kept)
    if count < problem.device.multiprocessors // 8:
        return Refusal("not_enough_rows", f"{count} rows for {problem.device.multiprocessors} multiprocessors")
    if _fit(space, halves) is None and fit_shared(space, halves) is None:
        longest = MAX_THREADS * max((n for n in ELEMENTS if _resident_threads(space, halves, n)), default=0)
        reason = f"rows of {space.axes[-1].extent} elements; registers hold {longest}, shared memory not these"
        return Refusal("row_length", reason)
    return None


def _width(space: IterationSpace, held: int) -> tuple[int, bool]:
    """Elements of an access, and whether rows are peeled: only along one loop, see `_rows_kernel`."""
    if len(space.kept) > 1:
        return min(vector_width(space, len(space.axes) - 1), held), False
    return row_vector(space, held)


def _cut(problem: Problem) -> Halves:
    halves = cut(problem.graph)
    assert halves is not None, "asked about a graph that was refused"
    return halves


def _registers(space: IterationSpace, halves: Halves, elements: int) -> float:
    """An estimate of a thread's registers, made for gradients of norms (nvJitLink 13.5): the next row's inputs as they
    lie in memory, the outer sums, and what the row's arithmetic takes."""
    graph, last = space.problem.graph, len(space.axes) - 1
    full = [i for i in graph.inputs if all(space.strides[i])]
    scalars = sum(1 for i in graph.inputs if not space.strides[i][last])
    word = max((compute_dtype(graph[i].tensor.dtype).itemsize for i in graph.inputs), default=4) / 4
    ahead = sum(graph[i].tensor.dtype.itemsize for i in full) / 4
    costly = COSTLY_REGISTERS if row_cost(space) > COSTLY else 0
    arithmetic = (1.1 * word if word > 1 else 1) * (len(halves.sums) + 2.5 + costly + max(len(full) - 2, 0))
    return 32 + 2 * scalars + elements * (1.1 * ahead + arithmetic)


def _resident_threads(space: IterationSpace, halves: Halves, elements: int) -> int:
    """Threads a multiprocessor holds if each has so many elements; 0: the registers of a thread do not hold them."""
    needed = _registers(space, halves, elements)
    return next((threads for threads, registers in RESIDENT if needed <= registers), 0)


@attrs.frozen
class Fit:
    """How registers hold rows.

    Attributes:
        elements: of a thread.
        resident: threads a multiprocessor holds.
        vector: elements of an access.
        peeled: see :class:`~fusedsl.schedulers.row_params.RowParams`.
    """

    elements: int
    resident: int
    vector: int
    peeled: bool


def _fit(space: IterationSpace, halves: Halves) -> Fit | None:
    """How registers hold the rows; None if they do not."""
    if _suits_few_threads(space, halves):
        return Fit(MANY_ELEMENTS, 2 * FEW_THREADS, MANY_VECTOR, peeled=False)
    for elements in ELEMENTS:
        resident = _resident_threads(space, halves, elements)
        vector, peeled = _width(space, elements)
        if peeled:  # edges take registers
            resident = min(resident, 512)
        held = count_chunks(space.axes[-1].extent, vector, peeled=peeled) * vector
        if resident and held <= MAX_THREADS * elements:
            return Fit(elements, resident, vector, peeled)
    return None


def _suits_few_threads(space: IterationSpace, halves: Halves) -> bool:
    """Whether few threads with many elements each take the rows, and registers suffice."""
    most = FEW_THREADS * MANY_ELEMENTS
    vector, peeled = _width(space, MANY_VECTOR)
    if len(halves.sums) < 2 or not most // 2 < space.axes[-1].extent <= most or vector < MANY_VECTOR or peeled:
        return False
    return _registers(space, halves, MANY_ELEMENTS) <= MANY_REGISTERS


def _row_problem(problem: Problem, halves: Halves) -> Problem:
    """The problem of the kernel over rows; the values that outer sums add up count as packed outputs."""
    layouts = {}
    for node_id in (*halves.rows.inputs, *halves.rows.outputs):
        origin = halves.row_origin[node_id]
        layouts[node_id] = problem.layouts[origin] if origin in problem.layouts else packed(problem, origin)
    return attrs.evolve(problem, graph=halves.rows, layouts=layouts)


def compute_heuristics(problem: Problem) -> InnerOuterParams:
    """8 elements a thread, 16 for rows that 512 threads would not hold, longer ones in shared memory; as many blocks as
    are resident at once."""
    halves = _cut(problem)
    rows = _row_problem(problem, halves)
    space = iteration_space(rows)
    extent = space.axes[-1].extent
    fit = _fit(space, halves)
    columns = min(pow2_at_least(extent), 16)
    if fit is None:
        shared = fit_shared(space, halves)
        assert shared is not None, "asked about a problem that was refused"
        walkers = problem.device.resident_clusters(shared.cluster, shared.min_blocks)
        outer = ColumnParams(columns, (512 if walkers > 128 else 128) // columns, 1, 1)
        return InnerOuterParams(shared, outer, min(space.size(space.kept), walkers))
    outer = ColumnParams(columns, 512 // columns, 1, 1)
    vector, peeled = fit.vector, fit.peeled
    chunks = count_chunks(extent, vector, peeled=peeled)
    threads = max(min(pow2_at_least(chunks), 32), 1)
    while threads < MAX_THREADS and -(-chunks // threads) * vector > fit.elements:
        threads *= 2
    batch = -(-chunks // threads)
    min_blocks = min(fit.resident // max(threads, 32), 32)
    exact = not peeled and threads * batch * vector == extent
    row = RowParams(threads, 1, vector, batch, exact=exact, min_blocks=min_blocks, peeled=peeled)
    blocks = problem.device.multiprocessors * min_blocks
    if peeled:
        blocks = -(-blocks // vector) * vector
    blocks = min(space.size(space.kept), blocks)
    return InnerOuterParams(row, outer, blocks)


def schedule(problem: Problem, params: InnerOuterParams) -> KernelPlan:
    """The rows with partial sums, then a launch for all sums of these whose loops agree."""
    halves = _cut(problem)
    rows = _row_problem(problem, halves)
    name, blocks = kernel_name(problem.graph, NAME), params.blocks
    if isinstance(params.row, SharedRows):
        launch, workspaces = shared_rows_kernel(rows, halves, params.row, blocks, name, NAME)
    else:
        launch, workspaces = _rows_kernel(rows, halves, params.row, blocks, name)
    launches = [launch.renumbered(halves.row_origin), *finish(problem, halves, params.outer, blocks, NAME)]
    return KernelPlan(tuple(launches), workspaces)


def _rows_kernel(
    problem: Problem, halves: Halves, p: RowParams, blocks: int, name: str
) -> tuple[Launch, tuple[Workspace, ...]]:
    """The kernel over rows, and the buffers of its partial sums.

    Peeled rows of a block begin alike, since they are a multiple of ``vector`` rows apart (or there is one): so a
    thread's columns are fixed then, too.
    """
    stored, targets = problem.graph.outputs[: halves.stored], problem.graph.outputs[halves.stored :]
    w = RowWriter(problem, p, name, (f"{problem.graph.name}: {NAME}", str(p)))
    e = w.emitter(name)
    if p.peeled:
        assert blocks % p.vector == 0 or blocks >= w.rows, "a block's rows must begin alike"
        e.locate(w.space.kept, "block_x()")
        w.locate_chunks(e)
    w.locate_column(e, None)
    if len(targets) * p.tile < LARGE_SUMS * p.threads:
        _load_shared(w, e)
    count = e.constant("TILE", e.tile.numel)
    sums = [e.fresh(f"{problem.graph[t].name}_sum") for t in targets]
    dtypes = [compute_dtype(problem.graph[t].tensor.dtype) for t in targets]
    for text, dtype in zip(sums, dtypes, strict=True):
        e.line(f"{text} = full({count}, 0, {dtype_marker(dtype)})")
    rows = e.integer("rows", w.rows)
    warps = p.threads > 32
    if warps:
        e.line("turn = 0")
    ahead = {} if p.peeled else _first_row(w, e, rows)
    with e.block(f"for row in range(block_x(), {rows}, grid_x()):"):
        if not p.peeled:
            _next_row(w, e, ahead, rows)
        e.locate(w.space.kept, "row")
        if p.peeled:  # edges take the registers that a row loaded ahead would need
            _load_now(w, e)
        _one_row(w, e, stored, "turn" if warps else None)
        for target, text in zip(targets, sums, strict=True):
            e.line(f"{text} = {text} + {e.tile_of(target, count)}")
        if warps:
            e.line("turn = 1 - turn")
    workspaces = _store_sums(w, e, dict(zip(sums, dtypes, strict=True)), blocks)
    geometry = Geometry((blocks, 1, 1), (p.threads, 1, 1))
    return e.launch(e.source(p.threads, p.min_blocks), geometry), workspaces


def _store_sums(w: RowWriter, e: Emitter, sums: dict[str, torch.dtype], blocks: int) -> tuple[Workspace, ...]:
    """Store the block's partial sums; the buffers they go to."""
    last = len(w.space.axes) - 1
    batch, step = e.constant("BATCH", w.params.batch), e.constant("STEP", w.params.step)
    vector, place = e.constant("VECTOR", w.params.vector), f"block_x() * {e.extent(last)}"
    for index, (text, dtype) in enumerate(sums.items()):
        pointer, chunks = e.workspace(index, dtype), text
        if e.edge is not None:
            edge = e.constant("EDGE", e.tile.numel - 1)
            e.line(f"store({pointer}, {place} + {e.edge.column}, {e.edge.limit}, take({text}, {edge}, 1), 1, 1, 1)")
            chunks = f"take({text}, 0, {edge})"
        e.line(f"store({pointer}, {place} + col, {e.limit}, {chunks}, {batch}, {step}, {vector})")
    return tuple(Workspace(dtype, blocks * w.space.axes[last].extent) for dtype in sums.values())


def _load_shared(w: RowWriter, e: Emitter) -> None:
    """Load what all rows share."""
    last = len(w.space.axes) - 1
    for node_id in e.graph.inputs:
        if w.space.strides[node_id][last] and not any(w.space.strides[node_id][:last]):
            e.prefetch(node_id)


def _load_now(w: RowWriter, e: Emitter) -> None:
    """Load a row's inputs."""
    for node_id in e.graph.inputs:
        if all(w.space.strides[node_id]) and e.graph.users()[node_id]:
            e.prefetch(node_id)


def _first_row(w: RowWriter, e: Emitter, rows: str) -> Ahead:
    """Load the block's first row: the variables of its inputs."""
    last = len(w.space.axes) - 1
    inputs = [i for i in e.graph.inputs if any(w.space.strides[i][:last]) and e.graph.users()[i]]
    with e.block():
        e.locate(w.space.kept, f"min(block_x(), {rows} - 1)")
        return load_ahead(e, inputs)


def _next_row(w: RowWriter, e: Emitter, ahead: Ahead, rows: str) -> None:
    """Take the row that was loaded and load the block's next one, if there is one."""
    take_ahead(e, ahead)
    e.line("ahead = row + grid_x()")
    e.line(f"more = ahead < {rows}")
    e.line("ahead = ahead if more else row")
    e.line(f"room = {e.extent(len(w.space.axes) - 1)} - col if more else 0")
    with e.block():
        e.locate(w.space.kept, "ahead")
        limit, e.limit = e.limit, "room"
        load_ahead(e, ahead, ahead)
        e.limit = limit


def _one_row(w: RowWriter, e: Emitter, stored: tuple[int, ...], turn: str | None) -> None:
    """Reduce a row and store its results."""
    for stage in w.reductions.stages:
        items = []
        for node_id in stage:
            reducer = Reducer(e, e.graph[node_id])
            operand = reducer.operand(e.constant("TILE", e.tile.numel), w.mask(e))
            items.append(Single(reducer, reducer.once(operand, w.positions(e, reducer))))
        combine_in_block(e, list(items), w.params.threads, turn=turn)
    for node_id in dict.fromkeys(stored):
        if w.is_full(node_id):
            e.store(node_id)
    w.row_outputs(e, stored)
