# SPDX-License-Identifier: Apache-2.0
"""What the forms of a row kernel share: where a thread stands, loops over a row, combining threads, storing results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from fusedsl.analysis.reductions import Reductions, find_reductions
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.base import Problem
from fusedsl.schedulers.cluster import combine_in_cluster
from fusedsl.schedulers.combine import Accumulator, Exchange, Reducer, combine_in_block
from fusedsl.schedulers.edge import Edge
from fusedsl.schedulers.emit import Emitter, TileShape
from fusedsl.schedulers.joint import Joint, find_moments, find_shifted_sums, rounds
from fusedsl.schedulers.peel import count_chunks, edge_elements, find_grid
from fusedsl.schedulers.picks import find_picks, load_pick
from fusedsl.schedulers.row_params import RowParams
from fusedsl.schedulers.space import IterationSpace, iteration_space


def pairs_of_rows(problem: Problem) -> list[Joint]:
    """Pairs of reductions that rows take in one exchange between threads; eager torch rounds between the two."""
    graph = problem.graph
    if problem.numerics == "eager":
        return []

    def dtype(joint: Joint) -> torch.dtype:
        return compute_dtype(graph[joint.source].tensor.dtype)

    pairs = [joint for joint in find_shifted_sums(graph) if dtype(joint) == torch.float32]
    return pairs + [joint for joint in find_moments(graph) if dtype(joint).is_floating_point]


class RowWriter:
    """Writes the kernels of a row problem for given parameters; its methods append to the emitter they are given."""

    def __init__(self, problem: Problem, params: RowParams, name: str, header: tuple[str, ...]) -> None:
        self.problem = problem
        self.params = params
        self.name = name
        self.space: IterationSpace = iteration_space(problem)
        self.reductions: Reductions = find_reductions(problem.graph)
        self.header = header
        self.rows = self.space.size(self.space.kept)
        self.grid = find_grid(self.space, params.vector) if params.peeled else None
        self.held_edges: dict[int, str] = {}
        self.picks = find_picks(self.space) if params.split == params.grid == params.lines == 1 else ()
        if len(self.picks) == len(self.reductions.nodes):
            self.picks = ()
        if params.peeled:
            assert self.grid is not None, "the tensors of peeled rows must be in step"
            assert params.threads >= edge_elements(params.vector), "too few threads for the edges of a row"
            assert self.space.axes[-1].extent >= 2 * params.vector, "a peeled row has whole chunks"

    def emitter(self, name: str) -> Emitter:
        """The empty text of one of the kernels."""
        last, p = len(self.space.axes) - 1, self.params
        if p.lines > 1:
            tile = TileShape(p.batch, p.vector, self.space.reduced[0], last, p.lines)
        else:
            tile = TileShape(p.batch, p.vector, last, last, p.step, p.peeled)
        return Emitter(self.space, tile, name, self.header)

    # where a thread stands -----------------------------------------------------------------------------------------

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
        e.locate(kept, "row")

    def locate_chunks(self, e: Emitter) -> None:
        """Where the aligned chunks of a peeled row begin and end, and the column this thread has besides."""
        if self.grid is None:
            return
        last = len(self.space.axes) - 1
        e.index.pop(last, None)
        at = e.offset(self.grid.node)
        vector, extent = e.constant("VECTOR", self.params.vector), e.extent(last)
        e.line(f"head = -{at} & ({vector} - 1)" if at != "0" else "head = 0")
        e.line(f"right = head + ({extent} & -{vector}) - ({vector} if head > 0 else 0)")
        e.line("edge = thread_x() if thread_x() < head else thread_x() - head + right")

    def locate_part(self, e: Emitter) -> None:
        """Where the part of this block of a cluster begins and ends: all have as many chunks, the last ones fewer."""
        p = self.params
        chunks = count_chunks(self.space.axes[-1].extent, p.vector, peeled=p.peeled)
        share = e.integer("share", -(-chunks // p.cluster) * p.vector)
        e.line(f"begin = {'head + ' if p.peeled else ''}cluster_rank() * {share}")
        e.line(f"end = min(begin + {share}, {self.end(e)})")

    def locate_column(self, e: Emitter, start: str | None, end: str | None = None) -> None:
        """The thread's first column, and how many columns are left from there."""
        last = len(self.space.axes) - 1
        if self.grid is not None:
            start = start or "head"
        vector = e.constant("VECTOR", self.params.vector)
        column = f"thread_x() * {vector}" if self.params.vector > 1 else "thread_x()"
        e.line(f"col = {column}" if start is None else f"col = {start} + {column}")
        e.index[last] = "col"
        e.limit = None
        if not self.params.exact:
            e.line(f"limit = {end or self.end(e)} - col")
            e.limit = "limit"
        if self.grid is not None:
            e.line(f"rest = {e.extent(last)} - edge" + (f" if {start} == head else 0" if start != "head" else ""))
            e.edge = Edge("edge", "rest", self.grid.across, self.held_edges)
        e.forget_offsets()

    def locate_lines(self, e: Emitter) -> None:
        """The thread's columns and its first line of a row of two reduced loops."""
        outer, last = self.space.reduced
        columns = e.constant("COLUMNS", self.params.columns)
        vector = f" * {e.constant('VECTOR', self.params.vector)}" if self.params.vector > 1 else ""
        e.line(f"col = umod(thread_x(), {columns}){vector}")
        e.line(f"line = udiv(thread_x(), {columns})")
        e.index[outer], e.index[last] = "line", "col"
        lines = f"limit = {e.extent(outer)} - line"
        e.line(lines if self.params.exact else f"{lines} if col < {e.extent(last)} else 0")

    def end(self, e: Emitter) -> str:
        """The column after the row's last chunk."""
        return "right" if self.params.peeled else e.extent(len(self.space.axes) - 1)

    def mask(self, e: Emitter) -> str | None:
        """A tile that tells the row's elements from padding; None if there is no padding."""
        if e.limit is None:
            return None
        name = "valid"
        if e.mask is None:
            batch, step = e.constant("BATCH", e.tile.batch), e.constant("STEP", e.tile.step)
            text = f"chunk_mask(limit, {batch}, {step}, {e.constant('VECTOR', e.tile.vector)})"
            if e.edge is not None:
                text = f"join({text}, chunk_mask({e.edge.limit}, 1, 1, 1))"
            e.line(f"{name} = {text}")
            e.mask = name
        return name

    def positions(self, e: Emitter, reducer: Reducer, base: str = "") -> str:
        """Positions along the reduced loops as an int64 tile (argmax and argmin)."""
        if not reducer.spelling.pair:
            return ""
        batch, step = e.constant("BATCH", e.tile.batch), e.constant("STEP", e.tile.step)
        text = f"iota({batch}, {step}, {e.constant('VECTOR', e.tile.vector)}, int64) + ({base}col)"
        if e.edge is None:
            return text
        return f"join({text}, full(1, {base}{e.edge.column}, int64))"

    def load_scalars(self, e: Emitter) -> None:
        """Load what a row has one of, and the elements that are picked of it, so that nothing waits for them later."""
        for node_id in e.graph.inputs:
            if any(self.space.strides[node_id]) and not self.is_full(node_id) and e.graph.users()[node_id]:
                e.prefetch(node_id)
        for pick in self.picks:
            load_pick(e, pick)

    def rounds(self, pairs: Iterable[Joint] = ()) -> list[list[int | Joint]]:
        """What each exchange between threads reduces: pairs given, and the other reductions of a pass."""
        picked = {pick.sum for pick in self.picks}
        found = [[entry for entry in entries if entry not in picked] for entries in rounds(self.problem.graph, pairs)]
        return [entries for entries in found if entries]

    # passes over a row ---------------------------------------------------------------------------------------------

    def bounds(self) -> tuple[str, str] | None:
        """Variables that hold where this block's part of a row begins and ends; None: it has the whole row."""
        return ("begin", "end") if self.params.cluster > 1 else None

    @contextmanager
    def loops(self, e: Emitter, bounds: tuple[str, str] | None) -> Iterator[str]:
        """The loops over the reduced axes, the innermost in tiles; gives what stands before ``col`` in a position."""
        base = ""
        with ExitStack() as stack:
            for position, axis in enumerate(self.space.reduced):
                low, high = "0", e.extent(axis)
                if self.grid is not None and axis == self.space.reduced[-1]:
                    low, high = "head", "right"
                    if position > 0:
                        self.locate_chunks(e)
                if bounds and position == 0:
                    low, high = bounds
                if axis != self.space.reduced[-1]:
                    stack.enter_context(e.block(f"for i{axis} in range({low}, {high}):"))
                    e.index[axis] = f"i{axis}"
                    base = f"({base}i{axis}) * {e.extent(self.space.reduced[position + 1])} + "
                else:
                    chunk = e.constant("CHUNK", self.params.tile)
                    stack.enter_context(e.block(f"for start in range({low}, {high}, {chunk}):"))
                    self.locate_column(e, "start", high)
            yield base

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
        """Pass over the row and store the outputs that vary along it."""
        outputs = self.full_outputs()
        if outputs:
            e.hoist(outputs)
            with self.live(e), self.loops(e, bounds):
                for node_id in outputs:
                    e.store(node_id)

    # reductions ----------------------------------------------------------------------------------------------------

    def combine(self, e: Emitter, items: list[Exchange]) -> None:
        """Reduce over the threads of a row, in a block or a cluster."""
        if self.params.cluster > 1:
            combine_in_cluster(e, items, self.params.threads, self.params.cluster)
        else:
            combine_in_block(e, items, self.params.threads, self.params.rows)

    def round_bytes(self, entries: Sequence[int | Joint]) -> int:
        """Bytes a warp sends in a round: for single reductions, by node, and joint pairs."""
        graph = self.problem.graph

        def size(entry: int | Joint) -> int:
            reduction = graph[entry.first if isinstance(entry, Joint) else entry]
            values = 1
            if isinstance(entry, Joint):
                values = 3 if reduction.op == "sum" and not self.params.exact else 2
            return values * compute_dtype(graph[reduction.inputs[0]].tensor.dtype).itemsize

        return sum(map(size, entries))

    # outputs -------------------------------------------------------------------------------------------------------

    def full_outputs(self) -> list[int]:
        """Outputs that vary along a reduced axis."""
        return [i for i in dict.fromkeys(self.problem.graph.outputs) if self.is_full(i)]

    def is_full(self, node_id: int) -> bool:
        """Whether a value varies along a reduced axis."""
        return any(self.space.strides[node_id][a] for a in self.space.reduced)

    def row_outputs(self, e: Emitter, among: Iterable[int] | None = None) -> None:
        """Outputs (``among`` these) that have one element a row: the row's first thread stores them."""
        candidates = self.problem.graph.outputs if among is None else among
        outputs = [i for i in dict.fromkeys(candidates) if not self.is_full(i)]
        if not outputs:
            return
        for node_id in outputs:
            e.value(node_id)
        guard = "thread_x() == 0" + (" and live" if self.params.rows > 1 and self.space.kept else "")
        if self.params.cluster > 1:
            guard += " and cluster_rank() == 0"
        if self.params.grid > 1:
            guard += " and block_y() == 0"
        with e.block(f"if {guard}:"):
            for node_id in outputs:
                e.store(node_id)

    def live(self, e: Emitter) -> AbstractContextManager[None]:
        """Only rows that exist are stored."""
        return e.block("if live:" if self.params.rows > 1 and self.space.kept else None)
