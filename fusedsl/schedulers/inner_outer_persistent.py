# SPDX-License-Identifier: Apache-2.0
"""Normalisation gradients: reductions of every row, and beside them sums over all rows (weight and bias gradients).

Every block walks over rows with its columns fixed to its threads: a row is read once, its results are stored, and the
outer sums gather in registers. Each block hands on one row of partial sums; a kernel a sum adds these in a fixed order,
so two runs give equal bits and no block waits for another.
"""

from __future__ import annotations

import attrs

from fusedsl.graph.graph import Graph
from fusedsl.graph.types import compute_dtype
from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.base import (
    Argument,
    KernelPlan,
    Launch,
    Layout,
    Problem,
    Refusal,
    ScalarArgument,
    TensorArgument,
    Workspace,
    WorkspaceArgument,
)
from fusedsl.schedulers.checks import check_ops, check_self_mapping
from fusedsl.schedulers.columns import ColumnParams, column_kernels
from fusedsl.schedulers.combine import Reducer, Single
from fusedsl.schedulers.emit import Emitter
from fusedsl.schedulers.halves import Halves, OuterSum, cut
from fusedsl.schedulers.names import kernel_name
from fusedsl.schedulers.peel import count_chunks, row_vector
from fusedsl.schedulers.row_params import RowParams
from fusedsl.schedulers.row_writer import RowWriter
from fusedsl.schedulers.space import IterationSpace, iteration_space, pow2_at_least, vector_width
from fusedsl.schedulers.text import dtype_marker

NAME = "inner_outer_persistent"

#: Registers that the row's inputs and the outer sums of a thread may take together.
ELEMENT_REGISTERS = 64
MAX_THREADS = 1024
#: The edges take registers, of which 1024 threads have 64 each.
MAX_PEELED_THREADS = 512


@attrs.frozen
class InnerOuterParams:
    """What decides the kernels.

    Attributes:
        row: the kernel over rows (one row a block, in registers).
        outer: the kernels that add the partial sums.
        blocks: blocks of the first kernel, the rows of partial sums; not part of any text.
    """

    row: RowParams
    outer: ColumnParams
    blocks: int


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """Reductions over the row and, complementary to them, sums over the rows whose results only leave."""
    if cut(graph) is None:
        return Refusal("layout", "not reductions of rows beside sums over all rows whose results only leave")
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
    held = _elements_per_thread(rows.graph, halves)
    extent = space.axes[-1].extent
    vector, peeled = _width(space, held)
    most = (MAX_PEELED_THREADS if peeled else MAX_THREADS) * held
    if (extent // vector * vector if peeled else extent) > most:
        return Refusal("row_length", f"rows of {extent} elements; registers hold {most}")
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


def _elements_per_thread(rows: Graph, halves: Halves) -> int:
    """Elements of a row a thread holds: the inputs of the row and the outer sums share its registers."""
    full = sum(1 for i in rows.inputs if rows[i].tensor.rank == max(rows[j].tensor.rank for j in rows.inputs))
    values = full + len(rows.outputs) - halves.stored
    wide = any(compute_dtype(rows[i].tensor.dtype).itemsize > 4 for i in rows.inputs)
    held = ELEMENT_REGISTERS // (values * (2 if wide else 1))
    return max(1 << (max(held, 1).bit_length() - 1), 1)


def _row_problem(problem: Problem, halves: Halves) -> Problem:
    """The problem of the kernel over rows; the values that outer sums add up count as packed outputs."""
    layouts = {}
    for node_id in (*halves.rows.inputs, *halves.rows.outputs):
        origin = halves.row_origin[node_id]
        layouts[node_id] = problem.layouts[origin] if origin in problem.layouts else _packed(problem, origin)
    return attrs.evolve(problem, graph=halves.rows, layouts=layouts)


def _packed(problem: Problem, node_id: int) -> Layout:
    """A row-major layout of a value that is not stored."""
    sizes = problem.sizes()
    shape = tuple(e if isinstance(e, int) else sizes[e] for e in problem.graph[node_id].tensor.shape)
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return Layout(shape, tuple(strides))


def compute_heuristics(problem: Problem) -> InnerOuterParams:
    """As few threads as hold a row, and blocks for about 1024 threads a multiprocessor."""
    halves = _cut(problem)
    rows = _row_problem(problem, halves)
    space = iteration_space(rows)
    extent = space.axes[-1].extent
    held = _elements_per_thread(rows.graph, halves)
    vector, peeled = _width(space, held)
    chunks = count_chunks(extent, vector, peeled=peeled)
    threads = max(min(pow2_at_least(chunks), 32), 1)
    while threads < MAX_THREADS and -(-chunks // threads) * vector > held:
        threads *= 2
    batch = -(-chunks // threads)
    exact = not peeled and threads * batch * vector == extent
    row = RowParams(threads, 1, vector, batch, exact=exact, peeled=peeled)
    blocks = problem.device.multiprocessors * max(1024 // max(threads, 128), 1)
    if peeled:
        blocks = -(-blocks // vector) * vector
    blocks = min(space.size(space.kept), blocks)
    columns = min(pow2_at_least(extent), 32)
    return InnerOuterParams(row, ColumnParams(columns, 256 // columns, 1, 2), blocks)


def schedule(problem: Problem, params: InnerOuterParams) -> KernelPlan:
    """The rows with partial sums, then a launch a sum of these."""
    halves = _cut(problem)
    rows = _row_problem(problem, halves)
    launch, workspaces = _rows_kernel(rows, halves, params, kernel_name(problem.graph, NAME))
    launches = [_moved(launch, halves.row_origin, None)]
    for index, outer in enumerate(halves.sums):
        asked = _outer_problem(problem, outer, params.blocks)
        finish = column_kernels(asked, params.outer, kernel_name(asked.graph, "sum"), NAME)
        launches += [_moved(x, outer.origin, WorkspaceArgument(index)) for x in finish.launches]
    return KernelPlan(tuple(launches), workspaces)


def _moved(launch: Launch, origin: tuple[int, ...], partial: WorkspaceArgument | None) -> Launch:
    """Arguments that name nodes of the segment, and the buffer ``partial`` for node 0."""

    def moved(argument: Argument) -> Argument:
        if partial is not None and isinstance(argument, TensorArgument) and argument.node == 0:
            return partial
        if isinstance(argument, (TensorArgument, ScalarArgument)):
            return attrs.evolve(argument, node=origin[argument.node])
        return argument

    return attrs.evolve(launch, arguments=tuple(moved(a) for a in launch.arguments))


def _outer_problem(problem: Problem, outer: OuterSum, blocks: int) -> Problem:
    """The problem of adding the partial sums of ``blocks`` blocks."""
    layouts = {n: problem.layouts[outer.origin[n]] for n in (*outer.graph.inputs[1:], *outer.graph.outputs)}
    result = _packed(problem, outer.origin[0])
    first = result.strides[0] * result.shape[0] if result.shape else 1
    layouts[0] = Layout((blocks, *result.shape), (first, *result.strides))
    return attrs.evolve(problem, graph=outer.graph, layouts=layouts)


def _rows_kernel(
    problem: Problem, halves: Halves, params: InnerOuterParams, name: str
) -> tuple[Launch, tuple[Workspace, ...]]:
    """The kernel over rows, and the buffers of its partial sums.

    Peeled rows of a block begin alike, since they are a multiple of ``vector`` rows apart (or there is one): so a
    thread's columns are fixed then, too.
    """
    p = params.row
    stored, targets = problem.graph.outputs[: halves.stored], problem.graph.outputs[halves.stored :]
    w = RowWriter(problem, p, name, (f"{problem.graph.name}: {NAME}", str(p)))
    e = w.emitter(name)
    last = len(w.space.axes) - 1
    if p.peeled:
        assert params.blocks % p.vector == 0 or params.blocks >= w.rows, "a block's rows must begin alike"
        e.locate(w.space.kept, "block_x()")
        w.locate_chunks(e)
    w.locate_column(e, None)
    for node_id in problem.graph.inputs:
        if w.space.strides[node_id][last] and not any(w.space.strides[node_id][:last]):
            e.prefetch(node_id)
    count = e.constant("TILE", e.tile.numel)
    sums = [e.fresh(f"{problem.graph[t].name}_sum") for t in targets]
    dtypes = [compute_dtype(problem.graph[t].tensor.dtype) for t in targets]
    for text, dtype in zip(sums, dtypes, strict=True):
        e.line(f"{text} = full({count}, 0, {dtype_marker(dtype)})")
    with e.block(f"for row in range(block_x(), {e.integer('rows', w.rows)}, grid_x()):"):
        e.locate(w.space.kept, "row")
        _one_row(w, e, stored)
        for target, text in zip(targets, sums, strict=True):
            variable = e.value(target)
            tile = e.widen(variable, True, True)
            e.line(f"{text} = {text} + " + (tile if variable.batch or variable.vector else f"repeat({tile}, {count})"))
        if p.threads > 32:
            e.line("barrier()")
    extent = w.space.axes[last].extent
    for index, (text, dtype) in enumerate(zip(sums, dtypes, strict=True)):
        pointer, place = e.workspace(index, dtype), f"block_x() * {e.extent(last)}"
        batch, step = e.constant("BATCH", p.batch), e.constant("STEP", p.step)
        vector = e.constant("VECTOR", p.vector)
        if e.edge is not None:
            edge = e.constant("EDGE", e.tile.numel - 1)
            e.line(f"store({pointer}, {place} + {e.edge.column}, {e.edge.limit}, take({text}, {edge}, 1), 1, 1, 1)")
            text = f"take({text}, 0, {edge})"
        e.line(f"store({pointer}, {place} + col, {e.limit}, {text}, {batch}, {step}, {vector})")
    launch = e.launch(e.source(p.threads), Geometry((params.blocks, 1, 1), (p.threads, 1, 1)))
    return launch, tuple(Workspace(dtype, params.blocks * extent) for dtype in dtypes)


def _one_row(w: RowWriter, e: Emitter, stored: tuple[int, ...]) -> None:
    """Load a row, reduce it and store its results."""
    for node_id in e.graph.inputs:
        if all(w.space.strides[node_id]) and e.graph.users()[node_id]:
            e.prefetch(node_id)
    for stage in w.reductions.stages:
        items = []
        for node_id in stage:
            reducer = Reducer(e, e.graph[node_id])
            operand = reducer.operand(e.constant("TILE", e.tile.numel), w.mask(e))
            items.append(Single(reducer, reducer.once(operand, w.positions(e, reducer))))
        w.combine(e, list(items))
    for node_id in dict.fromkeys(stored):
        if w.is_full(node_id):
            e.store(node_id)
    narrow = [n for n in dict.fromkeys(stored) if not w.is_full(n)]
    if narrow:
        for node_id in narrow:
            e.value(node_id)
        with e.block("if thread_x() == 0:"):
            for node_id in narrow:
                e.store(node_id)
