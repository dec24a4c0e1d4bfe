# SPDX-License-Identifier: Apache-2.0
"""Do rows of this size fit this device and leave enough of it busy: what ``explain`` says of persistent kernels.

Schedulers refuse less: rows that nothing holds are streamed, columns that do not fit are read again.
"""

from __future__ import annotations

from fusedsl.analysis.budgets import REGISTER_BYTES, Device, ceil_div, safe_div
from fusedsl.analysis.reductions import ReductionProperties
from fusedsl.analysis.refusal import Refusal
from fusedsl.analysis.storage import InnerOuterStorage, Storage, StorageClass

#: Reduced elements, in threads of a multiprocessor, from which few rows are better spread over the device.
_LONG_ROW = 4


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
