# SPDX-License-Identifier: Apache-2.0
"""Random numbers keyed by element: Philox4x32-10 on NumPy."""

from __future__ import annotations

import numpy as np

from fusedsl.numba_cuda.dtypes import float32
from fusedsl.numba_cuda.interpreter.errors import InvalidOperand
from fusedsl.numba_cuda.interpreter.tile import Array, Tile

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_MASK = np.uint64(_LOW)
_HIGH = np.uint64(32)


def _philox(counter: list[Array], seed: int) -> list[Array]:
    """Ten rounds on four arrays of 32-bit words."""
    x, y, z, w = counter
    low, high = seed & _LOW, seed >> 32 & _LOW
    for _ in range(10):
        first, second = x * _MULTIPLIERS[0], z * _MULTIPLIERS[1]
        x, y = (second >> _HIGH) ^ y ^ np.uint64(low), second & _MASK
        z, w = (first >> _HIGH) ^ w ^ np.uint64(high), first & _MASK
        low, high = (low + _WEYL[0]) & _LOW, (high + _WEYL[1]) & _LOW
    return [x, y, z, w]


def random_uniform(
    first: int,
    batch: int,
    batch_stride: int,
    vector: int,
    element_stride: int,
    seed: int,
    offset: int,
    threads: int,
    chunk: int,
    aligned: bool,
    wide: bool,
) -> Tile:
    """float32 numbers in (0, 1]: element b*vector+k is that of element ``first + b*batch_stride + k*element_stride``.

    Raises:
        InvalidOperand: a promise (``aligned``, ``wide``) is not kept.
    """
    numbers = (first + np.arange(batch)[:, None] * batch_stride + np.arange(vector) * element_stride).reshape(-1)
    if first < 0 or offset % 4:
        raise InvalidOperand(
            f"random_uniform of element {first}, offset {offset}", expected="no less than 0, and a multiple of 4"
        )
    if aligned and (first % 4 or batch_stride % 4 or vector % 4 or element_stride != 1):
        raise InvalidOperand(f"random_uniform is not aligned at element {first}", expected="multiples of 4")
    if not wide and int(numbers.max()) >= 1 << 31:
        raise InvalidOperand(
            f"random_uniform of element {int(numbers.max())}", expected="numbers below 2**31, or wide=True"
        )
    if chunk == 1:
        group, thread = numbers // threads, numbers % threads
        lane, step = group % 4, group // 4
    else:
        group, inside = numbers // chunk, numbers % chunk
        thread, lane = group % threads, inside % 4
        step = group // threads * max(chunk // 4, 1) + inside // 4
    at = (step + offset // 4).astype(np.uint64)
    counter = [at & _MASK, at >> _HIGH, thread.astype(np.uint64), np.zeros_like(at)]
    words = np.choose(lane, _philox(counter, seed))
    return Tile(float32, words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33))
