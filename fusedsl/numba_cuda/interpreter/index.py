# SPDX-License-Identifier: Apache-2.0
"""Where a thread stands, and unsigned index arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusedsl.numba_cuda.interpreter.block import WARP, current_thread
from fusedsl.numba_cuda.interpreter.errors import InvalidOperand, TileMismatch
from fusedsl.numba_cuda.interpreter.storage import element_type
from fusedsl.numba_cuda.interpreter.tile import Tile, operand, refuse_size

_MASK = (1 << 64) - 1


def thread_x() -> int:
    """Index of the thread in its block, x."""
    return current_thread().index[0]


def thread_y() -> int:
    """Index of the thread in its block, y."""
    return current_thread().index[1]


def thread_z() -> int:
    """Index of the thread in its block, z."""
    return current_thread().index[2]


def block_x() -> int:
    """Index of the block in the grid, x."""
    return current_thread().block.index[0]


def block_y() -> int:
    """Index of the block in the grid, y."""
    return current_thread().block.index[1]


def block_z() -> int:
    """Index of the block in the grid, z."""
    return current_thread().block.index[2]


def grid_x() -> int:
    """Blocks of the grid in x."""
    return current_thread().block.scheduler.grid[0]


def grid_y() -> int:
    """Blocks of the grid in y."""
    return current_thread().block.scheduler.grid[1]


def grid_z() -> int:
    """Blocks of the grid in z."""
    return current_thread().block.scheduler.grid[2]


def lane() -> int:
    """Lane of the thread in its warp, 0 to 31."""
    return current_thread().lane


def warp() -> int:
    """Warp of the thread in its block: the linear thread id divided by 32."""
    return current_thread().linear // WARP


def _unsigned(name: str, function: Callable[[Any, Any], Any], a: Any, b: Any, limit: int) -> Any:
    if isinstance(a, Tile) or isinstance(b, Tile):
        return _unsigned_tiles(name, function, a, b)
    if limit <= _MASK and not (0 <= a < limit and 0 <= b < limit):
        raise InvalidOperand(f"{name}({a}, {b})", expected="operands from 0 to 2**31 - 1")
    if b == 0:
        raise InvalidOperand(f"{name}({a}, 0) divides by zero")
    result = int(function(a & _MASK, b & _MASK))
    return result - (1 << 64) if result >> 63 else result


def _unsigned_tiles(name: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Tile:
    dtype = (a if isinstance(a, Tile) else b).dtype
    if not dtype.is_integer:
        raise TileMismatch(f"{dtype} tiles have no {name}", expected="integer tiles")
    signed = element_type(dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    left, right = (np.asarray(operand(value, dtype, name), signed).view(unsigned) for value in (a, b))
    if not right.all():
        raise InvalidOperand(f"{name} divides by zero")
    try:
        return Tile(dtype, np.atleast_1d(function(left, right)).view(signed))
    except ValueError:
        raise refuse_size(name, left, right) from None


def udiv(a: Any, b: Any) -> Any:
    """Unsigned quotient: 64 bits for ints, a tile's own width for integer tiles."""
    return _unsigned("udiv", lambda x, y: x // y, a, b, 1 << 65)


def umod(a: Any, b: Any) -> Any:
    """Unsigned remainder: 64 bits for ints, a tile's own width for integer tiles."""
    return _unsigned("umod", lambda x, y: x % y, a, b, 1 << 65)


def udiv32(a: Any, b: Any) -> Any:
    """Unsigned quotient of operands that must fit 31 bits."""
    return _unsigned("udiv32", lambda x, y: x // y, a, b, 1 << 31)


def umod32(a: Any, b: Any) -> Any:
    """Unsigned remainder of operands that must fit 31 bits."""
    return _unsigned("umod32", lambda x, y: x % y, a, b, 1 << 31)
