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

    def add(self, valid: str, base: str) -> None:
        """Accumulate a tile of rows; ``valid`` is its mask, ``base`` the text of the position of its first row."""

    def fold(self) -> None:
        """Fold what was accumulated to one tile of ``vector`` columns."""

    def clear(self) -> None:
        """The part stands for no rows from here on (the variables are set anew)."""

    def merge(self, texts: tuple[str, ...], rows: str) -> None:
        """Merge another part, of so many rows, into this one."""

    def finish(self, rows: str) -> None:
        """From here on the results are known; they stand for so many rows."""


class Single:
    """One reduction."""

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

    def start(self) -> None:
        self.part = self.reducer.start(self.e.constant("TILE", self.e.tile.numel))

    def add(self, valid: str, base: str) -> None:
        e, tile = self.e, self.e.tile
        positions = ""
        if self.reducer.spelling.pair:
            batch, step = e.constant("BATCH", tile.batch), e.constant("STEP", tile.step)
            positions = f"iota({batch}, {step}, 1, int64) + ({base})"
            if tile.vector > 1:
                positions = f"spread({positions}, {e.constant('VECTOR', tile.vector)})"
        self.reducer.step(self.part, self.reducer.operand(e.constant("TILE", tile.numel), valid), positions)

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

    The mean and the squares of each tile of rows are taken in the tile, so nothing cancels, and merged with what there
    is (Chan, Golub and LeVeque 1983); an infinite mean stays infinite.
    """

    def __init__(self, e: Emitter, joint: Joint) -> None:
        self.e, self.joint = e, joint
        self.dtype = compute_dtype(e.graph[joint.source].tensor.dtype)
        name = e.graph[joint.inner].name
        self.mean, self.squares, self.count = (e.fresh(f"{name}_{word}") for word in ("part", "squares", "rows"))

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

    def clear(self) -> None:
        vector = self.e.constant("VECTOR", self.e.tile.vector)
        self.e.line(f"{self.mean} = full({vector}, 0, {self.marker})")
        self.e.line(f"{self.squares} = full({vector}, 0, {self.marker})")
        self.e.line(f"{self.count} = 0")

    def add(self, valid: str, base: str) -> None:
        e, tile, name = self.e, self.e.tile, self.e.graph[self.joint.inner].name
        e.comment(e.graph[self.joint.first])
        count = e.constant("TILE", tile.numel)
        batch, step = e.constant("BATCH", tile.batch), e.constant("STEP", tile.step)
        vector = e.constant("VECTOR", tile.vector)
        text = e.tile_of(self.joint.source, count)
        held, own, off, squares = (e.fresh(f"{name}_{w}") for w in ("held", "tile", "offset", "tile_squares"))
        masked = text if e.zero_padded(self.joint.source) else f"where({valid}, {text}, 0)"
        e.line(f"{held} = min(udiv(max({e.limit} + {step} - 1, 0), {step}), {batch})")
        e.line(f"{own} = fold_sum({masked}, {vector}) * reciprocal(full(1, max({held}, 1), {self.marker}))")
        e.line(f"{off} = where({valid}, {text} - {e.widen(Variable(own, False, True), True, True)}, 0)")
        e.line(f"{squares} = fold_sum({off} * {off}, {vector})")
        self.merge((own, squares), held)

    def fold(self) -> None:
        pass

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
