# SPDX-License-Identifier: Apache-2.0
"""Kernels that reduce columns and meet them again: the innermost loop is kept, an outer one is reduced.

A block is ``threads`` along the columns (each owns ``vector`` of them) times ``lines`` along the rows, and has a share
of the rows of its columns. The first rows of the share are copied to shared memory and stay there; the rest is read
again in every pass, each time in the opposite direction, so that what the last pass read last is still in the L2 cache.

The lines of a block meet in shared memory. Blocks that share columns hand on their parts in global memory and wait for
each other (a cooperative launch with one grid barrier a stage); each then merges all parts in one order, so they find
the same bits, and so does the next run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fusedsl.analysis.reductions import find_reductions
from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.base import KernelPlan, Problem, Workspace
from fusedsl.schedulers.column_params import (
    PersistentColumnParams,
    column_inputs,
    pairs,
    resident_places,
    row_outputs,
)
from fusedsl.schedulers.column_parts import ColumnPart, Moments, Single
from fusedsl.schedulers.columns import count_column_blocks, locate_column_block
from fusedsl.schedulers.emit import Emitter, TileShape
from fusedsl.schedulers.joint import Joint, rounds
from fusedsl.schedulers.partials import load_partials, store_partials
from fusedsl.schedulers.space import iteration_space
from fusedsl.schedulers.text import dtype_marker


def persistent_column_kernel(problem: Problem, params: PersistentColumnParams, name: str, scheduler: str) -> KernelPlan:
    """The plan: one launch."""
    return _Writer(problem, params, name, scheduler).plan()


class _Writer:
    def __init__(self, problem: Problem, params: PersistentColumnParams, name: str, scheduler: str) -> None:
        self.problem, self.params = problem, params
        self.space = iteration_space(problem)
        assert len(self.space.reduced) == 1, "the rows are one loop"
        (self.row,) = self.space.reduced
        self.column = len(self.space.axes) - 1
        self.outer = tuple(a for a in self.space.kept if a != self.column)
        tile = TileShape(params.batch, params.vector, self.row, self.column, params.lines)
        self.e = Emitter(self.space, tile, name, (f"{problem.graph.name}: {scheduler}", params.form))
        self.e.streaming = True
        self.workspaces = [Workspace(torch.int32, 1, zeroed=True)] if params.blocks > 1 else []
        self.scratches: dict[tuple[str, str], str] = {}
        self.copies: dict[int, tuple[str, int]] = {}
        self.passes = 0

    # the whole -------------------------------------------------------------------------------------------------------

    def plan(self) -> KernelPlan:
        e, p = self.e, self.params
        self.locate()
        self.copy_resident()
        self.load_columns()
        for entries in rounds(self.problem.graph, pairs(self.problem)):
            self.reduce([Moments(e, x) if isinstance(x, Joint) else Single(e, x) for x in entries])
        self.store_rows()
        self.store_columns()
        geometry = Geometry(
            (count_column_blocks(self.space, p.columns), p.blocks, 1),
            (p.threads, p.lines, 1),
            dynamic_smem_bytes=resident_places(self.space, p)[1],
            cooperative=p.blocks > 1,
        )
        launch = e.launch(e.source(p.threads * p.lines), geometry)
        return KernelPlan((launch,), tuple(self.workspaces))

    # where a thread stands -------------------------------------------------------------------------------------------

    def locate(self) -> None:
        """The thread's first column, the block's rows, and the first of them that is not resident."""
        e, p = self.e, self.params
        block, columns = locate_column_block(e, p.columns), e.constant("COLUMNS", p.columns)
        e.line(f"slot = thread_x() * {e.constant('VECTOR', p.vector)}" if p.vector > 1 else "slot = thread_x()")
        e.line(f"col = {block} * {columns} + slot")
        e.index[self.column] = "col"
        if not p.exact:
            e.line(f"columns = {e.extent(self.column)} - col")
        rows = e.extent(self.row)
        if p.blocks > 1:
            share = e.integer("share", self.share)
            e.line(f"begin = block_y() * {share}")
            e.line(f"end = min(begin + {share}, {rows})")
        else:
            e.line("begin = 0")
            e.line(f"end = {rows}")
        e.line(f"mid = min(begin + {e.integer('resident', p.resident)}, end)" if p.resident else "mid = begin")

    @property
    def share(self) -> int:
        """Rows of a block."""
        return -(-self.space.axes[self.row].extent // self.params.blocks)

    @property
    def limit_of_columns(self) -> str | None:
        return None if self.params.exact else "columns"

    def copy_resident(self) -> None:
        """Begin to copy the resident rows: every thread what it will read, so no barrier is needed."""
        e, p = self.e, self.params
        if not p.resident:
            return
        for node_id, offset in resident_places(self.space, p)[0].items():
            dtype = e.graph[node_id].tensor.dtype
            name = e.fresh(f"{e.graph[node_id].name}_smem")
            e.line(f"{name} = dynamic_shared({dtype_marker(dtype)}, 0)")
            self.copies[node_id] = name, offset // dtype.itemsize
        chunk = e.constant("CHUNK", p.chunk)
        e.line(f"filled = begin + udiv(mid - begin + {chunk} - 1, {chunk}) * {chunk}")
        with e.block(f"for start in range(begin, filled, {e.constant('STEP', p.lines)}):"):
            self.locate_rows("mid")
            vector = e.constant("VECTOR", p.vector)
            for node_id, (name, base) in self.copies.items():
                place, pointer, at = self.place(node_id, base), e.pointer(node_id), e.offset(node_id)
                e.line(f"async_copy({name}, {place}, {pointer}, {at}, limit, 1, 1, {vector})")
        e.line("async_commit()")

    def place(self, node_id: int, base: int) -> str:
        """Index of the thread's row and columns in the shared copy of an input."""
        e = self.e
        text = f"(row - begin) * {e.constant('COLUMNS', self.params.columns)} + slot"
        return text if base == 0 else f"{e.integer(f'{e.pointer(node_id)[:-4]}_base', base)} + {text}"

    def read(self, node_id: int) -> str:
        """Text that reads a tile of an input from its shared copy."""
        e, p = self.e, self.params
        name, base = self.copies[node_id]
        batch, vector = e.constant("BATCH", p.batch), e.constant("VECTOR", p.vector)
        distance = e.constant("LINE_STEP", p.lines * p.columns)
        return f"shared_load_tile({name}, {self.place(node_id, base)}, {batch}, {distance}, {vector})"

    def locate_rows(self, end: str) -> None:
        """The thread's row in the chunk at ``start``, and the rows left from there; none beyond the last column."""
        e = self.e
        e.line("row = start + thread_y()" if self.params.lines > 1 else "row = start")
        e.index[self.row] = "row"
        e.line(f"limit = {end} - row" + ("" if self.params.exact else " if columns > 0 else 0"))
        e.limit = "limit"

    # passes ----------------------------------------------------------------------------------------------------------

    def load_columns(self) -> None:
        """Load what all rows share."""
        e = self.e
        e.limit = self.limit_of_columns
        for node_id in column_inputs(self.space):
            e.value(node_id)

    @contextmanager
    def _chunks(self, head: str, start: str | None, end: str, *, masked: bool) -> Iterator[None]:
        e, p = self.e, self.params
        with e.block(head):
            if start is not None:
                e.line(f"start = {start}")
            self.locate_rows(end)
            if masked:
                batch, step = e.constant("BATCH", p.batch), e.constant("STEP", p.lines)
                e.line(f"valid = chunk_mask(limit, {batch}, {step}, {e.constant('VECTOR', p.vector)})")
            yield
        del e.index[self.row]
        e.limit = self.limit_of_columns

    def chunks(self, *, masked: bool) -> Iterator[None]:
        """The loops of a pass over the block's rows: those that are read again, then the resident ones.

        ``masked``: with ``valid``, which tells rows from padding.
        """
        e, chunk = self.e, self.e.constant("CHUNK", self.params.chunk)
        backwards = self.passes % 2 == 1
        if backwards:
            e.line(f"last = mid + udiv(max(end - mid - 1, 0), {chunk}) * {chunk}")
        head = f"for {'back' if backwards else 'start'} in range(mid, end, {chunk}):"
        with self._chunks(head, "last + mid - back" if backwards else None, "end", masked=masked):
            yield
        if self.params.resident:
            if self.passes == 0:
                e.line("async_wait(0)")
            for node_id in self.copies:
                e.reader[node_id] = functools.partial(self.read, node_id)
            with self._chunks(f"for start in range(begin, mid, {chunk}):", None, "mid", masked=masked):
                yield
            e.reader.clear()
        self.passes += 1

    def reduce(self, parts: list[ColumnPart]) -> None:
        """One stage: a pass over the rows, then lines and blocks meet."""
        e = self.e
        e.hoist([i for part in parts for i in part.sources])
        early = self.row_outputs(early=True) if self.passes == 0 else []
        for part in parts:
            part.start()
        for _ in self.chunks(masked=True):
            for part in parts:
                part.add("valid", "row")
            for node_id in early:
                e.store(node_id)
        for part in parts:
            part.fold()
        self.meet(parts)
        if self.params.blocks > 1:
            self.exchange(parts)
        self.tell(parts)
        for part in parts:
            part.finish(e.extent(self.row))

    def store_rows(self) -> None:
        """Pass over the rows and store what varies along them and needs results of reductions."""
        e, outputs = self.e, self.row_outputs(early=False)
        if outputs:
            e.hoist(outputs)
            for _ in self.chunks(masked=False):
                for node_id in outputs:
                    e.store(node_id)

    def row_outputs(self, *, early: bool) -> list[int]:
        """Outputs that vary along the rows; ``early``: those that the first pass can store."""
        found = row_outputs(self.space)
        return [i for i in found if (find_reductions(self.e.graph).stage[i] == 0) == early]

    def store_columns(self) -> None:
        """The first line of the first of the blocks that share a column stores what has one element a column."""
        e, p = self.e, self.params
        outputs = [i for i in dict.fromkeys(e.graph.outputs) if not self.space.strides[i][self.row]]
        if not outputs:
            return
        conditions = ["thread_y() == 0"] * (p.lines > 1) + ["block_y() == 0"] * (p.blocks > 1)
        with e.block(f"if {' and '.join(conditions)}:" if conditions else None):
            e.limit = self.limit_of_columns
            for node_id in outputs:
                e.store(node_id)

    # meetings --------------------------------------------------------------------------------------------------------

    def meet(self, parts: list[ColumnPart]) -> None:
        """Merge the parts of all lines, halving their number at each barrier; line 0 then has the result."""
        e, p = self.e, self.params
        if p.lines == 1:
            return
        columns, lines = e.constant("COLUMNS", p.columns), e.constant("STEP", p.lines)
        arrays, counts = self.arrays(parts), self.counts(parts)
        e.line(f"half = {lines} // 2")
        e.line("place = 0")
        with e.block("while half > 0:"):
            e.line("line = thread_y()")
            with e.block("if line >= half and line < 2 * half:"):
                e.line(f"cell = (place + line - half) * {columns} + slot")
                for array, text in zip(arrays, _texts(parts), strict=True):
                    e.line(f"shared_store({array}, cell, {text})")
                if counts is not None:
                    with e.block("if thread_x() == 0:"):
                        e.line(f"shared_store({counts[0]}, place + line - half, full(1, {counts[1]}, int64))")
            e.line("barrier()")
            with e.block("if line < half:"):
                e.line(f"cell = (place + line) * {columns} + slot")
                rows = "0" if counts is None else f"int(shared_load({counts[0]}, place + line, 1))"
                vector = e.constant("VECTOR", p.vector)
                self.merge(parts, [f"shared_load({array}, cell, {vector})" for array in arrays], rows)
            e.line("place = place + half")
            e.line("half = half // 2")

    def merge(self, parts: list[ColumnPart], texts: list[str], rows: str) -> None:
        """Merge values, given one after another, into the parts."""
        place = 0
        for part in parts:
            count = len(part.dtypes)
            part.merge(tuple(texts[place : place + count]), rows)
            place += count

    def exchange(self, parts: list[ColumnPart]) -> None:
        """Hand on the block's parts, wait for all blocks, and merge the parts of those that share the columns."""
        e, p = self.e, self.params
        kept = self.space.size(self.space.kept)
        vector, total, share = e.constant("VECTOR", p.vector), e.integer("kept", kept), e.integer("share", self.share)
        place = f"outer * {e.extent(self.column)} + col" if self.outer else "col"
        buffers, limit, dtypes = len(self.workspaces), self.limit_of_columns, _dtypes(parts)
        with e.block("if thread_y() == 0:" if p.lines > 1 else None):
            e.line(f"cell = block_y() * {total} + {place}")
            values = zip(dtypes, _texts(parts), strict=True)
            self.workspaces += store_partials(e, values, p.blocks * kept, "cell", limit, vector, buffers)
        e.line(f"grid_barrier({self.counter()}, 0)")
        for part in parts:
            part.clear()
        first, step = ("thread_y()", e.constant("STEP", p.lines)) if p.lines > 1 else ("0", "1")
        with e.block(f"for other in range({first}, {e.integer('blocks', p.blocks)}, {step}):"):
            e.line(f"cell = other * {total} + {place}")
            texts = load_partials(e, dtypes, "cell", limit, vector, buffers)
            self.merge(parts, texts, f"min({share}, {e.extent(self.row)} - other * {share})")
        self.meet(parts)

    def counter(self) -> str:
        """The counter of the grid barriers, the plan's first workspace."""
        return self.e.workspace(0, torch.int32)

    def tell(self, parts: list[ColumnPart]) -> None:
        """Line 0 tells the others what it has."""
        e, p = self.e, self.params
        if p.lines == 1:
            return
        arrays, vector = self.arrays(parts), e.constant("VECTOR", p.vector)
        with e.block("if thread_y() == 0:"):
            for array, text in zip(arrays, _texts(parts), strict=True):
                e.line(f"shared_store({array}, slot, {text})")
        e.line("barrier()")
        for array, text in zip(arrays, _texts(parts), strict=True):
            e.line(f"{text} = shared_load({array}, slot, {vector})")
        e.line("barrier()")

    def arrays(self, parts: list[ColumnPart]) -> list[str]:
        """Shared arrays for the parts, one a value; those of an earlier stage are used again."""
        used: dict[str, int] = {}
        names = []
        for dtype in _dtypes(parts):
            marker = dtype_marker(dtype)
            used[marker] = used.get(marker, 0) + 1
            names.append(self.array(f"parts{used[marker]}", marker, self.params.lines * self.params.columns))
        return names

    def counts(self, parts: list[ColumnPart]) -> tuple[str, str] | None:
        """A shared array for the rows of every line's part, and the variable that counts them, if one does."""
        found = [part.rows for part in parts if part.rows is not None]
        return (self.array("rows", "int64", self.params.lines), found[0]) if found else None

    def array(self, purpose: str, marker: str, count: int) -> str:
        if (purpose, marker) not in self.scratches:
            name = self.scratches[purpose, marker] = self.e.fresh(f"{purpose}_smem")
            self.e.line(f"{name} = shared({marker}, {count})")
        return self.scratches[purpose, marker]


def _dtypes(parts: list[ColumnPart]) -> list[torch.dtype]:
    return [dtype for part in parts for dtype in part.dtypes]


def _texts(parts: list[ColumnPart]) -> list[str]:
    return [text for part in parts for text in part.texts]
