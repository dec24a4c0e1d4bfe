# SPDX-License-Identifier: Apache-2.0
"""What a multiprocessor can hold: register and shared-memory arithmetic. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

#: The half of a register file that may hold persistent buffers.
REGISTER_BYTES = 128 << 10
#: The same for inner-outer kernels, which plan their registers closer: 56 * 1024 registers.
REGISTER_BYTES_INNER_OUTER = 56 * 1024 * 4
MAX_REGISTERS_PER_THREAD = 255
#: Registers a thread needs beside buffers, a generic estimate.
OTHER_REGISTERS = 40
STATIC_SMEM_BYTES = 128
MAX_THREADS_PER_BLOCK = 1024

_WARP = 32
_PARTITIONS = 4
_ALLOCATION_UNIT = 256
_VECTOR_BYTES = 16


class Device(Protocol):
    """What the analysis needs to know of a GPU (bytes, bytes a second)."""

    @property
    def arch(self) -> str: ...

    @property
    def multiprocessors(self) -> int: ...

    @property
    def max_threads_per_sm(self) -> int: ...

    @property
    def smem_per_block_optin(self) -> int: ...

    @property
    def registers_per_sm(self) -> int: ...

    @property
    def max_cluster(self) -> int: ...

    @property
    def copy_bandwidth(self) -> float: ...


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def safe_div(a: int, b: int) -> int:
    """``a // b``, at least 1."""
    return max(a // b, 1)


def align(size: int, unit: int = 128) -> int:
    """The next multiple of ``unit``."""
    return ceil_div(size, unit) * unit


def registers_per_thread(threads: int, registers_per_sm: int = 65536) -> int:
    """The most registers a thread can have when ``threads`` of them are resident."""
    warps = ceil_div(ceil_div(threads, _WARP), _PARTITIONS)
    units = registers_per_sm // _PARTITIONS // warps // _ALLOCATION_UNIT
    return min(MAX_REGISTERS_PER_THREAD, units * _ALLOCATION_UNIT // _WARP)


def threads_per_sm(registers: int, registers_per_sm: int = 65536) -> int:
    """How many threads of so many registers are resident at once."""
    a_warp = align(registers * _WARP, _ALLOCATION_UNIT)
    return registers_per_sm // a_warp // _PARTITIONS * _PARTITIONS * _WARP


def architecture(device: Device) -> int:
    """The compute capability as one number: 80, 90."""
    return int(device.arch.removeprefix("sm_").rstrip("af"))


#: Single-precision cores a multiprocessor and clock in Hz; what is not listed counts as the last row.
_CORES = {80: (64, 1.41e9), 86: (128, 1.70e9), 89: (128, 2.52e9), 90: (128, 1.98e9)}
_HIGH_BANDWIDTH = 0.07
_COPY_EFFICIENCY = 0.89


def has_high_bandwidth(device: Device) -> bool:
    """True if the memory's pins move more than 0.07 bytes a floating-point operation (A100 and H200, not H100)."""
    cores, clock = _CORES.get(architecture(device), (128, 1.98e9))
    flops = 2 * cores * clock * device.multiprocessors
    return device.copy_bandwidth / _COPY_EFFICIENCY / flops > _HIGH_BANDWIDTH


def place_arrays(sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Where arrays of these bytes begin in shared memory, one after another and aligned, and the bytes of all."""
    offset, places = 0, {}
    for key, size in sizes.items():
        places[key] = offset
        offset += align(size)
    return places, offset


def rounded_smem_bytes(numel: int, itemsize: int, threads: Iterable[int] = (MAX_THREADS_PER_BLOCK,)) -> int:
    """Shared memory of a buffer of ``numel`` elements when every thread of a block owns whole vectors of it.

    The worst over the vector widths that divide the buffer and over the block sizes given.
    """
    worst = 0
    for count in threads:
        width = 1
        while width * itemsize <= _VECTOR_BYTES:
            if numel % width == 0:
                worst = max(worst, ceil_div(numel // width, count) * width * count * itemsize)
            width *= 2
    return align(worst)


def reduction_workspace_bytes(result_itemsizes: Iterable[int], threads: int = MAX_THREADS_PER_BLOCK) -> int:
    """Shared memory of a block-wide reduction: a slot of the widest result for every thread."""
    return align(threads * max(result_itemsizes, default=0))
