# SPDX-License-Identifier: Apache-2.0
"""The mean and the squares about it of a row, in one exchange between threads.

Each thread takes the moments of its own elements, in two passes over its registers, so nothing cancels; parts meet by
the formula of Chan, Golub and LeVeque (1983). An infinite element makes the mean infinite and the squares NaN, as two
passes over the row do.
"""

from __future__ import annotations

from fusedsl.graph.graph import Graph
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.emit import Emitter, Variable
from fusedsl.schedulers.joint import Joint
from fusedsl.schedulers.text import dtype_marker


class RowMoments:
    """The exchange of a sum and the sum of squares about the mean (an :class:`~fusedsl.schedulers.combine.Exchange`).

    Args:
        e: where to write.
        joint: the pair of reductions.
        length: of a row.
    """

    def __init__(self, e: Emitter, joint: Joint, length: int) -> None:
        self.e, self.joint, self.length = e, joint, length
        self.name = e.graph[joint.inner].name
        self.marker = dtype_marker(compute_dtype(e.graph[joint.source].tensor.dtype))
        self.mean = self.squares = ""
        self.each: int | None = None  # elements of every part, where all have as many
        self.count = ""  # else: the variable that counts the part's

    def start(self, tile: str, elements: int, valid: str | None, *, padded: bool) -> None:
        """The thread's own moments, of ``elements`` elements less those where ``valid`` is false (``padded``: 0)."""
        e = self.e
        if valid is None:
            own = self.begin(tile, elements)
        else:
            self.count, own = e.fresh(f"{self.name}_count"), e.fresh(f"{self.name}_part")
            masked = tile if padded else f"where({valid}, {tile}, 0)"
            e.comment(e.graph[self.joint.first])
            e.line(f"{self.count} = tile_sum(where({valid}, full({elements}, 1, {self.marker}), 0))")
            e.line(f"{own} = tile_sum({masked}) / maximum({self.count}, 1)")
            self.mean = own
        off = e.fresh(f"{self.name}_offset")
        difference = f"{tile} - {own}"
        e.line(f"{off} = {difference}" if valid is None else f"{off} = where({valid}, {difference}, 0)")
        self.fold(f"{off} * {off}")

    def begin(self, tile: str, elements: int) -> str:
        """The mean of the thread's ``elements`` elements, all there, whose sum is that of a tile: the text of it."""
        self.each, self.mean = elements, self.e.fresh(f"{self.name}_part")
        self.e.comment(self.e.graph[self.joint.first])
        self.e.line(f"{self.mean} = tile_sum({tile}){self._divided(elements)}")
        return self.mean

    def fold(self, squares: str) -> None:
        """Sum the thread's squares about its mean, a tile."""
        self.squares = self.e.fresh(f"{self.name}_squares")
        self.e.line(f"{self.squares} = tile_sum({squares})")

    @property
    def values(self) -> tuple[tuple[str, str], ...]:
        texts = (self.mean, self.squares, *((self.count,) if self.count else ()))
        return tuple((self.marker, text) for text in texts)

    def in_warp(self, width: int, *, final: bool) -> None:
        if width > 1 or (final and self.count):
            total = f"warp_sum({{}}, {width})" if width > 1 else "({})"
            self._merge(self.values, width, total, final=final)

    def across(self, arrays: tuple[str, ...], first: str, count: int, base: str, *, final: bool = True) -> None:
        e = self.e
        parts = []
        for array, (marker, _) in zip(arrays, self.values, strict=True):
            parts.append((marker, e.fresh(f"{self.name}_all")))
            e.line(f"{parts[-1][1]} = shared_load({array}, {first}, {count})")
        self._merge(tuple(parts), count, "tile_sum({})", final=final)

    def _merge(self, parts: tuple[tuple[str, str], ...], count: int, total: str, *, final: bool) -> None:
        """Merge ``count`` parts; ``total`` is the text that sums a value of theirs."""
        e = self.e
        (_, mean), (_, squares), *counted = parts
        suffix = "" if final else "_warp"
        new, off = e.fresh(f"{self.name}{suffix}"), e.fresh(f"{self.name}_offset")
        if self.each is not None:
            e.line(f"{new} = {total.format(mean)}{self._divided(count)}")
            weight = f"{float(self.each)!r}"
        else:
            (_, weight), all_counts = counted[0], e.fresh(f"{self.name}_count")
            e.line(f"{all_counts} = {total.format(weight)}")
            divisor = all_counts if final else f"maximum({all_counts}, 1)"
            e.line(f"{new} = {total.format(f'{mean} * {weight}')} / {divisor}")
        e.line(f"{off} = {mean} - {new}")
        between = e.fresh(f"{self.name}_squares")
        e.line(f"{between} = {total.format(f'{squares} + {off} * {off} * {weight}')}")
        self.mean, self.squares = new, between
        if self.each is not None:
            self.each *= count
        else:
            self.count = all_counts

    def _divided(self, count: int) -> str:
        """Text that divides by a number of parts; the product is exact for powers of two."""
        return f" * {1 / count!r}" if count & (count - 1) == 0 else f" / {count}"

    def finish(self) -> None:
        """The sum, the function's own mean (its divisor may be any number), and the squares about that one."""
        e, joint = self.e, self.joint
        divisor = e.graph[joint.inner].inputs[1]
        length = e.integer("length", self.length)
        mean, off, squares = e.fresh(self.name), e.fresh(f"{self.name}_offset"), e.fresh(f"{self.name}_squares")
        number = e.scalar(divisor, compute_dtype(e.graph[joint.source].tensor.dtype))
        e.line(f"{mean} = {self.mean} * (full(1, {length}, {self.marker}) / {number})")
        e.line(f"{off} = {self.mean} - {mean}")
        e.line(f"{squares} = {self.squares} + {off} * {off} * {length}")
        if not _only_for_mean(e.graph, joint):
            total = e.fresh(e.graph[joint.first].name)
            e.line(f"{total} = {self.mean} * {length} if {length} > 0 else full(1, 0, {self.marker})")
            e.define(joint.first, Variable(total))
        e.define(joint.inner, Variable(mean))
        e.define(joint.second, Variable(squares))


def _only_for_mean(graph: Graph, joint: Joint) -> bool:
    """Whether the sum is used for the mean alone."""
    node_id = joint.first
    while node_id != joint.inner:
        users = graph.users()[node_id]
        if node_id in graph.outputs or len(users) != 1 or graph[users[0]].op not in ("reindex", "cast", "div"):
            return False
        (node_id,) = users
    return True
