# SPDX-License-Identifier: Apache-2.0
"""What a sweep says: cliffs between neighbouring lengths, and long rows far below the copy rate."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

#: A length is a cliff where a byte takes more than this many times as long as at a neighbouring length.
CLIFF = 1.25
#: Lengths are neighbours where nothing was measured between them and one is at most this many times the other.
NEAR = 1.125
#: Rows of at least ``LONG`` elements should reach this part of the copy rate.
LONG = 256
FAST_ENOUGH = 0.85


@attrs.frozen
class Point:
    """One operation at one row length.

    Attributes:
        operation: its name.
        dtype: of the matrix.
        length: elements of a row.
        rows: number of rows.
        strategy: short name of what the planner chose.
        params: the parameters of every segment.
        median_us: GPU time of a call in microseconds.
        gbps: minimal traffic over the median time, in GB/s.
        copy_gbps: rate of ``Tensor.copy_`` of the same matrix, taken in turns with it, in GB/s.
        error: relative error of some of the rows.
        correct: whether it is within the limit.
    """

    operation: str
    dtype: str
    length: int
    rows: int
    strategy: str
    params: tuple[str, ...]
    median_us: float
    gbps: float
    copy_gbps: float
    error: float
    correct: bool

    @property
    def of_copy(self) -> float:
        """Part of the copy rate."""
        return self.gbps / self.copy_gbps


@attrs.frozen
class Cliff:
    """A length at which a byte takes ``ratio`` times as long as at ``neighbour``; times are relative to the copy's."""

    operation: str
    dtype: str
    length: int
    neighbour: int
    ratio: float


def _groups(points: Sequence[Point]) -> list[list[Point]]:
    """The points of every operation and dtype, by length."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.operation, point.dtype), []).append(point)
    return [sorted(group, key=lambda p: p.length) for group in groups.values()]


def cliffs(points: Sequence[Point], ratio: float = CLIFF, near: float = NEAR) -> list[Cliff]:
    """The lengths that are slower than a neighbour by more than ``ratio``, each once, beside its faster neighbour."""
    found: dict[tuple[str, str, int], Cliff] = {}
    for group in _groups(points):
        for left, right in itertools.pairwise(group):
            if right.length > near * left.length:
                continue
            slow, fast = (left, right) if left.of_copy < right.of_copy else (right, left)
            times = fast.of_copy / slow.of_copy
            key = (slow.operation, slow.dtype, slow.length)
            if times > ratio and (key not in found or times > found[key].ratio):
                found[key] = Cliff(*key, fast.length, times)
    return list(found.values())


def slow(points: Sequence[Point], part: float = FAST_ENOUGH, long: int = LONG) -> list[Point]:
    """Points with rows of at least ``long`` elements below ``part`` of the copy rate."""
    return [p for group in _groups(points) for p in group if p.length >= long and p.of_copy < part]


def report(points: Sequence[Point]) -> str:
    """The verdict as text."""
    lines = []
    for group in _groups(points):
        first, name = group[0], f"{group[0].operation} {group[0].dtype}"
        counted = [p.of_copy for p in group if p.length >= LONG]
        least = f", least of the copy rate from {LONG} on {min(counted):.2f}" if counted else ""
        lines.append(f"{name}: {len(group)} lengths from {first.length} to {group[-1].length}{least}")
        lines += [f"  wrong at {p.length}: relative error {p.error:.2e}" for p in group if not p.correct]
        for cliff in cliffs(group):
            lines.append(f"  cliff at {cliff.length}: {cliff.ratio:.2f} times the time a byte of {cliff.neighbour}")
        for point in slow(group):
            lines.append(f"  slow at {point.length}: {point.of_copy:.2f} of the copy rate ({point.strategy})")
    return "\n".join(lines)
