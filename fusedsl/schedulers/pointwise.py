# SPDX-License-Identifier: Apache-2.0
"""Elementwise segments.

One loop: every thread has ``batch`` chunks of ``vector`` consecutive elements, ``threads * vector`` apart; the last
block goes element by element. Several loops: threads stand along the innermost, a thread's batch goes along the next
one out, so an operand that does not vary there (a bias) is read once for the whole batch. The parameters do not depend
on the outermost extent: a new batch size finds its kernel compiled.
"""

from __future__ import annotations

import attrs

from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph
from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.base import KernelPlan, Problem, Refusal
from fusedsl.schedulers.checks import check_ops, check_outputs, check_self_mapping
from fusedsl.schedulers.emit import Emitter, TileShape
from fusedsl.schedulers.names import kernel_name
from fusedsl.schedulers.space import IterationSpace, iteration_space, pow2_at_least, tile_limit, vector_width

NAME = "pointwise"


@attrs.frozen
class PointwiseParams:
    """What decides the text of a pointwise kernel.

    Attributes:
        threads: threads along the innermost loop.
        lines: threads along the next loop out (1 if there is one loop).
        vector: elements of one access.
        batch: chunks a thread has in flight.
        exact: with several loops, the innermost is a multiple of the block's width.
    """

    threads: int
    lines: int = 1
    vector: int = 1
    batch: int = 1
    exact: bool = False


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """No reductions, and every output varies over every loop."""
    reductions = find_reductions(graph).nodes
    if reductions:
        return Refusal("reduction", f"{graph[reductions[0]].name} is a reduction")
    return check_ops(graph) or check_self_mapping(graph) or check_outputs(graph)


def can_schedule_run_time(problem: Problem) -> Refusal | None:
    """Every size and layout is taken."""
    return None


def compute_heuristics(problem: Problem) -> PointwiseParams:
    """About 128 threads, 16-byte accesses, several of them in flight when there are few operands."""
    space = iteration_space(problem)
    last = len(space.axes) - 1
    vector = min(vector_width(space, last, ragged=last == 0), tile_limit(space))
    tensors = len(space.strides)
    batch = 2 if tensors <= 4 else 1
    if last == 0:
        return PointwiseParams(256, 1, vector, batch)
    chunks = -(-space.axes[last].extent // vector)
    threads = min(pow2_at_least(chunks), 128)
    return PointwiseParams(threads, max(128 // threads, 1), vector, batch, chunks % threads == 0)


def schedule(problem: Problem, params: PointwiseParams) -> KernelPlan:
    """One launch."""
    space = iteration_space(problem)
    name = kernel_name(problem.graph, NAME)
    header = (f"{problem.graph.name}: {NAME}", str(params))
    if len(space.axes) == 1:
        return _flat(space, params, name, header)
    return _nested(space, params, name, header)


def _flat(space: IterationSpace, p: PointwiseParams, name: str, header: tuple[str, ...]) -> KernelPlan:
    step = p.threads * p.vector
    chunk = step * p.batch
    e = Emitter(space, TileShape(p.batch, p.vector, 0, 0, step), name, header)
    outputs = tuple(dict.fromkeys(space.problem.graph.outputs))
    e.index[0] = "col"
    e.line(f"start = block_x() * {e.constant('CHUNK', chunk)}")
    with e.block(f"if start + CHUNK <= {e.extent(0)}:"):
        vector = f" * {e.constant('VECTOR', p.vector)}" if p.vector > 1 else ""
        e.line(f"col = start + thread_x(){vector}")
        e.limit = None
        for output in outputs:
            e.store(output)
    with e.block("else:"):
        e.tile = TileShape(p.batch * p.vector, 1, 0, 0, p.threads)
        e.constant_prefix = "TAIL_"
        e.line("col = start + thread_x()")
        e.line(f"limit = {e.extent(0)} - col")
        e.limit = "limit"
        for output in outputs:
            e.store(output)
    source = e.source(p.threads)
    return KernelPlan((e.launch(source, Geometry((-(-space.axes[0].extent // chunk), 1, 1), (p.threads, 1, 1))),))


def _nested(space: IterationSpace, p: PointwiseParams, name: str, header: tuple[str, ...]) -> KernelPlan:
    last = len(space.axes) - 1
    e = Emitter(space, TileShape(p.batch, p.vector, last - 1, last, p.lines), name, header)
    columns, lines = p.threads * p.vector, p.lines * p.batch
    column_blocks = -(-space.axes[last].extent // columns)  # a fixed row length: part of the text
    line_blocks = -(-space.axes[last - 1].extent // lines)
    outer = tuple(range(last - 1))
    block, line = "0", "block_x()"
    if column_blocks > 1:
        count = e.integer("column_blocks", column_blocks)
        e.line(f"block = umod(block_x(), {count})")
        e.line(f"line = udiv(block_x(), {count})")
        block, line = "block", "line"
    if outer:
        count = e.integer("line_blocks", line_blocks)
        e.line(f"outer = udiv({line}, {count})")
        e.line(f"line = umod({line}, {count})")
        line = "line"
        e.locate(outer, "outer")
    vector = f" * {e.constant('VECTOR', p.vector)}" if p.vector > 1 else ""
    start = f"{block} * {e.constant('COLUMNS', columns)} + " if column_blocks > 1 else ""
    e.line(f"col = {start}thread_x(){vector}")
    row = f"{line} * {e.constant('LINES', lines)}" if lines > 1 else line
    e.line(f"row = {row}" + (" + thread_y()" if p.lines > 1 else ""))
    e.index[last], e.index[last - 1] = "col", "row"
    rows = f"limit = {e.extent(last - 1)} - row"
    e.line(rows if p.exact else f"{rows} if col < {e.extent(last)} else 0")
    for output in dict.fromkeys(space.problem.graph.outputs):
        e.store(output)
    blocks = column_blocks * line_blocks * space.size(outer)
    source = e.source(p.threads * p.lines)
    return KernelPlan((e.launch(source, Geometry((blocks, 1, 1), (p.threads, p.lines, 1))),))
