# SPDX-License-Identifier: Apache-2.0
"""How each reduction op is spelled in kernel text: identity, merging accumulators, folding a tile, a warp, a block."""

from __future__ import annotations

import attrs
import torch

from fusedsl.graph.graph import Node
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.emit import Emitter, Variable, dtype_marker


@attrs.frozen
class Accumulator:
    """The text variables that hold a reduction in progress: a value, and an index for argmax and argmin."""

    value: str
    index: str | None = None

    def texts(self) -> tuple[str, ...]:
        """The variables, the value first."""
        return (self.value,) if self.index is None else (self.value, self.index)


@attrs.frozen
class Spelling:
    """Kernel text of one reduction op; ``word`` completes the names ``fold_``, ``tile_`` and ``warp_``."""

    word: str
    merge: str
    pair: bool = False


SPELLINGS = {
    "sum": Spelling("sum", "{0} + {1}"),
    "prod": Spelling("prod", "{0} * {1}"),
    "amax": Spelling("max", "maximum({0}, {1})"),
    "amin": Spelling("min", "minimum({0}, {1})"),
    "any": Spelling("any", "{0} | {1}"),
    "all": Spelling("all", "{0} & {1}"),
    "argmax": Spelling("argmax", ">", pair=True),
    "argmin": Spelling("argmin", "<", pair=True),
}


class Reducer:
    """Writes the steps of one reduction node into an emitter."""

    def __init__(self, emitter: Emitter, node: Node) -> None:
        self.e = emitter
        self.node = node
        self.spelling = SPELLINGS[node.op]
        self.dtype = compute_dtype(emitter.graph[node.inputs[0]].tensor.dtype)
        self.marker = dtype_marker(self.dtype)

    @property
    def identity(self) -> str:
        """Text of the value that changes nothing."""
        word = self.spelling.word
        if word in ("any", "all"):
            return "True" if word == "all" else "False"
        if word in ("sum", "prod"):
            return "0" if word == "sum" else "1"
        largest = word in ("min", "argmin")
        if self.dtype.is_floating_point:
            infinity = self.e.constant("INF", float("inf"))
            return infinity if largest else f"-{infinity}"
        if self.dtype == torch.bool:
            return str(largest)
        info = torch.iinfo(self.dtype)
        return self.e.constant(
            f"{'MAX' if largest else 'MIN'}_{self.marker.upper()}", info.max if largest else info.min
        )

    def workspace_dtypes(self) -> tuple[torch.dtype, ...]:
        """dtypes of the buffers that hold partial results."""
        return (self.dtype, torch.int64) if self.spelling.pair else (self.dtype,)

    def operand(self, count: str, mask: str | None) -> str:
        """The tile that is reduced: ``count`` elements, with the identity where ``mask`` is false."""
        variable = self.e.value(self.node.inputs[0])
        text = self.e.widen(variable, True, True)
        if not (variable.batch or variable.vector):
            text = f"repeat({text}, {count})"
        if mask is None or (self.spelling.word in ("sum", "any") and self.e.zero_padded(self.node.inputs[0])):
            return text
        return f"where({mask}, {text}, {self.identity})"

    def start(self, count: str) -> Accumulator:
        """Accumulators before a loop: ``count`` elements of identity."""
        value = self.e.fresh(f"{self.node.name}_acc")
        self.e.line(f"{value} = full({count}, {self.identity}, {self.marker})")
        if not self.spelling.pair:
            return Accumulator(value)
        index = self.e.fresh(f"{self.node.name}_at")
        self.e.line(f"{index} = full({count}, 0, int64)")
        return Accumulator(value, index)

    def step(self, accumulator: Accumulator, operand: str, index: str) -> None:
        """Merge a tile into the accumulators; ``index`` is a tile of positions (argmax, argmin)."""
        e = self.e
        e.comment(self.node)
        if not self.spelling.pair:
            e.line(f"{accumulator.value} = {self.spelling.merge.format(accumulator.value, operand)}")
            return
        new = e.fresh(f"{self.node.name}_new")
        take = e.fresh(f"{self.node.name}_take")
        e.line(f"{new} = {operand}")
        better = f"{new} {self.spelling.merge} {accumulator.value}"
        if self.dtype.is_floating_point:
            better = f"({better}) | (isnan({new}) & ~isnan({accumulator.value}))"
        e.line(f"{take} = {better}")
        e.line(f"{accumulator.value} = where({take}, {new}, {accumulator.value})")
        e.line(f"{accumulator.index} = where({take}, {index}, {accumulator.index})")

    def once(self, operand: str, index: str) -> Accumulator:
        """Accumulators of a tile that is there as a whole."""
        e = self.e
        e.comment(self.node)
        if self.spelling.pair:
            return Accumulator(operand, index)
        return Accumulator(operand)

    def fold(self, accumulator: Accumulator, vector: str | None, *, final: bool = False) -> Accumulator:
        """Fold a tile to ``vector`` elements (None: to one); the ``final`` result takes the node's name."""
        e, word = self.e, self.spelling.word
        named = final and not self.spelling.pair
        value = e.fresh(self.node.name if named else f"{self.node.name}_part")
        name = f"tile_{word}" if vector is None else f"fold_{word}"
        tail = "" if vector is None else f", {vector}"
        if self.spelling.pair:
            index = e.fresh(self.node.name if final else f"{self.node.name}_part_at")
            e.line(f"{value}, {index} = {name}({accumulator.value}, {accumulator.index}{tail})")
            return Accumulator(value, index)
        e.line(f"{value} = {name}({accumulator.value}{tail})")
        return Accumulator(value)

    def warp(self, accumulator: Accumulator, width: int) -> Accumulator:
        """All-reduce among ``width`` lanes."""
        e, word = self.e, self.spelling.word
        if width == 1:
            return accumulator
        if self.spelling.pair:
            e.line(
                f"{accumulator.value}, {accumulator.index} = "
                f"warp_{word}({accumulator.value}, {accumulator.index}, {width})"
            )
        else:
            e.line(f"{accumulator.value} = warp_{word}({accumulator.value}, {width})")
        return accumulator

    def scratch(self, count: int) -> Accumulator:
        """Shared arrays of ``count`` partial results."""
        e = self.e
        value = e.fresh(f"{self.node.name}_smem")
        e.line(f"{value} = shared({self.marker}, {count})")
        if not self.spelling.pair:
            return Accumulator(value)
        index = e.fresh(f"{self.node.name}_smem_at")
        e.line(f"{index} = shared(int64, {count})")
        return Accumulator(value, index)

    def put(self, scratch: Accumulator, at: str, accumulator: Accumulator) -> None:
        """Store partial results to shared memory."""
        self.e.line(f"shared_store({scratch.value}, {at}, {accumulator.value})")
        if scratch.index is not None:
            self.e.line(f"shared_store({scratch.index}, {at}, {accumulator.index})")

    def get(self, scratch: Accumulator, at: str, count: str) -> Accumulator:
        """Text of partial results read from shared memory."""
        index = f"shared_load({scratch.index}, {at}, {count})" if scratch.index is not None else None
        return Accumulator(f"shared_load({scratch.value}, {at}, {count})", index)

    def finish(self, accumulator: Accumulator, vector: bool) -> None:
        """From here on the node's value is known: the accumulated value, or the position for argmax and argmin."""
        text = accumulator.texts()[-1]
        dtype = self.node.tensor.dtype
        if self.e.problem.numerics == "eager" and compute_dtype(dtype) != dtype:
            self.e.line(f"{text} = cast(cast({text}, {dtype_marker(dtype)}), float32)")
        self.e.define(self.node.id, Variable(text, False, vector))


def combine_in_block(
    e: Emitter, items: list[tuple[Reducer, Accumulator]], threads: int, rows: int
) -> list[tuple[Reducer, Accumulator]]:
    """Reduce tiles over the threads of a row and define the results: a shuffle in a warp, one barrier beyond.

    A block is ``threads`` along x (a power of two, or a multiple of 32 with a power-of-two number of warps) times
    ``rows`` along y. Reductions given together share the barrier.
    """
    width = min(threads, 32)
    warps = threads // 32
    parts = [(reducer, reducer.warp(reducer.fold(acc, None, final=warps <= 1), width)) for reducer, acc in items]
    if warps > 1:
        scratches = [reducer.scratch(warps * rows) for reducer, _ in parts]
        with e.block("if lane() == 0:"):
            for (reducer, part), scratch in zip(parts, scratches, strict=True):
                reducer.put(scratch, "warp()", part)
        e.line("barrier()")
        first = "0" if rows == 1 else f"thread_y() * {warps}"
        parts = [
            (reducer, reducer.fold(reducer.get(scratch, first, str(warps)), None, final=True))
            for (reducer, _), scratch in zip(parts, scratches, strict=True)
        ]
    for reducer, part in parts:
        reducer.finish(part, vector=False)
    return parts


def prepare_cluster(e: Emitter, stages: tuple[tuple[int, ...], ...], warps: int, cluster: int) -> None:
    """Arm one mbarrier a stage for the partial results that every warp of the cluster will send to this block."""
    count = len(stages)
    e.line(f"arrived = mbarriers({count})")
    with e.block("if thread_x() == 0:"):
        for index in range(count):
            e.line(f"mbarrier_init(arrived, {index}, 1)")
        e.line("mbarrier_fence()")
        for index, stage in enumerate(stages):
            size = sum(compute_dtype(e.graph[e.graph[i].inputs[0]].tensor.dtype).itemsize for i in stage)
            e.line(f"mbarrier_expect(arrived, {index}, {size * warps * cluster})")
    e.line("cluster_arrive()")


def combine_in_cluster(
    e: Emitter, items: list[tuple[Reducer, Accumulator]], threads: int, cluster: int
) -> list[tuple[Reducer, Accumulator]]:
    """Reduce tiles over the threads of all blocks of a cluster and define the results.

    Every warp sends its partial result to every block by an asynchronous remote store; each block waits for all of them
    on its own mbarrier and adds them in one order, so all blocks find the same bits.
    """
    warps = threads // 32
    stage = e.clusters_combined
    parts = [(reducer, reducer.warp(reducer.fold(acc, None), 32)) for reducer, acc in items]
    scratches = [reducer.scratch(warps * cluster) for reducer, _ in parts]
    if stage == 0:
        e.line("cluster_wait()")
    with e.block(f"if lane() < {cluster}:"):
        for (_, part), scratch in zip(parts, scratches, strict=True):
            slot = f"cluster_rank() * {warps} + warp()"
            e.line(f"remote_store_async({scratch.value}, {slot}, {part.value}, lane(), arrived, {stage})")
    e.line(f"mbarrier_wait(arrived, {stage}, 0)")
    parts = [
        (reducer, reducer.fold(reducer.get(scratch, "0", str(warps * cluster)), None, final=True))
        for (reducer, _), scratch in zip(parts, scratches, strict=True)
    ]
    e.clusters_combined += 1
    for reducer, part in parts:
        reducer.finish(part, vector=False)
    return parts
