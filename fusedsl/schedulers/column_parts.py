# SPDX-License-Identifier: Apache-2.0
"""Reductions of columns in progress: what a thread has of its columns, and how the parts of several threads merge.

A part is a tile of ``vector`` columns a value; parts that need it count the rows they stand for.
"""

from __future__ import annotations

from typing import Protocol

import torch

from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.combine import Accumulator, Reducer
from fusedsl.schedulers.emit import Emitter, Variable
from fusedsl.schedulers.joint import Joint
from fusedsl.schedulers.text import dtype_marker


class ColumnPart(Protocol):
    """A reduction, or a pair of them, of one thread's columns."""

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Of the values of a part."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The values of the part, once it is folded."""

    @property
    def rows(self) -> str | None:
        """The variable that counts the part's rows, if it does."""

    @property
    def sources(self) -> tuple[int, ...]:
        """The nodes that are read to accumulate."""

    def start(self) -> None:
        """Nothing is accumulated."""

    def add(self, valid: str | None, base: str) -> None:
        """Accumulate a tile of rows; ``valid`` is its mask, None if all its rows are there; ``base`` is the text of the
        position of its first row."""

    def fold(self) -> None:
        """Fold what was accumulated to one tile of ``vector`` columns."""

    def clear(self) -> None:
        """The part stands for no rows from here on (the variables are set anew)."""

    def merge(self, texts: tuple[str, ...], rows: str) -> None:
        """Merge another part, of so many rows, into this one."""

    def finish(self, rows: str) -> None:
        """From here on the results are known; they stand for so many rows."""


class Single:
    """One reduction. Sums gather in a tile of one row, other reductions in one of as many rows as are added at once."""

    def __init__(self, e: Emitter, node_id: int) -> None:
        self.e = e
        self.reducer = Reducer(e, e.graph[node_id])
        self.part = Accumulator("")

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return self.reducer.workspace_dtypes()

    @property
    def texts(self) -> tuple[str, ...]:
        return self.part.texts()

    @property
    def rows(self) -> None:
        return None

    @property
    def sources(self) -> tuple[int, ...]:
        return (self.reducer.node.inputs[0],)

    @property
    def adds(self) -> bool:
        """Whether it is a sum."""
        return self.reducer.spelling.word == "sum"

    def start(self) -> None:
        e, tile = self.e, self.e.tile
        count = e.constant("VECTOR", tile.vector) if self.adds else e.constant("TILE", tile.numel)
        self.part = self.reducer.start(count)

    def add(self, valid: str | None, base: str) -> None:
        e, tile = self.e, self.e.tile
        operand = self.reducer.operand(e.constant("TILE", tile.numel), valid)
        if self.adds:
            e.comment(self.reducer.node)
            e.line(f"{self.part.value} = add_rows({self.part.value}, {operand})")
            return
        positions = ""
        if self.reducer.spelling.pair:
            batch, step = e.constant("BATCH", tile.batch), e.constant("STEP", tile.step)
            positions = f"iota({batch}, {step}, 1, int64) + ({base})"
            if tile.vector > 1:
                positions = f"spread({positions}, {e.constant('VECTOR', tile.vector)})"
        self.reducer.step(self.part, operand, positions)

    def fold(self) -> None:
        self.part = self.reducer.fold(self.part, self.e.constant("VECTOR", self.e.tile.vector), final=True)

    def clear(self) -> None:
        vector = self.e.constant("VECTOR", self.e.tile.vector)
        self.e.line(f"{self.part.value} = full({vector}, {self.reducer.identity}, {self.reducer.marker})")
        if self.part.index is not None:
            self.e.line(f"{self.part.index} = full({vector}, 0, int64)")

    def merge(self, texts: tuple[str, ...], rows: str) -> None:
        self.reducer.step(self.part, texts[0], texts[-1])

    def finish(self, rows: str) -> None:
        self.reducer.finish(self.part, vector=True)


class Moments:
    """A sum and the sum of squares about the mean, in one pass.

    A thread sums offsets from a shift, and their squares, and moves the shift after each tile by the mean offset, so
    that it follows the mean: moving it by d makes of the sum s and the sum of squares q of n offsets ``s - n*d`` and
    ``q - d*(s + (s - n*d))``. That holds for any d (it is the difference of two shifts, not the quotient that asked for
    it), so an approximate quotient costs nothing, and what rounding leaves in s is not lost. Little cancels: the m
    offsets of a tile have ``s*s <= m*q``, so moving takes at most the part m/n of q, a half from the second tile on.
    The first shift is the mean of the first tile, or, where that has padding, its first row: then q is at most m times
    what is left of it. An infinite or NaN sum moves nothing and stays in s.

    Parts of threads and blocks, means and squares about them, are merged by counts (Chan, Golub and LeVeque 1983).
    """

    def __init__(self, e: Emitter, joint: Joint) -> None:
        self.e, self.joint = e, joint
        self.dtype = compute_dtype(e.graph[joint.source].tensor.dtype)
        name = e.graph[joint.inner].name
        words = ("part", "squares", "rows", "total")
        self.mean, self.squares, self.count, self.total = (e.fresh(f"{name}_{word}") for word in words)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return self.dtype, self.dtype

    @property
    def texts(self) -> tuple[str, ...]:
        return self.mean, self.squares

    @property
    def rows(self) -> str:
        return self.count

    @property
    def sources(self) -> tuple[int, ...]:
        return (self.joint.source,)

    @property
    def marker(self) -> str:
        return dtype_marker(self.dtype)

    def start(self) -> None:
        self.clear()
        self.e.line(f"{self.total} = full({self.e.constant('VECTOR', self.e.tile.vector)}, 0, {self.marker})")

    def clear(self) -> None:
        vector = self.e.constant("VECTOR", self.e.tile.vector)
        self.e.line(f"{self.mean} = full({vector}, 0, {self.marker})")
        self.e.line(f"{self.squares} = full({vector}, 0, {self.marker})")
        self.e.line(f"{self.count} = 0")

    def add(self, valid: str | None, base: str) -> None:
        e, tile, name = self.e, self.e.tile, self.e.graph[self.joint.inner].name
        e.comment(e.graph[self.joint.first])
        vector, batch = e.constant("VECTOR", tile.vector), e.constant("BATCH", tile.batch)
        text = e.tile_of(self.joint.source, e.constant("TILE", tile.numel))
        off, step, moved, rest, first = (e.fresh(f"{name}_{w}") for w in ("offset", "step", "moved", "left", "first"))
        with e.block(f"if {self.count} == 0:"):
            mean = f"fold_sum({text}, {vector}) * (1 / {batch})"
            e.line(f"{first} = {mean if valid is None else f'take({text}, 0, {vector})'}")
            e.line(f"{self.mean} = {self.where_finite(first)}")
        offset = f"{text} - {e.widen(Variable(self.mean, False, True), True, True)}"
        e.line(f"{off} = {offset}" if valid is None else f"{off} = where({valid}, {offset}, 0)")
        e.line(f"{self.total} = add_rows({self.total}, {off})")
        e.line(f"{self.squares} = add_rows({self.squares}, {off} * {off})")
        if valid is None:
            e.line(f"{self.count} = {self.count} + {batch}")
        else:
            stride = e.constant("STEP", tile.step)
            e.line(f"{self.count} = {self.count} + min(udiv(max({e.limit} + {stride} - 1, 0), {stride}), {batch})")
        e.line(f"{step} = {self.where_finite(f'{self.total} * {self.inverse()}')}")
        e.line(f"{moved} = {self.mean} + {step}")
        e.line(f"{step} = {moved} - {self.mean}")
        e.line(f"{rest} = {self.total} - {step} * full(1, {self.count}, {self.marker})")
        e.line(f"{self.squares} = {self.squares} - {step} * ({self.total} + {rest})")
        e.line(f"{self.mean} = {moved}")
        e.line(f"{self.total} = {rest}")

    def inverse(self) -> str:
        """Text of about 1 / rows."""
        word = "fast_reciprocal" if self.dtype == torch.float32 else "reciprocal"
        return f"{word}(full(1, max({self.count}, 1), {self.marker}))"

    def where_finite(self, text: str) -> str:
        """Text of the finite elements of a tile; 0 for the others."""
        e = self.e
        name = text
        if not text.isidentifier():
            name = e.fresh(f"{e.graph[self.joint.inner].name}_quotient")
            e.line(f"{name} = {text}")
        return f"where(abs_({name}) < {e.constant('INF', float('inf'))}, {name}, 0)"

    def fold(self) -> None:
        """The mean is the shift and the mean offset."""
        e = self.e
        step = e.fresh(f"{e.graph[self.joint.inner].name}_step")
        e.line(f"{step} = {self.total} * {self.inverse()}")
        e.line(f"{self.mean} = {self.mean} + {step}")
        e.line(f"{self.squares} = {self.squares} - {step} * {self.total}")

    def merge(self, texts: tuple[str, ...], rows: str) -> None:
        e, name = self.e, self.e.graph[self.joint.inner].name
        added, total, share, other, between = (
            e.fresh(f"{name}_{word}") for word in ("added", "total", "share", "other", "between")
        )
        mean, squares = texts
        e.line(f"{added} = {rows}")
        e.line(f"{total} = {self.count} + {added}")
        e.line(f"{share} = full(1, {added}, {self.marker}) / full(1, max({total}, 1), {self.marker})")
        e.line(f"{other} = {mean}")
        e.line(f"{between} = {other} - {self.mean}")
        weight = f"full(1, {self.count}, {self.marker}) * {share}"
        e.line(f"{self.squares} = {self.squares} + {squares} + {between} * {between} * ({weight})")
        near = f"abs_({between}) < {e.constant('INF', float('inf'))}"
        e.line(f"{self.mean} = {self.mean} + where({near}, {between} * {share}, {other})")
        e.line(f"{self.count} = {total}")

    def finish(self, rows: str) -> None:
        """The sum, the function's own mean (its divisor may be any number), and the squares about that one."""
        e, joint = self.e, self.joint
        names = (e.graph[node_id].name for node_id in (joint.first, joint.inner, joint.second))
        total, mean, squares = (e.fresh(name) for name in names)
        divisor = e.scalar(e.graph[joint.inner].inputs[1], self.dtype)
        offset = e.fresh(f"{mean}_offset")
        e.line(f"{total} = {self.mean} * {rows}")
        e.line(f"{mean} = {self.mean} * (full(1, {rows}, {self.marker}) / {divisor})")
        e.line(f"{offset} = {self.mean} - {mean}")
        e.line(f"{squares} = {self.squares} + {offset} * {offset} * {rows}")
        for node_id, text in ((joint.first, total), (joint.inner, mean), (joint.second, squares)):
            e.define(node_id, Variable(text, False, True))
