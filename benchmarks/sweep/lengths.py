# SPDX-License-Identifier: Apache-2.0
"""Which row lengths are measured: powers of two, multiples of 8, their neighbours, and both sides of every switch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence

LONGEST = 300_000

#: What decides the strategy at a row length, as far as it may change: equal values, no switch.
Key = Callable[[int], Hashable]


def families(longest: int = LONGEST) -> list[Sequence[int]]:
    """Lengths that allow accesses of the same width (in 16-bit elements): by 8, by 4 only, of single elements."""
    return [range(8, longest + 1, 8), range(4, longest + 1, 8), range(1, longest + 1, 2)]


def switches(key: Key, lengths: Sequence[int], samples: int = 96) -> list[tuple[int, int]]:
    """Neighbouring lengths of a sequence between which ``key`` changes.

    The key is asked at about ``samples`` places, evenly spaced in the logarithm, and bisected between those that
    differ; a change that is undone between two such places is not seen.
    """
    known: dict[int, Hashable] = {}

    def ask(index: int) -> Hashable:
        if index not in known:
            known[index] = key(lengths[index])
        return known[index]

    def between(low: int, high: int) -> Iterator[tuple[int, int]]:
        if ask(low) == ask(high):
            return
        if high - low == 1:
            yield lengths[low], lengths[high]
            return
        middle = (low + high) // 2
        yield from between(low, middle)
        yield from between(middle, high)

    last = len(lengths) - 1
    if last < 1:
        return []
    grid = sorted({round((last + 1) ** (k / samples)) - 1 for k in range(samples + 1)} | {last})
    return [pair for low, high in itertools.pairwise(grid) for pair in between(low, high)]


def fixed(longest: int = LONGEST) -> set[int]:
    """Powers of two and their neighbours, the lengths about 1024, and the longest."""
    found = set(range(1, 10)) | {1000, 1008, 1016, 1020, 1022, 1026, 1028, 1032, 1040, 1048, longest - 1, longest}
    power = 1
    while power <= longest:
        found |= {power - 1, power, power + 1}
        power *= 2
    return {length for length in found if 1 <= length <= longest}


def multiples(count: int, longest: int = LONGEST) -> list[int]:
    """About ``count`` multiples of 8, evenly spaced in the logarithm; of every fourth both neighbours."""
    found: list[int] = []
    for k in range(count):
        length = 8 * max(round((longest / 8) ** (k / max(count - 1, 1))), 1)
        found += [length - 1, length, length + 1] if k % 4 == 2 else [length]
    return list(dict.fromkeys(length for length in found if length <= longest))


def row_lengths(keys: Sequence[Key], limit: int = 250, longest: int = LONGEST) -> list[int]:
    """The lengths of a sweep, ascending.

    Args:
        keys: one an operation.
        limit: no multiples of 8 are added beyond this number of lengths; switches always are.
        longest: the longest row.
    """
    found = fixed(longest)
    for key in keys:
        for family in families(longest):
            for pair in switches(key, family):
                found |= set(pair)
    count = 112
    while count > 4 and len(found | set(multiples(count, longest))) > limit:
        count -= 4
    return sorted(found | set(multiples(count, longest)))


def thinned(lengths: Sequence[int], keep: int) -> list[int]:
    """About ``keep`` of the lengths, the first and the last among them."""
    if len(lengths) <= keep:
        return list(lengths)
    last = len(lengths) - 1
    return [lengths[round(k * last / (keep - 1))] for k in range(keep)]


def spread_order(lengths: Sequence[int]) -> list[int]:
    """The lengths in an order in which any beginning covers the whole range."""
    return [length for first in (0, 2, 1, 3) for length in lengths[first::4]]
