# SPDX-License-Identifier: Apache-2.0
"""Normalisation gradients of rows that registers do not hold: reductions of every row, and beside them sums over all
rows, with the rows in shared memory.

A block, or a cluster of blocks that share a row, walks over rows. While a row is worked on the next one is copied to
the other half of shared memory: by ``cp.async``, every thread what it will read itself, which needs no barrier, for a
thread's reads of a row come before the copies that it issues over it; or by one thread, when the partial results of the
row in work have met, for whoever sent them has used the row before. A thread owns ``tiles`` tiles of ``batch *
vector`` columns; the text repeats each pass once a tile, for the outer sums stay in registers, which have no index.

The blocks of a cluster have the same rows, and exchange partial results of inner reductions in every row without a
barrier, which would wait for the thread's stores and for the copies of the next row. :mod:`~fusedsl.schedulers.cluster`
says why that is safe; a row's results are used, by its outputs and the outer sums, before the next row's parts are
sent. Nor does a barrier come before the end: the wait for the last row is enough, and a cluster without rows sends
nothing.
"""

from __future__ import annotations

import functools
import itertools

import attrs

from fusedsl.analysis.budgets import place_arrays
from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import compute_dtype
from fusedsl.numba_cuda.device import DeviceProperties
from fusedsl.numba_cuda.kernel import Geometry
from fusedsl.schedulers.ahead import Ahead, load_ahead, take_ahead
from fusedsl.schedulers.base import Launch, Problem, Workspace
from fusedsl.schedulers.cluster import (
    PHASE,
    TURN,
    begin_rows,
    combine_in_cluster,
    end_row,
    new_mbarriers,
    prepare_cluster,
)
from fusedsl.schedulers.combine import SPELLINGS, Accumulator, Exchange, Reducer, Single, combine_in_block
from fusedsl.schedulers.emit import Emitter
from fusedsl.schedulers.halves import Halves
from fusedsl.schedulers.row_params import RowParams, shared_inputs
from fusedsl.schedulers.row_writer import RowWriter
from fusedsl.schedulers.space import IterationSpace, vector_width
from fusedsl.schedulers.text import dtype_marker

#: Threads of a block and blocks a multiprocessor: of two blocks, one works while the other one's row is exchanged.
TWO, ONE = (256, 2), (512, 1)
#: Blocks of a cluster, two a multiprocessor: larger ones are not portable, and wait for more parts.
MOST_OF_TWO = 8
#: Registers of a thread that one value of a tile takes, and that all outer sums may take: with 128 registers a thread
#: gradients of norms were not seen to spill (nvJitLink 13.5, sm_80 and sm_90a).
TILE_REGISTERS = 8
SUM_REGISTERS = 64
#: Columns that a thread owns: more tiles need more registers for places and masks (7 tiles of 8 were seen to spill).
MAX_ELEMENTS = 48
#: Cost of a row's arithmetic, an element, beyond which tiles are half as large (GELU; 7 to 9 for a norm alone).
COSTLY = 40
#: Shared memory of a block that is left alone: 1 KiB of the system's.
RESERVED = 1 << 10


@attrs.frozen
class SharedRows:
    """What decides the text of the kernel over rows in shared memory.

    Attributes:
        threads: of a block.
        vector: elements of one access.
        batch: accesses of a tile.
        tiles: tiles of ``batch * vector`` columns that a thread owns.
        cluster: blocks that share a row.
        exact: the blocks' columns are the row's: nothing is masked.
        resident: what all rows share (weights) is kept in shared memory, else read from global memory in each pass.
        min_blocks: blocks a multiprocessor should hold.
        whole: one thread copies a block's part of a row, when the parts of the row before have met (in clusters, where
            ``cp.async`` moves every byte twice from the L2 cache); else every thread copies what it will read.
    """

    threads: int
    vector: int
    batch: int
    tiles: int
    cluster: int = 1
    exact: bool = False
    resident: bool = False
    min_blocks: int = 1
    whole: bool = False

    @property
    def tile(self) -> int:
        """Columns of a block's tile."""
        return self.threads * self.vector * self.batch

    @property
    def part(self) -> int:
        """Columns of a block."""
        return self.tile * self.tiles

    @property
    def held(self) -> int:
        """Columns of the cluster."""
        return self.part * self.cluster


def fit_shared(space: IterationSpace, halves: Halves) -> SharedRows | None:
    """What holds a row beside what all rows share, or else a row alone: a block, with another one on the multiprocessor
    if there is room; or the smallest cluster with two blocks on each, or with one.

    None: none does, or the rows cannot be copied or exchanged so.
    """
    graph, device, last = space.problem.graph, space.problem.device, len(space.axes) - 1
    rows = shared_inputs(space)
    held = _tile_elements(space)
    vector = min(vector_width(space, last), held)
    if not rows or not all(_is_copied(space, i, vector) for i in rows):
        return None
    words = sum(compute_dtype(graph[t].tensor.dtype).itemsize / 4 for t in graph.outputs[halves.stored :])
    most = min(int(SUM_REGISTERS / (held * words)), MAX_ELEMENTS // held)
    clusters = [c for c in (2, 4, 8, 16) if c <= device.max_cluster and _is_sent(space)]
    shapes = [(*TWO, 1), (*ONE, 1), *((*TWO, c) for c in clusters if c <= MOST_OF_TWO), *((*ONE, c) for c in clusters)]
    for resident, (threads, blocks, cluster) in itertools.product((True, False), shapes):
        tiles = -(-space.axes[last].extent // (threads * held * cluster))
        row = SharedRows(threads, vector, held // vector, tiles, cluster, resident=resident, min_blocks=blocks)
        shares = bool(_resident(space, vector)) or not resident
        if shares and tiles <= most and _fits(space, row, device):
            exact = row.held == space.axes[last].extent
            return attrs.evolve(row, exact=exact, whole=blocks > 1 < cluster and exact and _is_bulk(space, row))
    return None


def _is_bulk(space: IterationSpace, row: SharedRows) -> bool:
    """Whether all copies are of whole 16-byte pieces."""
    copied = [*shared_inputs(space), *(_resident(space, row.vector) if row.resident else [])]
    return all(row.vector * space.problem.graph[i].tensor.dtype.itemsize % 16 == 0 for i in copied)


def row_cost(space: IterationSpace) -> int:
    """Cost of a row's arithmetic, an element."""
    graph, domains, row = space.problem.graph, domain_map(space.problem.graph), find_reductions(space.problem.graph)
    along = [n for n in graph if OPS[n.op].kind is Kind.POINTWISE and row.classes <= domains.varies[n.id]]
    return sum(OPS[n.op].cost for n in along)


def _tile_elements(space: IterationSpace) -> int:
    """Elements of a thread's tile: fewer of wide values, and where the arithmetic is costly."""
    graph = space.problem.graph
    word = max(compute_dtype(n.tensor.dtype).itemsize for n in graph if n.is_tensor) // 4
    return TILE_REGISTERS // max(word, 1) // (2 if row_cost(space) > COSTLY else 1)


def _is_copied(space: IterationSpace, node_id: int, vector: int) -> bool:
    """An access is at least the 4 bytes that ``cp.async`` copies, of elements that lie side by side."""
    itemsize = space.problem.graph[node_id].tensor.dtype.itemsize
    return vector * itemsize >= 4 and space.strides[node_id][-1] == 1


def _resident(space: IterationSpace, vector: int) -> list[int]:
    """Inputs that all rows share and that can be copied."""
    found = [i for i in space.problem.graph.inputs if space.strides[i][-1] and not any(space.strides[i][:-1])]
    return [i for i in found if _is_copied(space, i, vector)]


def _is_sent(space: IterationSpace) -> bool:
    """Partial results of the reductions are words that blocks of a cluster can send: single ones of 4 or 8 bytes."""
    graph = space.problem.graph
    reductions = [n for n in graph if n.op in SPELLINGS]
    itemsizes = {compute_dtype(graph[n.inputs[0]].tensor.dtype).itemsize for n in reductions}
    return itemsizes <= {4, 8} and not any(SPELLINGS[n.op].pair for n in reductions)


def _layout(space: IterationSpace, row: SharedRows) -> tuple[dict[int, int], int]:
    """Where in dynamic shared memory every copied input begins, and the bytes of all."""
    graph = space.problem.graph
    kept = _resident(space, row.vector) if row.resident else []
    slots = {**dict.fromkeys(shared_inputs(space), 2), **dict.fromkeys(kept, 1)}
    return place_arrays({i: count * row.part * graph[i].tensor.dtype.itemsize for i, count in slots.items()})


def _fits(space: IterationSpace, row: SharedRows, device: DeviceProperties) -> bool:
    """Whether a block's rows and partial results fit its share of the shared memory."""
    graph = space.problem.graph
    reductions = [n for n in graph if n.op in SPELLINGS]
    result = sum(compute_dtype(graph[n.inputs[0]].tensor.dtype).itemsize + 8 * SPELLINGS[n.op].pair for n in reductions)
    static = 2 * row.cluster * (row.threads // 32) * result
    barriers = 0 if row.cluster == 1 else 16 * len(reductions)
    room = min(device.smem_per_block_optin, device.smem_per_sm // row.min_blocks)
    return _layout(space, row)[1] + static + barriers <= room - RESERVED


def shared_rows_kernel(
    problem: Problem, halves: Halves, row: SharedRows, walkers: int, name: str, scheduler: str
) -> tuple[Launch, tuple[Workspace, ...]]:
    """The kernel over rows, and the buffers of its partial sums: a row of ``walkers`` blocks or clusters each."""
    return _Kernel(problem, halves, row, name, scheduler).launch(walkers)


class _Kernel:
    """Writes the kernel for given parameters."""

    def __init__(self, problem: Problem, halves: Halves, row: SharedRows, name: str, scheduler: str) -> None:
        self.p = row
        plain = RowParams(row.threads, 1, row.vector, row.batch, "shared", exact=row.exact, cluster=row.cluster)
        self.w = RowWriter(problem, plain, name, (f"{problem.graph.name}: {scheduler}", str(row)))
        self.e: Emitter = self.w.emitter(name)
        self.space, self.graph = self.w.space, problem.graph
        self.last = len(self.space.axes) - 1
        self.stored = list(dict.fromkeys(self.graph.outputs[: halves.stored]))
        self.targets = self.graph.outputs[halves.stored :]
        self.dtypes = [compute_dtype(self.graph[t].tensor.dtype) for t in self.targets]
        self.places, self.bytes = _layout(self.space, row)
        self.rows = shared_inputs(self.space)
        self.arrays: dict[int, str] = {}

    def launch(self, walkers: int) -> tuple[Launch, tuple[Workspace, ...]]:
        """The text, and how it is launched."""
        p, e = self.p, self.e
        rows = e.integer("rows", self.w.rows)
        vector = e.constant("VECTOR", p.vector)
        e.line(f"mine = thread_x() * {vector}" if p.vector > 1 else "mine = thread_x()")
        if p.cluster > 1:
            e.line(f"begin = cluster_rank() * {e.constant('PART', p.part)}")
            e.line("origin = begin + mine")
            e.line(f"first = udiv(block_x(), {p.cluster})")
            e.line(f"walkers = udiv(grid_x(), {p.cluster})")
            if p.whole:
                with new_mbarriers(e, "copied", 2):  # for rows in turns
                    pass
            sizes = [self.w.round_bytes(stage) for stage in self.w.reductions.stages]
            prepare_cluster(e, sizes, p.threads // 32, p.cluster, loop=True)
        else:
            e.line("origin = mine")
            e.line("first = block_x()")
            e.line("walkers = grid_x()")
        if not p.exact:
            e.line(f"room = {e.extent(self.last)} - origin")
        self.make_arrays()
        if p.whole:
            with e.block("if (thread_x() == 0) & (first < rows):"):
                self.copy_whole(list(self.places), "first", "0")
        else:
            with e.block("if first < rows:"):
                self.copy(list(self.places), "first", "0")
            e.line("async_commit()")
        scalars = self.load_scalars(None, f"min(first, {rows} - 1)")
        sums = self.start_sums()
        if p.cluster > 1:
            begin_rows(e, p.threads // 32)
        else:
            e.line("turn = 0")
        with e.block(f"for row in range(first, {rows}, walkers):"):
            e.line("ahead = row + walkers")
            if not p.whole:
                with e.block(f"if ahead < {rows}:"):
                    self.copy(list(self.rows), "ahead", f"(1 - turn) * {e.constant('PART', p.part)}")
                e.line("async_commit()")
            take_ahead(e, scalars)
            with e.block():
                self.load_scalars(scalars, f"ahead if ahead < {rows} else row")
            e.line(f"mbarrier_wait(copied, {TURN}, {PHASE})" if p.whole else "async_wait(1)")
            e.line(f"here = turn * {e.constant('PART', p.part)} + mine")
            self.stand("row")
            self.one_row(sums)
            if p.cluster > 1:
                end_row(e)
            else:
                e.line("turn = 1 - turn")
        workspaces = self.store_sums(sums, walkers)
        geometry = Geometry((walkers * p.cluster, 1, 1), (p.threads, 1, 1), p.cluster, dynamic_smem_bytes=self.bytes)
        return e.launch(e.source(p.threads, p.min_blocks), geometry), workspaces

    # rows ----------------------------------------------------------------------------------------------------------

    def tile(self, index: int) -> None:
        """Stand at a tile's columns."""
        e, beyond = self.e, index * self.p.tile
        e.line(f"col = origin + {beyond}" if index else "col = origin")
        e.index[self.last], e.shift = "col", (self.last, "origin", beyond)
        e.limit = None
        if not self.p.exact:
            e.line(f"limit = room - {beyond}" if index else "limit = room")
            e.limit = "limit"
        e.forget_offsets()
        for node_id, array in self.arrays.items():
            self.e.reader[node_id] = functools.partial(self.read, node_id, array, index)

    def read(self, node_id: int, array: str, index: int) -> str:
        """Text of a tile of an input's copy."""
        at = ("here" if node_id in self.rows else "mine") + (f" + {index * self.p.tile}" if index else "")
        e = self.e
        batch, step = e.constant("BATCH", self.p.batch), e.constant("STEP", e.tile.step)
        return f"shared_load_tile({array}, {at}, {batch}, {step}, {e.constant('VECTOR', self.p.vector)})"

    def make_arrays(self) -> None:
        """Name the copies in shared memory."""
        for node_id, offset in self.places.items():
            node = self.graph[node_id]
            self.arrays[node_id] = self.e.fresh(f"{node.name}_smem")
            self.e.line(f"{self.arrays[node_id]} = dynamic_shared({dtype_marker(node.tensor.dtype)}, {offset})")

    def copy(self, inputs: list[int], row: str, slot: str) -> None:
        """Begin copying this thread's columns of a row."""
        e, limit = self.e, None if self.p.exact else "room"
        count, step = e.constant("CHUNKS", self.p.batch * self.p.tiles), e.constant("STEP", e.tile.step)
        vector = e.constant("VECTOR", self.p.vector)
        e.line(f"there = {slot} + mine" if slot != "0" else "there = mine")
        self.stand(row)
        for node_id in inputs:
            source = f"{e.pointer(node_id)}, {e.offset(node_id)}"
            e.line(f"async_copy({self.arrays[node_id]}, there, {source}, {limit}, {count}, {step}, {vector})")

    def copy_whole(self, inputs: list[int], row: str, turn: str) -> None:
        """One thread begins copying the block's part of a row."""
        e, part = self.e, self.e.constant("PART", self.p.part)
        index = dict(e.index)
        e.locate(self.space.kept, row)
        e.index[self.last], e.shift = "begin", None
        item = sum(self.graph[node_id].tensor.dtype.itemsize for node_id in inputs)
        e.line(f"mbarrier_expect(copied, {turn}, {item} * {part})")
        for node_id in inputs:
            slot = f"({turn}) * {part}" if node_id in self.rows and turn != "0" else "0"
            source = f"{e.pointer(node_id)}, {e.offset(node_id)}"
            e.line(f"bulk_load({self.arrays[node_id]}, {slot}, {source}, {part}, copied, {turn})")
        e.index = index

    def stand(self, row: str) -> None:
        """Stand at this thread's first column of a row."""
        self.e.locate(self.space.kept, row)
        self.e.index[self.last], self.e.shift = "origin", None

    def load_scalars(self, into: Ahead | None, row: str) -> Ahead:
        """Load what a row has one of, to variables that the next turn of the loop takes."""
        e, strides = self.e, self.space.strides
        inputs = [i for i in self.graph.inputs if any(strides[i]) and not strides[i][self.last] and e.graph.users()[i]]
        if not inputs:
            return {}
        if into is not None:
            e.line(f"following = {row}")
            row = "following"
        with e.block():
            e.locate(self.space.kept, row)
            return load_ahead(e, inputs, into)

    def one_row(self, sums: list[list[str]]) -> None:
        """Reduce a row, store its results, and add to the outer sums."""
        e, p = self.e, self.p
        full = [n for n in self.stored if self.w.is_full(n)]
        for stage in self.w.reductions.stages:
            items: list[Exchange] = [Single(reducer, part) for reducer, part in self.reduce(stage)]
            if p.cluster > 1:
                combine_in_cluster(e, items, p.threads, p.cluster, self.w.round_bytes(stage))
            else:
                combine_in_block(e, items, p.threads, turn="turn" if p.threads > 32 else None)
            if p.whole and stage == self.w.reductions.stages[0]:  # all have used the row before
                with e.block(f"if (thread_x() == 0) & (ahead < {e.integer('rows', self.w.rows)}):"):
                    self.copy_whole(list(self.rows), "ahead", f"1 - {TURN}")
        e.hoist([*full, *self.targets])
        e.index[self.last], e.shift = "origin", None
        for node_id in full:
            e.offset(node_id)
        count = e.constant("TILE", e.tile.numel)
        for index in range(p.tiles):
            with e.block():
                self.tile(index)
                for node_id in full:
                    e.store(node_id)
                for target, texts in zip(self.targets, sums, strict=True):
                    e.line(f"{texts[index]} = {texts[index]} + {e.tile_of(target, count)}")
        self.w.row_outputs(e, self.stored)

    def reduce(self, stage: tuple[int, ...]) -> list[tuple[Reducer, Accumulator]]:
        """Reduce this thread's columns of a row."""
        e = self.e
        reducers = [Reducer(e, self.graph[node_id]) for node_id in stage]
        e.hoist([r.node.inputs[0] for r in reducers])
        parts = [reducer.start("1") for reducer in reducers]
        count = e.constant("TILE", e.tile.numel)
        for index in range(self.p.tiles):
            with e.block():
                self.tile(index)
                for reducer, part in zip(reducers, parts, strict=True):
                    operand = reducer.operand(count, self.w.mask(e))
                    one = reducer.fold(reducer.once(operand, self.w.positions(e, reducer)), None)
                    reducer.step(part, one.value, one.index or "")
        return list(zip(reducers, parts, strict=True))

    # outer sums ----------------------------------------------------------------------------------------------------

    def start_sums(self) -> list[list[str]]:
        """A variable a tile for every outer sum."""
        e, found = self.e, []
        count = e.constant("TILE", e.tile.numel)
        for target, dtype in zip(self.targets, self.dtypes, strict=True):
            found.append([e.fresh(f"{self.graph[target].name}_sum{index}") for index in range(self.p.tiles)])
            for text in found[-1]:
                e.line(f"{text} = full({count}, 0, {dtype_marker(dtype)})")
        return found

    def store_sums(self, sums: list[list[str]], walkers: int) -> tuple[Workspace, ...]:
        """Hand the outer sums on."""
        e, extent = self.e, self.space.axes[self.last].extent
        batch, step = e.constant("BATCH", self.p.batch), e.constant("STEP", e.tile.step)
        vector = e.constant("VECTOR", self.p.vector)
        e.line(f"total = first * {e.extent(self.last)} + origin")
        for tile in range(self.p.tiles):
            with e.block():
                self.tile(tile)
                for index, (texts, dtype) in enumerate(zip(sums, self.dtypes, strict=True)):
                    pointer = e.workspace(index, dtype)
                    beyond = f" + {tile * self.p.tile}" if tile else ""
                    e.line(f"store({pointer}, total{beyond}, {e.limit}, {texts[tile]}, {batch}, {step}, {vector})")
        return tuple(Workspace(dtype, walkers * extent) for dtype in self.dtypes)
