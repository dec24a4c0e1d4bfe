# SPDX-License-Identifier: Apache-2.0
"""Kernels whose threads stand along a row: the innermost loop is reduced.

Three forms share this text. *Register*: a row is one tile, loaded once. *Shared*: the row's inputs are copied to shared
memory asynchronously, every thread what it will read itself, and each stage passes over them there; a row may be spread
over the blocks of a cluster. *Stream*: each stage passes over global memory. A block is ``threads`` along the row times
``rows`` rows.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, ExitStack
from typing import Literal

import attrs
import torch

from fusedsl.analysis.reductions import Reductions, find_reductions
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import compute_dtype
from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.base import KernelPlan, Launch, Problem, Workspace
from fusedsl.schedulers.combine import (
    Accumulator,
    Exchange,
    Reducer,
    ShiftedSum,
    Single,
    combine_in_block,
    combine_in_cluster,
    prepare_cluster,
)
from fusedsl.schedulers.emit import Emitter, TileShape, Variable, dtype_marker
from fusedsl.schedulers.joint import Joint, find_joint
from fusedsl.schedulers.space import IterationSpace, iteration_space, pow2_at_least


@attrs.frozen
class RowParams:
    """What decides the text of a row kernel.

    Attributes:
        threads: threads along a row.
        rows: rows a block.
        vector: elements of one access.
        batch: accesses a thread has in flight.
        storage: where a row stays between the stages of its reductions: "register", "shared" or "stream" (it does not).
        exact: threads * vector * batch is the row length: nothing is masked.
        prefetch: load every input before the first reduction (weights too).
        project: keep 16-bit inputs packed across reductions and compute everything else again.
        split: blocks a row is spread over; partial results are finished by a second kernel.
        cluster: blocks of a cluster that share a row ("register" and "shared").
        min_blocks: blocks a multiprocessor should hold.
    """

    threads: int
    rows: int = 1
    vector: int = 1
    batch: int = 1
    storage: Literal["register", "shared", "stream"] = "register"
    exact: bool = False
    prefetch: bool = True
    project: bool = False
    split: int = 1
    cluster: int = 1
    min_blocks: int | None = None

    @property
    def step(self) -> int:
        return self.threads * self.vector

    @property
    def tile(self) -> int:
        return self.step * self.batch


#: Elements of a row that a thread holds while the block has at most 256 threads.
ELEMENTS_PER_THREAD = 16


def resident_row(space: IterationSpace, vector: int) -> RowParams:
    """Parameters for a row in registers: 16 elements a thread, then more a thread; short rows several to a block."""
    extent = space.axes[-1].extent
    chunks = max(-(-extent // vector), 1)
    threads = min(pow2_at_least(chunks), 32)
    while threads < 256 and -(-chunks // threads) * vector > ELEMENTS_PER_THREAD:
        threads *= 2
    batch = -(-chunks // threads)
    rows = max(64 // threads, 1) if space.kept else 1
    return RowParams(threads, rows, vector, batch, exact=threads * batch * vector == extent)


def row_kernels(problem: Problem, params: RowParams, name: str, scheduler: str) -> KernelPlan:
    """The plan of a row kernel: one launch, or two when rows are split over blocks."""
    writer = _RowWriter(problem, params, name, scheduler)
    if params.split == 1:
        return KernelPlan((writer.whole(),))
    return writer.split()


class _RowWriter:
    def __init__(self, problem: Problem, params: RowParams, name: str, scheduler: str) -> None:
        self.problem = problem
        self.params = params
        self.name = name
        self.space: IterationSpace = iteration_space(problem)
        self.reductions: Reductions = find_reductions(problem.graph)
        self.header = (f"{problem.graph.name}: {scheduler}", str(params))
        self.rows = self.space.size(self.space.kept)

    def emitter(self, name: str) -> Emitter:
        last = len(self.space.axes) - 1
        tile = TileShape(self.params.batch, self.params.vector, last, last, self.params.step)
        return Emitter(self.space, tile, name, self.header)

    # structure -----------------------------------------------------------------------------------------------------

    def whole(self) -> Launch:
        p = self.params
        e = self.emitter(self.name)
        self.locate_row(e, p.rows)
        smem_bytes = 0
        if p.storage == "register":
            self.register_body(e)
        else:
            if p.storage == "shared":
                smem_bytes = self.copy_row(e)
            bounds = self.share(e)
            for stage in self.reductions.stages:
                self.combine(e, [Single(r, a) for r, a in self.stream_pass(e, list(stage), bounds)])
            self.stream_outputs(e, bounds)
        self.row_outputs(e)
        blocks = -(-self.rows // p.rows) * p.cluster
        source = e.source(p.threads * p.rows, p.min_blocks)
        return e.launch(source, Geometry((blocks, 1, 1), (p.threads, p.rows, 1), p.cluster, smem_bytes))

    # rows in shared memory -----------------------------------------------------------------------------------------

    def share(self, e: Emitter) -> tuple[str, str] | None:
        """The columns of this block of the cluster."""
        return ("begin", "end") if self.params.cluster > 1 else None

    def copy_row(self, e: Emitter) -> int:
        """Copy the row's inputs to shared memory, up to this thread's own copies. Bytes of a block's part."""
        p, last = self.params, len(self.space.axes) - 1
        extent = self.space.axes[last].extent
        tiles = -(-extent // (p.tile * p.cluster))
        part = tiles * p.tile
        if p.cluster > 1:
            share = e.integer("share", part)
            e.line(f"begin = cluster_rank() * {share}")
            e.line(f"end = min(begin + {share}, {e.extent(last)})")
        offset = 0
        copies = []
        for node_id in shared_inputs(self.space):
            dtype = e.graph[node_id].tensor.dtype
            copies.append((node_id, offset // dtype.itemsize))
            offset += -(-part * dtype.itemsize // 128) * 128
        names = {}
        for node_id, _ in copies:
            names[node_id] = e.fresh(f"{e.graph[node_id].name}_smem")
            e.line(f"{names[node_id]} = dynamic_shared({dtype_marker(e.graph[node_id].tensor.dtype)}, 0)")
        with self.loops(e, self.share(e)):
            for node_id, base in copies:
                batch, step = e.constant("BATCH", p.batch), e.constant("STEP", p.step)
                slot = self.slot(e, node_id, base)
                pointer, at = e.pointer(node_id), e.offset(node_id)
                vector = e.constant("VECTOR", p.vector)
                e.line(f"async_copy({names[node_id]}, {slot}, {pointer}, {at}, {e.limit}, {batch}, {step}, {vector})")
        e.line("async_commit()")
        if p.cluster > 1:
            prepare_cluster(e, [self.round_bytes(list(s)) for s in self.reductions.stages], p.threads // 32, p.cluster)
        e.line("async_wait(0)")
        for node_id, base in copies:
            e.reader[node_id] = functools.partial(self.read_shared, e, node_id, names[node_id], base)
        return offset

    def slot(self, e: Emitter, node_id: int, base: int) -> str:
        """Index of the thread's columns in the shared copy of an input."""
        place = "col - begin" if self.params.cluster > 1 else "col"
        if base == 0:
            return place
        return f"{e.integer(f'{e.pointer(node_id)[:-4]}_base', base)} + {place}"

    def read_shared(self, e: Emitter, node_id: int, name: str, base: int) -> str:
        """Text that reads a tile of an input from its shared copy."""
        batch, step = e.constant("BATCH", e.tile.batch), e.constant("STEP", e.tile.step)
        vector = e.constant("VECTOR", e.tile.vector)
        return f"shared_load_tile({name}, {self.slot(e, node_id, base)}, {batch}, {step}, {vector})"

    # rows in registers ---------------------------------------------------------------------------------------------

    def locate_row(self, e: Emitter, rows: int) -> None:
        """Which row this thread works on, and its index on every kept axis."""
        kept = self.space.kept
        if not kept:
            return
        block = "block_x()" if self.params.cluster == 1 else f"udiv(block_x(), {self.params.cluster})"
        e.line(f"row = {block}" if rows == 1 else f"row = {block} * {rows} + thread_y()")
        if rows > 1:
            total = e.integer("rows", self.rows)
            e.line(f"live = row < {total}")
            e.line(f"row = row if live else {total} - 1")
        locate(e, kept, "row")

    def register_body(self, e: Emitter) -> None:
        p, last = self.params, len(self.space.axes) - 1
        if p.cluster > 1:
            e.line(f"begin = cluster_rank() * {e.constant('PART', p.tile)}")
        self.locate_column(e, "begin" if p.cluster > 1 else None)
        for node_id in e.graph.inputs:
            early = p.prefetch or all(self.space.strides[node_id])
            if early and self.space.strides[node_id][last] and e.graph.users()[node_id]:
                e.prefetch(node_id)
        rounds = self.rounds()
        if p.cluster > 1:
            prepare_cluster(e, [self.round_bytes(r) for r in rounds], p.threads // 32, p.cluster)
        for entries in rounds:
            self.combine(e, [self.exchange(e, entry) for entry in entries])
            if p.project:
                e.forget_tiles()
        outputs = self.full_outputs()
        if outputs:
            with self.live(e):
                for node_id in outputs:
                    e.store(node_id)

    def rounds(self) -> list[list[int | Joint]]:
        """What each exchange between threads reduces: single reductions by node, and joint pairs, as early as possible.

        The exponentials of a pair are kept in registers, so only rows in registers use pairs.
        """
        joints = {j.second: j for j in find_joint(self.problem.graph) if _is_float32(self.problem.graph, j)}
        if self.problem.numerics == "eager":
            joints = {}  # eager torch rounds between the two
        firsts = {j.first for j in joints.values()}
        found: dict[int, list[int | Joint]] = {}
        for node_id in self.reductions.nodes:
            level = self.reductions.stage[node_id]
            if node_id in firsts:
                continue
            entry: int | Joint = joints.get(node_id, node_id)
            if isinstance(entry, Joint):
                level -= 1
            found.setdefault(level, []).append(entry)
        return [found[level] for level in sorted(found)]

    def round_bytes(self, entries: list[int | Joint]) -> int:
        """Bytes a warp sends in a round."""
        graph = self.problem.graph
        return sum(
            8 if isinstance(x, Joint) else compute_dtype(graph[graph[x].inputs[0]].tensor.dtype).itemsize
            for x in entries
        )

    def exchange(self, e: Emitter, entry: int | Joint) -> Exchange:
        """The thread's part of a reduction or a joint pair of a row in registers."""
        if isinstance(entry, Joint):
            return self.shifted(e, entry)
        reducer = Reducer(e, e.graph[entry])
        operand = reducer.operand(e.constant("TILE", e.tile.numel), self.mask(e))
        return Single(reducer, reducer.once(operand, self.positions(e, reducer)))

    def shifted(self, e: Emitter, entry: Joint) -> ShiftedSum:
        """The thread's part of a maximum and a sum of exponentials; its own maximum stands in for the row's."""
        item = ShiftedSum(e, entry)
        count = e.constant("TILE", e.tile.numel)
        own = item.start(Reducer(e, e.graph[entry.first]).operand(count, self.mask(e)))
        with e.block():
            e.define(entry.first, Variable(own))
            terms = Reducer(e, e.graph[entry.second]).operand(count, self.mask(e))
        item.fold(terms)
        return item

    def combine(self, e: Emitter, items: list[Exchange]) -> None:
        """Reduce over the threads of a row, in a block or a cluster."""
        if self.params.cluster > 1:
            combine_in_cluster(e, items, self.params.threads, self.params.cluster)
        else:
            combine_in_block(e, items, self.params.threads, self.params.rows)

    def locate_column(self, e: Emitter, start: str | None, end: str | None = None) -> None:
        """The thread's first column, and how many columns are left from there."""
        last = len(self.space.axes) - 1
        vector = e.constant("VECTOR", self.params.vector)
        column = f"thread_x() * {vector}" if self.params.vector > 1 else "thread_x()"
        e.line(f"col = {column}" if start is None else f"col = {start} + {column}")
        e.index[last] = "col"
        e.limit = None
        if not self.params.exact:
            e.line(f"limit = {end or e.extent(last)} - col")
            e.limit = "limit"
        e.forget_offsets()

    def mask(self, e: Emitter) -> str | None:
        """A tile that tells the row's elements from padding; None if there is no padding."""
        if self.params.exact:
            return None
        name = "valid"
        if e.mask is None:
            batch, step = e.constant("BATCH", e.tile.batch), e.constant("STEP", e.tile.step)
            e.line(f"{name} = chunk_mask(limit, {batch}, {step}, {e.constant('VECTOR', e.tile.vector)})")
            e.mask = name
        return name

    def positions(self, e: Emitter, reducer: Reducer, base: str = "") -> str:
        """Positions along the reduced loops as an int64 tile (argmax and argmin)."""
        if not reducer.spelling.pair:
            return ""
        batch, step = e.constant("BATCH", e.tile.batch), e.constant("STEP", e.tile.step)
        return f"iota({batch}, {step}, {e.constant('VECTOR', e.tile.vector)}, int64) + ({base}col)"

    def stream_pass(
        self, e: Emitter, nodes: list[int], bounds: tuple[str, str] | None
    ) -> list[tuple[Reducer, Accumulator]]:
        """Pass over the row and accumulate some reductions, a tile of partial results each."""
        count = e.constant("TILE", e.tile.numel)
        e.hoist(nodes)
        reducers = [Reducer(e, e.graph[node_id]) for node_id in nodes]
        accumulators = [reducer.start(count) for reducer in reducers]
        with self.loops(e, bounds) as base:
            for reducer, accumulator in zip(reducers, accumulators, strict=True):
                operand = reducer.operand(count, self.mask(e))
                reducer.step(accumulator, operand, self.positions(e, reducer, base))
        return list(zip(reducers, accumulators, strict=True))

    def stream_outputs(self, e: Emitter, bounds: tuple[str, str] | None) -> None:
        outputs = self.full_outputs()
        if outputs:
            e.hoist(outputs)
            with self.live(e), self.loops(e, bounds):
                for node_id in outputs:
                    e.store(node_id)

    def loops(self, e: Emitter, bounds: tuple[str, str] | None) -> _Loops:
        return _Loops(self, e, bounds)

    def full_outputs(self) -> list[int]:
        """Outputs that vary along a reduced axis."""
        return [i for i in dict.fromkeys(self.problem.graph.outputs) if self.is_full(i)]

    def is_full(self, node_id: int) -> bool:
        return any(self.space.strides[node_id][a] for a in self.space.reduced)

    def row_outputs(self, e: Emitter) -> None:
        """Outputs that have one element a row: the row's first thread stores them."""
        outputs = [i for i in dict.fromkeys(self.problem.graph.outputs) if not self.is_full(i)]
        if not outputs:
            return
        for node_id in outputs:
            e.value(node_id)
        guard = "thread_x() == 0" + (" and live" if self.params.rows > 1 and self.space.kept else "")
        if self.params.cluster > 1:
            guard += " and begin == 0"
        with e.block(f"if {guard}:"):
            for node_id in outputs:
                e.store(node_id)

    def live(self, e: Emitter) -> AbstractContextManager[None]:
        """Only rows that exist are stored."""
        return e.block("if live:" if self.params.rows > 1 and self.space.kept else None)

    # rows split over blocks ----------------------------------------------------------------------------------------

    def split(self) -> KernelPlan:
        p, split = self.params, self.params.split
        e = self.emitter(f"{self.name}_partial")
        self.locate_row(e, 1)
        first = self.space.reduced[0]
        per = -(-self.space.axes[first].extent // split)
        if len(self.space.reduced) == 1:
            per = -(-per // p.tile) * p.tile
        share = e.integer("share", per)
        e.line(f"begin = block_y() * {share}")
        e.line(f"end = min(begin + {share}, {e.extent(first)})")
        stage = self.reductions.stages[0]
        partials = [Single(r, a) for r, a in self.stream_pass(e, list(stage), ("begin", "end"))]
        self.combine(e, list(partials))
        workspaces: list[Workspace] = []
        rows = e.integer("rows", self.rows)
        row = "row" if self.space.kept else "0"
        with e.block("if thread_x() == 0:"):
            for item in partials:
                for dtype, (_, text) in zip(item.reducer.workspace_dtypes(), item.values, strict=True):
                    pointer = e.workspace(len(workspaces), dtype)
                    workspaces.append(Workspace(dtype, split * self.rows))
                    e.line(f"store({pointer}, block_y() * {rows} + {row}, None, {text}, 1, 1, 1)")
        first_launch = e.launch(e.source(p.threads, p.min_blocks), Geometry((self.rows, split, 1), (p.threads, 1, 1)))
        return KernelPlan((first_launch, self.finish(stage, split)), tuple(workspaces))

    def finish(self, stage: tuple[int, ...], split: int) -> Launch:
        """Reduce the partial results of a row with one warp, in a fixed order, then the row's epilogue."""
        rows_per_block = 4 if self.rows > 1 else 1
        writer = _RowWriter(self.problem, attrs.evolve(self.params, rows=rows_per_block, threads=32), self.name, "")
        writer.header = self.header
        e = writer.emitter(f"{self.name}_finish")
        writer.locate_row(e, rows_per_block)
        rows, parts = e.integer("rows", self.rows), e.integer("parts", split)
        row = "row" if self.space.kept else "0"
        reducers = [Reducer(e, e.graph[node_id]) for node_id in stage]
        accumulators = [reducer.start("1") for reducer in reducers]
        with e.block(f"for part in range(thread_x(), {parts}, 32):"):
            index = 0
            for reducer, accumulator in zip(reducers, accumulators, strict=True):
                texts = []
                for dtype in reducer.workspace_dtypes():
                    pointer = e.workspace(index, dtype)
                    texts.append(f"load({pointer}, part * {rows} + {row}, None, 1, 1, 1, 0)")
                    index += 1
                reducer.step(accumulator, texts[0], texts[-1])
        combine_in_block(e, [Single(r, a) for r, a in zip(reducers, accumulators, strict=True)], 32, rows_per_block)
        writer.row_outputs(e)
        grid = (-(-self.rows // rows_per_block), 1, 1)
        return e.launch(e.source(32 * rows_per_block), Geometry(grid, (32, rows_per_block, 1)))


class _Loops:
    """The loops over the reduced axes of a streaming pass, the innermost in tiles; gives what stands before ``col``."""

    def __init__(self, writer: _RowWriter, e: Emitter, bounds: tuple[str, str] | None) -> None:
        self.writer, self.e, self.bounds = writer, e, bounds
        self.stack = ExitStack()

    def __enter__(self) -> str:
        e, space = self.e, self.writer.space
        base = ""
        for position, axis in enumerate(space.reduced):
            low, high = self.bounds if self.bounds and position == 0 else ("0", e.extent(axis))
            if axis != space.reduced[-1]:
                self.stack.enter_context(e.block(f"for i{axis} in range({low}, {high}):"))
                e.index[axis] = f"i{axis}"
                base = f"({base}i{axis}) * {e.extent(space.reduced[position + 1])} + "
            else:
                chunk = e.constant("CHUNK", self.writer.params.tile)
                self.stack.enter_context(e.block(f"for start in range({low}, {high}, {chunk}):"))
                self.writer.locate_column(e, "start", high)
        return base

    def __exit__(self, *error: object) -> None:
        self.stack.close()


def _is_float32(graph: Graph, joint: Joint) -> bool:
    """Joint pairs are written for float32 arithmetic."""
    return compute_dtype(graph[joint.source].tensor.dtype) == torch.float32


def shared_inputs(space: IterationSpace) -> tuple[int, ...]:
    """Inputs that vary over row and rows: what is worth a shared copy. They must be packed along the row."""
    return tuple(i for i in space.problem.graph.inputs if all(space.strides[i]))


def locate(e: Emitter, axes: tuple[int, ...], linear: str) -> None:
    """Split a linear index into one index an axis (``linear`` itself if there is one axis)."""
    if len(axes) == 1:
        e.index[axes[0]] = linear
        return
    rest = linear
    for axis in reversed(axes[1:]):
        e.line(f"i{axis} = umod({rest}, {e.extent(axis)})")
        e.line(f"rest{axis} = udiv({rest}, {e.extent(axis)})")
        rest = f"rest{axis}"
        e.index[axis] = f"i{axis}"
    e.index[axes[0]] = rest
