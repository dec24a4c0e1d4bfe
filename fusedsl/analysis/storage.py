# SPDX-License-Identifier: Apache-2.0
"""Where the kept values of a row live: registers, shared memory, the blocks of a cluster, or nowhere (streamed)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence

import attrs

from fusedsl.analysis.budgets import (
    OTHER_REGISTERS,
    REGISTER_BYTES,
    REGISTER_BYTES_INNER_OUTER,
    STATIC_SMEM_BYTES,
    Device,
    align,
    architecture,
    ceil_div,
    reduction_workspace_bytes,
    rounded_smem_bytes,
)
from fusedsl.analysis.liveness import KeptValue
from fusedsl.analysis.refusal import Refusal

#: Bytes of registers a block of a cluster should hold, so that two blocks share a multiprocessor.
CLUSTER_BLOCK_BYTES = REGISTER_BYTES // 2
#: Block sizes an inner-outer kernel may choose from.
INNER_OUTER_THREADS = tuple(range(128, 513, 32))


class StorageClass(enum.Enum):
    """How the rows of an inner persistent kernel are kept."""

    REGISTERS = "registers"
    SHARED = "registers and shared memory"
    CLUSTER = "registers of a cluster's blocks"
    STREAMED = "not kept: read again for every pass"


@attrs.frozen
class Storage:
    """A storage plan for one row.

    Attributes:
        kind: the class.
        registers: nodes kept in registers.
        shared: nodes kept in shared memory.
        register_bytes: bytes a row takes in registers.
        smem_bytes: bytes a row takes in shared memory, rounded to whole vectors of a block.
        cluster: blocks that share a row.
        available_bytes: the most that could have been kept.
        reason: why this class.
    """

    kind: StorageClass
    registers: tuple[int, ...]
    shared: tuple[int, ...]
    register_bytes: int
    smem_bytes: int
    cluster: int
    available_bytes: int
    reason: str


def single_sm_bytes(
    values: Iterable[KeptValue],
    class_sizes: Sequence[int],
    result_itemsizes: Iterable[int],
    device: Device,
    *,
    shared: bool,
) -> int:
    """The most bytes of a row that one multiprocessor keeps: registers, or shared memory less what it costs to use.

    Args:
        values: what would be kept.
        class_sizes: the extent of every class.
        result_itemsizes: bytes of the results of the reductions.
        device: the GPU.
        shared: whether shared memory may be used at all.
    """
    if not shared:
        return REGISTER_BYTES
    padding = sum(rounded_smem_bytes(v.numel(class_sizes), v.itemsize) - v.bytes(class_sizes) for v in values)
    overhead = reduction_workspace_bytes(result_itemsizes) + align(padding) + STATIC_SMEM_BYTES
    return max(REGISTER_BYTES, device.smem_per_block_optin - overhead)


def uses_shared(device: Device) -> bool:
    """Rows too long for registers move to shared memory where there are no clusters."""
    return architecture(device) < 90


def plan_inner_storage(
    values: tuple[KeptValue, ...],
    live_at_once: Callable[[tuple[KeptValue, ...]], int],
    class_sizes: Sequence[int],
    result_itemsizes: tuple[int, ...],
    device: Device,
    *,
    is_3d: bool,
    inputs: Iterable[int] = (),
) -> Storage:
    """Storage of an inner persistent kernel.

    Args:
        values: what is kept of a row.
        live_at_once: the most bytes that some of them take at once.
        class_sizes: the extent of every class.
        result_itemsizes: bytes of the results of the reductions.
        device: the GPU.
        is_3d: kept and reduced loops alternate: only registers then.
        inputs: nodes that can be copied from global to shared memory without passing through registers.
    """
    nodes = tuple(v.node for v in values)
    live = live_at_once(values)
    shared = not is_3d and uses_shared(device)
    available = single_sm_bytes(values, class_sizes, result_itemsizes, device, shared=shared)
    if live <= REGISTER_BYTES:
        reason = f"{live} bytes a row fit the {REGISTER_BYTES} of registers"
        return Storage(StorageClass.REGISTERS, nodes, (), live, 0, 1, available, reason)
    if shared:
        moved = _move_to_shared(values, live_at_once, class_sizes, frozenset(inputs))
        smem = sum(rounded_smem_bytes(v.numel(class_sizes), v.itemsize) for v in moved)
        if smem + reduction_workspace_bytes(result_itemsizes) + STATIC_SMEM_BYTES <= device.smem_per_block_optin:
            kept = tuple(v for v in values if v not in moved)
            reason = f"{live} bytes a row exceed the {REGISTER_BYTES} of registers and fit with shared memory"
            places = tuple(v.node for v in kept), tuple(v.node for v in moved)
            return Storage(StorageClass.SHARED, *places, live_at_once(kept), smem, 1, available, reason)
    largest = 1 if is_3d else device.max_cluster
    if live <= available * largest and largest > 1:
        cluster = min(_pow2_at_least(ceil_div(live, CLUSTER_BLOCK_BYTES)), largest)
        reason = f"{live} bytes a row are spread over {cluster} blocks"
        return Storage(StorageClass.CLUSTER, nodes, (), live, 0, cluster, available * largest, reason)
    holder = "one block" if largest == 1 else f"a cluster of {largest} blocks"
    reason = f"{live} bytes a row exceed the {available * largest} that {holder} can keep"
    return Storage(StorageClass.STREAMED, (), (), 0, 0, 1, available * largest, reason)


def _move_to_shared(
    values: tuple[KeptValue, ...],
    live_at_once: Callable[[tuple[KeptValue, ...]], int],
    class_sizes: Sequence[int],
    inputs: frozenset[int],
) -> list[KeptValue]:
    """As few values as bring the rest into registers: arguments first (copied asynchronously), then large ones."""
    moved: list[KeptValue] = []
    rest = sorted(values, key=lambda v: (v.node not in inputs, -v.bytes(class_sizes), v.node))
    while rest and live_at_once(tuple(sorted(rest, key=lambda v: v.node))) > REGISTER_BYTES:
        moved.append(rest.pop(0))
    return moved


def _pow2_at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@attrs.frozen
class InnerOuterStorage:
    """A storage plan for one row of an inner-outer kernel.

    Attributes:
        registers: nodes kept in registers.
        shared: nodes kept in shared memory.
        register_bytes: the partial results of the outer reductions and the values in registers.
        smem_bytes: the values in shared memory, rounded.
        available_smem_bytes: what shared memory can hold of them.
    """

    registers: tuple[int, ...]
    shared: tuple[int, ...]
    register_bytes: int
    smem_bytes: int
    available_smem_bytes: int

    def registers_per_thread(self, row_numel: int, elements_per_thread: int) -> int:
        """An estimate for threads that own so many elements of a row."""
        return min(255, self.register_bytes // max(row_numel, 1) * elements_per_thread // 4 + OTHER_REGISTERS)


def plan_inner_outer_storage(
    values: tuple[KeptValue, ...],
    outer_bytes: int,
    over_rows: frozenset[int],
    class_sizes: Sequence[int],
    result_itemsizes: Iterable[int],
    device: Device,
) -> InnerOuterStorage | Refusal:
    """Everything in shared memory if it fits; otherwise values move to registers, those that rows share last of all.

    Args:
        values: what is kept of a row.
        outer_bytes: partial results of the outer reductions, always in registers.
        over_rows: nodes that all rows share: loaded once, they stay in shared memory longest.
        class_sizes: the extent of every class.
        result_itemsizes: bytes of the results of the inner reductions.
        device: the GPU.
    """
    workspace = reduction_workspace_bytes(result_itemsizes, INNER_OUTER_THREADS[-1])
    available = device.smem_per_block_optin - workspace - STATIC_SMEM_BYTES
    sizes = {v.node: rounded_smem_bytes(v.numel(class_sizes), v.itemsize, INNER_OUTER_THREADS) for v in values}
    registers, smem = outer_bytes, sum(sizes.values())
    moved: list[int] = []
    waiting = sorted(values, key=lambda v: (v.node in over_rows, v.node))
    while registers <= REGISTER_BYTES_INNER_OUTER and smem > available and waiting:
        value = waiting.pop(0)
        registers += value.bytes(class_sizes)
        smem -= sizes[value.node]
        moved.append(value.node)
    if registers > REGISTER_BYTES_INNER_OUTER or smem > available:
        reason = (
            f"a row needs {registers} bytes of registers (at most {REGISTER_BYTES_INNER_OUTER}) "
            f"and {smem} of shared memory (at most {available})"
        )
        return Refusal("not_enough_storage", reason)
    in_shared = tuple(v.node for v in values if v.node not in moved)
    return InnerOuterStorage(tuple(sorted(moved)), in_shared, registers, smem, available)
