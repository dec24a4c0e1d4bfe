# SPDX-License-Identifier: Apache-2.0
"""Reductions of a tile inside one thread (a tree of adjacent pairs) and across the lanes of a warp (a butterfly)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusedsl.numba_cuda.interpreter.block import WARP, Thread, call_site, current_thread
from fusedsl.numba_cuda.interpreter.errors import AbsentLane, InvalidOperand, TileMismatch
from fusedsl.numba_cuda.interpreter.tile import Array, Tile

Combine = Callable[[Any, Any], Any]
Pair = tuple[Array, Array]


def _pick(v: Array, i: Array, w: Array, j: Array, better: Combine) -> Pair:
    """The winner of two (value, index) pairs: NaN, then the better value, then the smaller index."""
    first = better(v, w) | ((v == w) & (i < j))
    if v.dtype.kind == "f":
        v_nan, w_nan = np.isnan(v), np.isnan(w)
        first = np.where(v_nan | w_nan, v_nan & (~w_nan | (i < j)), first)
    return np.where(first, v, w), np.where(first, i, j)


_ALL_KINDS = ("bool", "int", "uint", "float")
_NUMBERS = ("int", "uint", "float")
_BOOLEANS = ("bool",)


def _check(name: str, tile: Tile, kinds: tuple[str, ...]) -> None:
    if tile.__class__ is Tile and kinds is not _BOOLEANS:
        return
    if not isinstance(tile, Tile) or tile.dtype.is_half or tile.dtype.kind not in kinds:
        held = f"{tile.dtype} tiles have" if isinstance(tile, Tile) else f"a {type(tile).__name__} has"
        expected = "a boolean tile" if kinds is _BOOLEANS else "a tile of float32, float64 or integers"
        raise TileMismatch(f"{held} no {name}", expected=expected)


def _check_pair(name: str, v: Tile, i: Tile) -> None:
    _check(name, v, _ALL_KINDS)
    if not isinstance(i, Tile) or not i.dtype.is_integer or i.n != v.n:
        raise TileMismatch(f"{name} needs an index for every value", expected=f"an integer tile of {v.n} elements")


# within a thread -----------------------------------------------------------------------------------------------------


def _check_fold(name: str, n: int, vector: int) -> None:
    if vector < 1 or n % vector:
        raise InvalidOperand(f"{name} by {vector} of {n} elements", expected="a divisor of the number of elements")


def _fold_reduction(name: str, combine: Combine, kinds: tuple[str, ...]) -> Callable[[Tile, int], Tile]:
    def call(t: Tile, vector: int) -> Tile:
        _check(name, t, kinds)
        values = t.values
        if vector > 1:
            _check_fold(name, len(values), vector)
            values = values.reshape(-1, vector)
        n = len(values)
        while n > 1:
            half = combine(values[0 : n - 1 : 2], values[1:n:2])
            values = np.concatenate([half, values[-1:]]) if n % 2 else half
            n = len(values)
        return t.__class__(t.dtype, values if vector == 1 else values[0])

    call.__name__ = call.__qualname__ = name
    return call


def _tile_reduction(name: str, combine: Combine, kinds: tuple[str, ...]) -> Callable[[Tile], Tile]:
    fold = _fold_reduction(name, combine, kinds)

    def call(t: Tile) -> Tile:
        return fold(t, 1)

    call.__name__ = call.__qualname__ = name
    return call


def _fold_arg_reduction(name: str, better: Combine) -> Callable[[Tile, Tile, int], tuple[Tile, Tile]]:
    def call(v: Tile, i: Tile, vector: int) -> tuple[Tile, Tile]:
        _check_pair(name, v, i)
        _check_fold(name, v.n, vector)
        values, index = v.values.reshape(-1, vector), i.values.reshape(-1, vector)
        while (n := len(values)) > 1:
            value, place = _pick(values[0 : n - 1 : 2], index[0 : n - 1 : 2], values[1:n:2], index[1:n:2], better)
            values = np.concatenate([value, values[-1:]]) if n % 2 else value
            index = np.concatenate([place, index[-1:]]) if n % 2 else place
        return v.__class__(v.dtype, values[0]), Tile(i.dtype, index[0])

    call.__name__ = call.__qualname__ = name
    return call


def add_rows(total: Tile, t: Tile) -> Tile:
    """``total`` with the rows of a tile, of as many elements each, added one after another."""
    for tile in (total, t):
        _check("add_rows", tile, _NUMBERS)
    if t.dtype is not total.dtype:
        raise TileMismatch(f"add_rows of {t.dtype} to {total.dtype}", expected="one dtype")
    _check_fold("add_rows", t.n, total.n)
    values = total.values
    for row in t.values.reshape(-1, total.n):
        values = values + row
    return total.__class__(total.dtype, values)


def _tile_arg_reduction(name: str, better: Combine) -> Callable[[Tile, Tile], tuple[Tile, Tile]]:
    fold = _fold_arg_reduction(name, better)

    def call(v: Tile, i: Tile) -> tuple[Tile, Tile]:
        return fold(v, i, 1)

    call.__name__ = call.__qualname__ = name
    return call


# across a warp -------------------------------------------------------------------------------------------------------


def _gather_lanes(name: str, values: list[Array]) -> Array:
    """What the lanes brought, as one array [lanes, n]."""
    kinds = {(value.dtype, len(value)) for value in values}
    if len(kinds) > 1:
        shown = ", ".join(sorted(f"{n} {dtype} elements" for dtype, n in kinds))
        raise TileMismatch(
            f"{name} of different tiles in the lanes of a warp: {shown}", expected="one type in all lanes"
        )
    return np.concatenate(values).reshape(len(values), -1)


def _check_width(name: str, width: int, lanes: int) -> None:
    if width not in (1, 2, 4, 8, 16, 32):
        raise InvalidOperand(f"{name} over {width} lanes", expected="1, 2, 4, 8, 16 or 32 lanes")
    if lanes % width:
        raise AbsentLane(
            f"{name} over groups of {width} lanes in a warp that has {lanes}", expected=f"a multiple of {width} lanes"
        )


def butterfly(values: Array, width: int, combine: Combine) -> Array:
    """All-reduce [lanes, n] among groups of ``width`` lanes, offsets width/2 ... 1 -> [lanes / width, n].

    Both partners of an exchange compute the same sum, so one row a group stands for all its lanes.
    """
    lanes, n = values.shape
    groups = values.reshape(lanes // width, width, n)
    while width > 1:
        width //= 2
        groups = combine(groups[:, :width], groups[:, width:])
    return groups[:, 0]


def _arrive(thread: Thread, name: str, value: Any, site: int) -> bool:
    """Bring a value to the warp's meeting; True for the lane that must compute and `_leave`."""
    meeting = thread.warp.meeting
    if meeting.count and meeting.site != site:
        thread.park(name)  # the warp is split: nobody will come, and the deadlock report says who waits where
    meeting.values[thread.lane] = value
    return thread.arrive(meeting, name, site)


def _leave(thread: Thread, result: Any) -> None:
    """Hand all lanes the result of their meeting."""
    warp = thread.warp
    warp.meeting.result = result
    warp.read_epoch += 1
    thread.release(warp.meeting)


def _warp_reduction(name: str, combine: Combine, kinds: tuple[str, ...]) -> Callable[[Tile, int], Tile]:
    def call(t: Tile, width: int) -> Tile:
        _check(name, t, kinds)
        if width == 1:
            return t
        thread = current_thread()
        meeting = thread.warp.meeting
        if _arrive(thread, name, t.values, call_site()):
            _check_width(name, width, meeting.size)
            _leave(thread, butterfly(_gather_lanes(name, meeting.values), width, combine))
        return t.__class__(t.dtype, meeting.result[thread.lane // width])

    call.__name__ = call.__qualname__ = name
    return call


def _warp_arg_reduction(name: str, better: Combine) -> Callable[[Tile, Tile, int], tuple[Tile, Tile]]:
    def call(v: Tile, i: Tile, width: int) -> tuple[Tile, Tile]:
        _check_pair(name, v, i)
        if width == 1:
            return v, i
        thread = current_thread()
        meeting = thread.warp.meeting
        if _arrive(thread, name, (v.values, i.values), call_site()):
            _check_width(name, width, meeting.size)
            value, index = (_gather_lanes(name, [pair[k] for pair in meeting.values]) for k in (0, 1))
            _leave(thread, _butterfly_pairs(value, index, width, better))
        values, indices = meeting.result
        group = thread.lane // width
        return v.__class__(v.dtype, values[group]), Tile(i.dtype, indices[group])

    call.__name__ = call.__qualname__ = name
    return call


def _butterfly_pairs(value: Array, index: Array, width: int, better: Combine) -> Pair:
    """As `butterfly`, of (value, index) pairs."""
    groups = len(value) // width
    value, index = value.reshape(groups, width, -1), index.reshape(groups, width, -1)
    while width > 1:
        width //= 2
        value, index = _pick(value[:, :width], index[:, :width], value[:, width:], index[:, width:], better)
    return value[:, 0], index[:, 0]


def _shuffle(name: str, t: Tile, lane: int, site: int) -> Tile:
    """Every lane brings a tile and reads the one of ``lane``."""
    if not isinstance(t, Tile):
        raise TileMismatch(f"{name} of a {type(t).__name__}", expected="a tile")
    thread = current_thread()
    meeting = thread.warp.meeting
    if _arrive(thread, name, t.values, site):
        _leave(thread, _gather_lanes(name, meeting.values))
    if not 0 <= lane < meeting.size:
        raise AbsentLane(f"{name} reads lane {lane} of a warp that has {meeting.size}", expected="a lane of the warp")
    return t.__class__(t.dtype, meeting.result[lane])


def shuffle_xor(t: Tile, mask: int) -> Tile:
    """The tile of lane ``lane() ^ mask``."""
    return _shuffle("shuffle_xor", t, current_thread().lane ^ mask, call_site())


def shuffle_down(t: Tile, delta: int) -> Tile:
    """The tile of lane ``lane() + delta``, the thread's own where that is past lane 31."""
    lane = current_thread().lane
    return _shuffle("shuffle_down", t, lane + delta if lane + delta < WARP else lane, call_site())


def shuffle_index(t: Tile, lane: int) -> Tile:
    """The tile of lane ``lane``, modulo 32."""
    return _shuffle("shuffle_index", t, lane % WARP, call_site())


tile_sum = _tile_reduction("tile_sum", np.add, _NUMBERS)
tile_prod = _tile_reduction("tile_prod", np.multiply, _NUMBERS)
tile_max = _tile_reduction("tile_max", np.maximum, _ALL_KINDS)
tile_min = _tile_reduction("tile_min", np.minimum, _ALL_KINDS)
tile_any = _tile_reduction("tile_any", np.logical_or, _BOOLEANS)
tile_all = _tile_reduction("tile_all", np.logical_and, _BOOLEANS)
tile_argmax = _tile_arg_reduction("tile_argmax", np.greater)
tile_argmin = _tile_arg_reduction("tile_argmin", np.less)

fold_sum = _fold_reduction("fold_sum", np.add, _NUMBERS)
fold_prod = _fold_reduction("fold_prod", np.multiply, _NUMBERS)
fold_max = _fold_reduction("fold_max", np.maximum, _ALL_KINDS)
fold_min = _fold_reduction("fold_min", np.minimum, _ALL_KINDS)
fold_any = _fold_reduction("fold_any", np.logical_or, _BOOLEANS)
fold_all = _fold_reduction("fold_all", np.logical_and, _BOOLEANS)
fold_argmax = _fold_arg_reduction("fold_argmax", np.greater)
fold_argmin = _fold_arg_reduction("fold_argmin", np.less)

warp_sum = _warp_reduction("warp_sum", np.add, _NUMBERS)
warp_prod = _warp_reduction("warp_prod", np.multiply, _NUMBERS)
warp_max = _warp_reduction("warp_max", np.maximum, _ALL_KINDS)
warp_min = _warp_reduction("warp_min", np.minimum, _ALL_KINDS)
warp_any = _warp_reduction("warp_any", np.logical_or, _BOOLEANS)
warp_all = _warp_reduction("warp_all", np.logical_and, _BOOLEANS)
warp_argmax = _warp_arg_reduction("warp_argmax", np.greater)
warp_argmin = _warp_arg_reduction("warp_argmin", np.less)
