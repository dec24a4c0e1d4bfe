# SPDX-License-Identifier: Apache-2.0
"""Kernels that reduce columns and meet them again: the innermost loop is kept, an outer one is reduced.

A block is ``threads`` along the columns (each owns ``vector`` of them) times ``lines`` along the rows, and has a share
of the rows of its columns, which it works on in chunks of ``lines * batch`` rows. They come through shared memory,
where the first ones stay (`column_ring`); the rest is read again in every pass, each time in the opposite direction, so
that what the last pass read last is still in the L2 cache. Whole chunks have no masks; the rest of the rows has a text
of its own.

The lines of a block meet by shuffles and in shared memory. Blocks that share columns hand on their parts in global
memory and wait for each other (a cooperative launch with one grid barrier a stage); each then merges all parts in one
order, so they find the same bits, and so does the next run.
"""

from __future__ import annotations

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
    part_lines,
    passes,
    resident_places,
    row_outputs,
    share_rows,
)
from fusedsl.schedulers.column_parts import ColumnPart, Moments, Single
from fusedsl.schedulers.column_ring import Ring
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
        self.workspaces = [Workspace(torch.int32, 1, zeroed=True)] if params.blocks > 1 else []
        self.scratches: dict[tuple[str, str], str] = {}
        self.ring = Ring(self.e, self.space, params) if params.resident else None
        self.share = max(share_rows(self.space, params), 1)
        self.blocks = max(-(-self.space.axes[self.row].extent // self.share), 1)
        self.passes = 0

    # the whole -------------------------------------------------------------------------------------------------------

    def plan(self) -> KernelPlan:
        e, p = self.e, self.params
        self.locate()
        if self.ring is not None:
            self.ring.start()
        self.load_columns()
        for entries in rounds(self.problem.graph, pairs(self.problem)):
            self.reduce([Moments(e, x) if isinstance(x, Joint) else Single(e, x) for x in entries])
        self.store_rows()
        self.store_columns()
        geometry = Geometry(
            (count_column_blocks(self.space, p.columns), self.blocks, 1),
            (p.threads, p.lines, 1),
            dynamic_smem_bytes=resident_places(self.space, p)[1],
            cooperative=p.blocks > 1,
        )
        launch = e.launch(e.source(p.threads * p.lines), geometry)
        return KernelPlan((launch,), tuple(self.workspaces))

    # where a thread stands -------------------------------------------------------------------------------------------

    def locate(self) -> None:
        """The thread's first column, the block's rows, and how many chunks they are."""
        e, p = self.e, self.params
        block, columns = locate_column_block(e, p.columns), e.constant("COLUMNS", p.columns)
        chunk = e.constant("CHUNK", p.chunk)
        e.line(f"slot = thread_x() * {e.constant('VECTOR', p.vector)}" if p.vector > 1 else "slot = thread_x()")
        e.line(f"col = {block} * {columns} + slot")
        e.index[self.column] = "col"
        if not p.exact:
            e.line(f"columns = {e.extent(self.column)} - col")
            e.line(f"inside = {chunk} if columns > 0 else 0")
        rows = e.extent(self.row)
        if p.blocks > 1:
            share = e.integer("share", self.share)
            e.line(f"begin = block_y() * {share}")
            e.line(f"end = min(begin + {share}, {rows})")
        else:
            e.line("begin = 0")
            e.line(f"end = {rows}")
        e.line(f"whole = udiv(end - begin, {chunk})")
        e.line(f"chunks = udiv(end - begin + {chunk} - 1, {chunk})")

    @property
    def limit_of_columns(self) -> str | None:
        return None if self.params.exact else "columns"

    # passes ----------------------------------------------------------------------------------------------------------

    def load_columns(self) -> None:
        """Load what all rows share."""
        e = self.e
        e.limit = self.limit_of_columns
        for node_id in column_inputs(self.space):
            e.value(node_id)

    @contextmanager
    def _chunk(self, head: str, number: str, *, whole: bool) -> Iterator[None]:
        """A block of the text that works on one chunk, the ``whole`` ones in a loop."""
        e, p, ring = self.e, self.params, self.ring
        chunk, first, backwards = e.constant("CHUNK", p.chunk), self.passes == 0, self.passes % 2 == 1
        with e.block(head):
            if number != "chunk":
                e.line(f"chunk = {number}")
            if ring is not None:
                if backwards:
                    ring.step_back()
                ring.wait()
            e.line(f"row = begin + chunk * {chunk}" + (" + thread_y()" if p.lines > 1 else ""))
            e.index[self.row] = "row"
            e.limit = None if p.exact else "inside"
            if not whole:
                e.line("limit = end - row" + ("" if p.exact else " if columns > 0 else 0"))
                e.limit = "limit"
            yield
            if ring is not None:
                if whole or backwards:
                    ring.follow(first=first, backwards=backwards)
                if not backwards:
                    ring.step_on()
        del e.index[self.row]
        e.limit = self.limit_of_columns

    def chunks(self, *, last: bool) -> Iterator[str | None]:
        """The texts of a pass over the block's rows: the loop over whole chunks, and what is left.

        Gives the limit of the rows where there are rows and padding, None in whole chunks. ``last``: no other pass
        follows, so what is read may leave the caches.
        """
        e = self.e
        e.streaming = last
        parts = [
            ("for back in range(whole):", "whole - 1 - back", True)
            if self.passes % 2 == 1
            else ("for chunk in range(whole):", "chunk", True),
            ("if whole < chunks:", "whole", False),
        ]
        if self.ring is not None:
            self.ring.use()
        for head, number, whole in parts if self.passes % 2 == 0 else reversed(parts):
            with self._chunk(head, number, whole=whole):
                yield None if whole else e.limit
        e.reader.clear()
        self.passes += 1

    def reduce(self, parts: list[ColumnPart]) -> None:
        """One stage: a pass over the rows, then lines and blocks meet."""
        e = self.e
        e.hoist([i for part in parts for i in part.sources])
        early = self.row_outputs(early=True) if self.passes == 0 else []
        for part in parts:
            part.start()
        for limit in self.chunks(last=self.passes + 1 == passes(self.space)):
            valid = None
            if limit is not None:
                batch, step, vector = self.params.batch, self.params.lines, self.params.vector
                sizes = e.constant("BATCH", batch), e.constant("STEP", step), e.constant("VECTOR", vector)
                e.line(f"valid = chunk_mask({limit}, {', '.join(sizes)})")
                valid = "valid"
            for part in parts:
                part.add(valid, "row")
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
            for _ in self.chunks(last=True):
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
        """Merge the parts of all lines: those of a warp by shuffles, then those of the warps, halving their number at
        each barrier, in one of two areas in turns; line 0 then has the result."""
        e, p = self.e, self.params
        if p.merged > 1:
            with e.block(f"for turn in range({p.merged.bit_length() - 1}):"):
                self.merge_in_warp(parts, f"{p.threads} << turn")
        if p.lines == p.merged:
            return
        columns, lines = e.constant("COLUMNS", p.columns), e.constant("STEP", p.lines)
        arrays, counts = self.arrays(parts), self.counts(parts)
        e.line(f"half = {lines} // {2 * p.merged}")
        e.line("first = 0")
        if p.merged == 1:
            e.line("line = thread_y()")
        else:
            # The first line of a warp has its parts; the others are past all of them.
            e.line(f"line = udiv(thread_y(), {p.merged}) if umod(thread_y(), {p.merged}) == 0 else {lines}")
        with e.block("while half > 0:"):
            with e.block("if line >= half and line < 2 * half:"):
                e.line(f"cell = (first + line - half) * {columns} + slot")
                for array, text in zip(arrays, _texts(parts), strict=True):
                    e.line(f"shared_store({array}, cell, {text})")
                if counts is not None:
                    with e.block("if thread_x() == 0:"):
                        e.line(f"shared_store({counts[0]}, first + line - half, full(1, {counts[1]}, int64))")
            e.line("barrier()")
            with e.block("if line < half:"):
                e.line(f"cell = (first + line) * {columns} + slot")
                rows = "0" if counts is None else f"int(shared_load({counts[0]}, first + line, 1))"
                vector = e.constant("VECTOR", p.vector)
                self.merge(parts, [f"shared_load({array}, cell, {vector})" for array in arrays], rows)
            e.line(f"first = {lines} // {2 * p.merged} - first")
            e.line("half = half // 2")

    def merge_in_warp(self, parts: list[ColumnPart], distance: str) -> None:
        """Merge the parts of the lanes so far apart."""
        counted = [part.rows for part in parts if part.rows is not None]
        rows = f"int(shuffle_xor(full(1, {counted[0]}, int64), {distance}))" if counted else "0"
        self.merge(parts, [f"shuffle_xor({text}, {distance})" for text in _texts(parts)], rows)

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
            self.workspaces += store_partials(e, values, self.blocks * kept, "cell", limit, vector, buffers)
        e.line(f"grid_barrier({self.counter()}, 0)")
        for part in parts:
            part.clear()
        first, step = ("thread_y()", e.constant("STEP", p.lines)) if p.lines > 1 else ("0", "1")
        with e.block(f"for other in range({first}, {e.integer('blocks', self.blocks)}, {step}):"):
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
            count = part_lines(self.params) * self.params.columns
            names.append(self.array(f"parts{used[marker]}", marker, count))
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
