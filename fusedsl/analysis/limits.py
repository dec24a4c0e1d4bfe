# SPDX-License-Identifier: Apache-2.0
"""Run-time checks of persistent kernels: whether rows of this size fit this device and leave enough of it busy."""

from __future__ import annotations

from fusedsl.analysis.budgets import REGISTER_BYTES, Device, ceil_div, safe_div
from fusedsl.analysis.reductions import ReductionProperties
from fusedsl.analysis.refusal import Refusal
from fusedsl.analysis.storage import InnerOuterStorage, Storage, StorageClass

#: Reduced elements, in threads of a multiprocessor, from which few rows are better spread over the device.
_LONG_ROW = 4
#: The smallest block that outer persistent kernels use along the kept loop.
_COLUMN_THREADS = 8


def check_inner(storage: Storage, live: int, properties: ReductionProperties, device: Device) -> Refusal | None:
    """Inner persistent: the row is kept, not over half the GPU, and there are rows enough.

    Args:
        storage: the plan.
        live: bytes of a row that are kept at once.
        properties: of the reference reduction.
        device: the GPU.
    """
    if storage.kind is StorageClass.STREAMED:
        return Refusal("not_enough_storage", storage.reason)
    return _check_share(live, device) or _check_rows(properties, device)


def check_inner_outer(
    storage: InnerOuterStorage | Refusal, properties: ReductionProperties, device: Device
) -> Refusal | None:
    """Inner-outer persistent: the storage plan exists, and there are rows enough."""
    if isinstance(storage, Refusal):
        return storage
    return _check_share(storage.register_bytes, device) or _check_rows(properties, device)


def _check_share(live: int, device: Device) -> Refusal | None:
    needed, half = ceil_div(live, REGISTER_BYTES), safe_div(device.multiprocessors, 2)
    if needed > half:
        reason = f"a row takes the registers of {needed} multiprocessors, more than half of {device.multiprocessors}"
        return Refusal("over_half_gpu", reason)
    return None


def _check_rows(properties: ReductionProperties, device: Device) -> Refusal | None:
    long_row = _LONG_ROW * device.max_threads_per_sm
    few = safe_div(device.multiprocessors, 8)
    if properties.reduction_numel >= long_row and properties.iteration_numel < few:
        reason = (
            f"{properties.iteration_numel} rows of {properties.reduction_numel} elements leave most of the GPU idle; "
            f"from {long_row} elements on at least {few} rows are needed"
        )
        return Refusal("not_enough_blocks", reason)
    return None


def outer_sms_needed(column_bytes: int, vector: int, device: Device) -> int:
    """Multiprocessors whose registers hold the columns of the smallest block; over 1, columns are split over a grid."""
    return ceil_div(column_bytes * vector * _COLUMN_THREADS, device.registers_per_sm * 4)


def check_outer_storage(column_bytes: int, vector: int, device: Device) -> Refusal | None:
    """Outer persistent: the columns of the smallest useful block fit the registers of at most half the GPU.

    Args:
        column_bytes: kept bytes of one column.
        vector: columns a thread owns.
        device: the GPU.
    """
    a_file = device.registers_per_sm * 4
    available = a_file * device.multiprocessors
    if column_bytes > available:
        reason = f"a column keeps {column_bytes} bytes, all registers of the GPU are {available}"
        return Refusal("not_enough_registers", reason)
    needed = outer_sms_needed(column_bytes, vector, device)
    if needed > safe_div(device.multiprocessors, 2):
        reason = f"{vector * _COLUMN_THREADS} columns take {needed} multiprocessors, more than half of the GPU"
        return Refusal("over_half_gpu", reason)
    if needed > 1 and vector < 4:
        reason = f"columns split over blocks need accesses of 4 elements, alignment allows {vector}"
        return Refusal("not_vectorised", reason)
    columns = safe_div(available if needed > 1 else a_file, column_bytes)
    if columns < vector * _COLUMN_THREADS:
        reason = f"registers hold {columns} columns at once, fewer than {vector * _COLUMN_THREADS}"
        return Refusal("not_enough_threads", reason)
    return None


def check_outer_occupancy(
    used: int, properties: ReductionProperties, device: Device, *, across_grid: bool
) -> Refusal | None:
    """Outer persistent: a grid configuration keeps enough multiprocessors busy.

    Args:
        used: multiprocessors with work.
        properties: of the reference reduction.
        device: the GPU.
        across_grid: columns are split over blocks, which wait for each other.
    """
    if across_grid and used < safe_div(device.multiprocessors, 2):
        reason = f"blocks that wait for each other would use {used} of {device.multiprocessors} multiprocessors"
        return Refusal("cross_grid_few_sms", reason)
    few = safe_div(device.multiprocessors, 8)
    if properties.reduction_numel >= _LONG_ROW * device.max_threads_per_sm and used < few:
        return Refusal("few_sms", f"{used} multiprocessors would have work; at least {few} are wanted")
    return None
