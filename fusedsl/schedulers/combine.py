# SPDX-License-Identifier: Apache-2.0
"""How each reduction op is spelled in kernel text: identity, merging accumulators, folding a tile, a warp, a block."""

from __future__ import annotations

from typing import Protocol

import attrs
import torch

from fusedsl.graph.graph import Node
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.approximations import approximate_text
from fusedsl.schedulers.emit import Emitter, Variable
from fusedsl.schedulers.joint import Joint
from fusedsl.schedulers.text import dtype_marker


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
        text = self.e.tile_of(self.node.inputs[0], count)
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


class Exchange(Protocol):
    """A reduction, or a joint pair, on its way from every thread's tile to the row's result."""

    @property
    def values(self) -> tuple[tuple[str, str], ...]:
        """The (dtype marker, text) of what a thread, then a warp, hands on."""

    def in_warp(self, width: int, *, final: bool) -> None:
        """All-reduce among ``width`` lanes; ``final``: this is the row's result."""

    def across(self, arrays: tuple[str, ...], first: str, count: int, base: str, *, final: bool = True) -> None:
        """Merge ``count`` partial results from ``first`` on in shared arrays, one a value.

        The row's partial results begin at ``base``; ``final``: these are all of them.
        """

    def finish(self) -> None:
        """From here on the results are known."""


class Single:
    """The exchange of one reduction."""

    def __init__(self, reducer: Reducer, accumulator: Accumulator) -> None:
        self.reducer = reducer
        self.accumulator = accumulator

    @property
    def parts(self) -> tuple[tuple[torch.dtype, str], ...]:
        """As ``values``, with dtypes."""
        return tuple(zip(self.reducer.workspace_dtypes(), self.accumulator.texts(), strict=True))

    @property
    def values(self) -> tuple[tuple[str, str], ...]:
        return tuple((dtype_marker(dtype), text) for dtype, text in self.parts)

    def in_warp(self, width: int, *, final: bool) -> None:
        self.accumulator = self.reducer.warp(self.reducer.fold(self.accumulator, None, final=final), width)

    def across(self, arrays: tuple[str, ...], first: str, count: int, base: str, *, final: bool = True) -> None:
        texts = [f"shared_load({array}, {first}, {count})" for array in arrays]
        self.accumulator = self.reducer.fold(Accumulator(*texts), None, final=final)

    def finish(self) -> None:
        self.reducer.finish(self.accumulator, vector=False)


class ShiftedSum:
    """The exchange of a maximum and the sum of exponentials shifted by it. -inf everywhere gives NaN, as in eager."""

    def __init__(self, e: Emitter, joint: Joint) -> None:
        self.e, self.joint = e, joint
        self.names = e.graph[joint.first].name, e.graph[joint.second].name
        self.lowest = f"-{e.constant('INF', float('inf'))}"
        self.exp = "fast_exp" if approximate_text(e.graph, e.graph[joint.inner]) else "exp"
        self.top = self.shift = self.part = self.local = self.thread_shift = ""

    def start(self, maximum: str) -> str:
        """Shift by the thread's own maximum (the text of a tile); gives the text to subtract."""
        e = self.e
        self.top, self.shift = e.fresh(f"{self.names[0]}_part"), e.fresh(f"{self.names[0]}_shift")
        e.line(f"{self.top} = tile_max({maximum})")
        e.line(f"{self.shift} = {self.finite(self.top)}")
        self.thread_shift = self.shift
        return self.shift

    def fold(self, terms: str, *, keep: bool = False) -> None:
        """Sum the thread's exponentials, a tile; ``keep``: which the results are computed from."""
        self.part = self.e.fresh(f"{self.names[1]}_part")
        self.e.line(f"{self.part} = tile_sum({terms})")
        self.local = terms if keep else ""

    @property
    def values(self) -> tuple[tuple[str, str], ...]:
        return ("float32", self.top), ("float32", self.part)

    def finite(self, top: str) -> str:
        """Text of a maximum to shift by: 0 where there is nothing above -inf."""
        return f"where({top} == {self.lowest}, 0.0, {top})"

    def in_warp(self, width: int, *, final: bool) -> None:
        e = self.e
        top, shift = e.fresh(self.names[0] if final else f"{self.names[0]}_warp"), e.fresh(f"{self.names[0]}_shift")
        part = e.fresh(self.names[1] if final else f"{self.names[1]}_warp")
        e.line(f"{top} = warp_max({self.top}, {width})" if width > 1 else f"{top} = {self.top}")
        e.line(f"{shift} = {self.finite(top)}")
        scaled = f"{self.part} * {self.exp}({self.shift} - {shift})"
        e.line(f"{part} = warp_sum({scaled}, {width})" if width > 1 else f"{part} = {scaled}")
        self.top, self.shift, self.part = top, shift, part

    def across(self, arrays: tuple[str, ...], first: str, count: int, base: str, *, final: bool = True) -> None:
        e = self.e
        tops, top, shift = e.fresh(f"{self.names[0]}_all"), e.fresh(self.names[0]), e.fresh(f"{self.names[0]}_shift")
        part = e.fresh(self.names[1])
        e.line(f"{tops} = shared_load({arrays[0]}, {first}, {count})")
        e.line(f"{top} = tile_max({tops})")
        e.line(f"{shift} = {self.finite(top)}")
        sums = f"shared_load({arrays[1]}, {first}, {count})"
        e.line(f"{part} = tile_sum({sums} * {self.exp}({tops} - {shift}))")
        self.top, self.shift, self.part = top, shift, part

    def finish(self) -> None:
        e, joint = self.e, self.joint
        total = e.fresh(self.names[1])
        e.line(f"{total} = where({self.top} == {self.lowest}, {e.constant('NAN', float('nan'))}, {self.part})")
        e.define(joint.first, Variable(self.top))
        e.define(joint.second, Variable(total))
        if self.local and (len(e.graph.users()[joint.inner]) > 1 or joint.inner in e.graph.outputs):
            name = e.fresh(e.graph[joint.inner].name)
            e.line(f"{name} = {self.local} * {self.exp}({self.thread_shift} - {self.top})")
            e.define(joint.inner, Variable(name, True, True))


def combine_in_block(
    e: Emitter,
    items: list[Exchange],
    threads: int,
    rows: int = 1,
    turn: str | None = None,
    *,
    finish: bool = True,
) -> None:
    """Reduce tiles over the threads of a row and define the results: a shuffle in a warp, one barrier beyond.

    A block is ``threads`` along x (a power of two, or a multiple of 32 with a power-of-two number of warps) times
    ``rows`` along y. Reductions given together share the barrier. In a loop over rows ``turn`` is a variable that is 0
    and 1 in turns: partial results then lie in two places in turns, so that the barrier of the next row is enough to
    use a place again. ``finish=False``: these are parts of results still.
    """
    warps = threads // 32
    for item in items:
        item.in_warp(min(threads, 32), final=warps <= 1)
    if warps > 1:
        assert turn is None or rows == 1
        scratches = [scratch(e, item, warps * (rows if turn is None else 2)) for item in items]
        place = "warp()" if turn is None else f"{turn} * {warps} + warp()"
        with e.block("if lane() == 0:"):
            for item, arrays in zip(items, scratches, strict=True):
                for array, (_, text) in zip(arrays, item.values, strict=True):
                    e.line(f"shared_store({array}, {place}, {text})")
        e.line("barrier()")
        first = "0" if rows == 1 else f"thread_y() * {warps}"
        if turn is not None:
            first = f"{turn} * {warps}"
        for item, arrays in zip(items, scratches, strict=True):
            item.across(arrays, first, warps, first)
    if finish:
        for item in items:
            item.finish()


def scratch(e: Emitter, item: Exchange, count: int) -> tuple[str, ...]:
    """Shared arrays for the partial results of ``count`` warps."""
    names = []
    for marker, text in item.values:
        names.append(e.fresh(f"{text}_smem"))
        e.line(f"{names[-1]} = shared({marker}, {count})")
    return tuple(names)
