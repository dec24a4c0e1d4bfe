# SPDX-License-Identifier: Apache-2.0
"""Reductions whose threads stand along a kept loop: the innermost loop is kept, an outer one is reduced.

A block is ``threads`` along the columns (each thread owns ``vector`` of them) times ``lines`` along the reduced loop;
a thread reads ``batch`` rows at a time. Lines meet in shared memory, splits in a second kernel, both in a fixed order.
"""

from __future__ import annotations

import attrs

from fusedsl.analysis.reductions import find_reductions
from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.base import KernelPlan, Launch, Problem
from fusedsl.schedulers.combine import Accumulator, Reducer
from fusedsl.schedulers.emit import Emitter, TileShape
from fusedsl.schedulers.partials import add_partials, share_of_block, store_partials
from fusedsl.schedulers.space import IterationSpace, iteration_space


@attrs.frozen
class ColumnParams:
    """What decides the text of a column reduction.

    Attributes:
        threads: threads along the columns.
        lines: threads along the reduced loop.
        vector: columns a thread owns.
        batch: rows a thread has in flight.
        split: blocks that share a column; partial results are finished by a second kernel.
        exact: the column count is a multiple of threads * vector.
    """

    threads: int
    lines: int
    vector: int = 1
    batch: int = 1
    split: int = 1
    exact: bool = False

    @property
    def columns(self) -> int:
        return self.threads * self.vector


def column_kernels(
    problem: Problem, params: ColumnParams, name: str, scheduler: str, space: IterationSpace | None = None
) -> KernelPlan:
    """The plan of a column reduction: one launch, or two when the reduced loop is split over blocks.

    ``space`` is given where the graph does not tell that its reductions have the same loops.
    """
    writer = _ColumnWriter(problem, params, name, scheduler, space)
    if params.split == 1:
        return KernelPlan((writer.whole(),))
    return writer.split()


def count_column_blocks(space: IterationSpace, columns: int) -> int:
    """Blocks of so many columns that cover all, over all outer kept loops."""
    return -(-space.axes[-1].extent // columns) * space.size(space.kept[:-1])


def locate_column_block(e: Emitter, columns: int) -> str:
    """Text of which of the blocks along the columns this is, and its index on the outer kept loops."""
    e.constant("COLUMNS", columns)
    outer = e.space.kept[:-1]
    if not outer:
        return "block_x()"
    count = e.integer("column_blocks", -(-e.space.axes[-1].extent // columns))
    e.line(f"block = umod(block_x(), {count})")
    e.line(f"outer = udiv(block_x(), {count})")
    e.locate(outer, "outer")
    return "block"


class _ColumnWriter:
    """Writes the kernels of a column problem for given parameters."""

    def __init__(
        self, problem: Problem, params: ColumnParams, name: str, scheduler: str, space: IterationSpace | None = None
    ) -> None:
        self.problem, self.params, self.name = problem, params, name
        self.space = space or iteration_space(problem)
        self.stage = find_reductions(problem.graph).stages[0]
        self.header = (f"{problem.graph.name}: {scheduler}", str(params))
        self.last = len(self.space.axes) - 1
        self.outer = tuple(a for a in self.space.kept if a != self.last)
        self.kept = self.space.size(self.space.kept)

    def emitter(self, name: str) -> Emitter:
        p = self.params
        tile = TileShape(p.batch, p.vector, self.space.reduced[-1], self.last, p.lines)
        emitter = Emitter(self.space, tile, name, self.header)
        emitter.streaming = True
        return emitter

    def blocks(self) -> int:
        """Blocks along the columns, over all outer kept loops."""
        return count_column_blocks(self.space, self.params.columns)

    def locate_column(self, e: Emitter) -> None:
        """The thread's first column and its index on the outer kept loops."""
        block, columns = locate_column_block(e, self.params.columns), e.constant("COLUMNS", self.params.columns)
        vector = e.constant("VECTOR", self.params.vector)
        e.line(f"col = {block} * {columns} + thread_x()" + (f" * {vector}" if self.params.vector > 1 else ""))
        e.index[self.last] = "col"

    def accumulate(self, e: Emitter, begin: str, end: str) -> list[tuple[Reducer, Accumulator]]:
        """Loop over the reduced axes and fold each thread's rows to one tile of ``vector`` columns."""
        p, space = self.params, self.space
        count = e.constant("TILE", e.tile.numel)
        reducers = [Reducer(e, e.graph[node_id]) for node_id in self.stage]
        accumulators = [reducer.start(count) for reducer in reducers]
        stack = []
        base = ""
        for position, axis in enumerate(space.reduced):
            low, high = (begin, end) if position == 0 else ("0", e.extent(axis))
            if axis != space.reduced[-1]:
                stack.append(e.block(f"for i{axis} in range({low}, {high}):"))
                stack[-1].__enter__()
                e.index[axis] = f"i{axis}"
                base = f"({base}i{axis}) * {e.extent(space.reduced[position + 1])} + "
                continue
            chunk = e.constant("CHUNK", p.lines * p.batch)
            stack.append(e.block(f"for start in range({low}, {high}, {chunk}):"))
            stack[-1].__enter__()
            e.line("row = start + thread_y()" if p.lines > 1 else "row = start")
            e.index[axis] = "row"
            e.line(
                f"limit = {high} - row" if p.exact else f"limit = {high} - row if col < {e.extent(self.last)} else 0"
            )
            e.limit = "limit"
            batch, step = e.constant("BATCH", p.batch), e.constant("STEP", p.lines)
            e.line(f"valid = chunk_mask(limit, {batch}, {step}, {e.constant('VECTOR', p.vector)})")
            for reducer, accumulator in zip(reducers, accumulators, strict=True):
                positions = ""
                if reducer.spelling.pair:
                    positions = f"iota({batch}, {step}, 1, int64) + ({base}row)"
                    if p.vector > 1:
                        positions = f"spread({positions}, {e.constant('VECTOR', p.vector)})"
                reducer.step(accumulator, reducer.operand(count, "valid"), positions)
        for block in reversed(stack):
            block.__exit__(None, None, None)
        vector = e.constant("VECTOR", p.vector)
        return [(r, r.fold(a, vector, final=True)) for r, a in zip(reducers, accumulators, strict=True)]

    def meet(self, e: Emitter, parts: list[tuple[Reducer, Accumulator]]) -> None:
        """Add up the lines of a block; afterwards line 0 holds the result."""
        p = self.params
        if p.lines == 1:
            return
        vector = e.constant("VECTOR", p.vector)
        scratches = [reducer.scratch(p.lines * p.columns) for reducer, _ in parts]
        e.line(f"slot = thread_x() * {vector}")
        for (reducer, part), scratch in zip(parts, scratches, strict=True):
            reducer.put(scratch, f"thread_y() * {e.constant('COLUMNS', p.columns)} + slot", part)
        e.line("barrier()")
        with e.block("if thread_y() == 0:"), e.block(f"for line in range(1, {p.lines}):"):
            for (reducer, part), scratch in zip(parts, scratches, strict=True):
                got = reducer.get(scratch, f"line * {e.constant('COLUMNS', p.columns)} + slot", vector)
                reducer.step(part, got.value, got.index or "")

    def outputs(self, e: Emitter, guard: str | None) -> None:
        """Store the results of the columns this thread owns."""
        with e.block(guard):
            e.limit = None
            if not self.params.exact:
                e.line(f"limit = {e.extent(self.last)} - col")
                e.limit = "limit"
            for node_id in dict.fromkeys(self.problem.graph.outputs):
                e.store(node_id)

    def whole(self) -> Launch:
        e = self.emitter(self.name)
        self.locate_column(e)
        parts = self.accumulate(e, "0", e.extent(self.space.reduced[0]))
        self.meet(e, parts)
        for reducer, part in parts:
            reducer.finish(part, vector=True)
        self.outputs(e, "if thread_y() == 0:" if self.params.lines > 1 else None)
        p = self.params
        return e.launch(e.source(p.threads * p.lines), Geometry((self.blocks(), 1, 1), (p.threads, p.lines, 1)))

    def split(self) -> KernelPlan:
        p = self.params
        e = self.emitter(f"{self.name}_partial")
        self.locate_column(e)
        first = self.space.reduced[0]
        per = -(-self.space.axes[first].extent // p.split)
        parts = self.accumulate(e, *share_of_block(e, first, per))
        self.meet(e, parts)
        kept = e.integer("kept", self.kept)
        place = "col" if not self.outer else f"outer * {e.extent(self.last)} + col"
        with e.block("if thread_y() == 0:" if p.lines > 1 else None):
            limit = None
            if not p.exact:
                e.line(f"limit = {e.extent(self.last)} - col")
                limit = "limit"
            results = [pair for r, part in parts for pair in zip(r.workspace_dtypes(), part.texts(), strict=True)]
            at, vector = f"block_y() * {kept} + {place}", e.constant("VECTOR", p.vector)
            workspaces = store_partials(e, results, p.split * self.kept, at, limit, vector)
        geometry = Geometry((self.blocks(), p.split, 1), (p.threads, p.lines, 1))
        partial = e.launch(e.source(p.threads * p.lines), geometry)
        return KernelPlan((partial, self.finish()), workspaces)

    def finish(self) -> Launch:
        """Add the partial results of every column in a fixed order, then the epilogue."""
        p = self.params
        threads = 32
        lines = 8
        shape = attrs.evolve(p, threads=threads, lines=lines, vector=1, batch=1, exact=False)
        writer = _ColumnWriter(self.problem, shape, self.name, "", self.space)
        writer.header = self.header
        e = writer.emitter(f"{self.name}_finish")
        writer.locate_column(e)
        kept, parts_count = e.integer("kept", self.kept), e.integer("parts", p.split)
        place = "col" if not self.outer else f"outer * {e.extent(self.last)} + col"
        reducers = [Reducer(e, e.graph[node_id]) for node_id in self.stage]
        parts = [(reducer, reducer.start("1")) for reducer in reducers]
        e.line(f"stop = {parts_count} if col < {e.extent(self.last)} else 0")
        with e.block(f"for part in range(thread_y(), stop, {lines}):"):
            add_partials(e, parts, f"part * {kept} + {place}")
        writer.meet(e, parts)
        for reducer, part in parts:
            reducer.finish(part, vector=True)
        writer.outputs(e, "if thread_y() == 0:")
        return e.launch(e.source(threads * lines), Geometry((writer.blocks(), 1, 1), (threads, lines, 1)))
