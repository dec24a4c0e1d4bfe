# SPDX-License-Identifier: Apache-2.0
"""Barriers of other groups than a block: the whole grid of a cooperative launch, and some warps of a block."""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import asm
from fusedsl.numba_cuda.intrinsics.barrier import statement
from fusedsl.numba_cuda.intrinsics.memory import check_index, check_pointer, element_address
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function, literal

#: Thread 0 of each block arrives: the low half of the counter counts blocks, the high half barriers passed. The last
#: block to come zeroes the low half and counts the barrier; the others wait for the high half to change. Between the
#: two block barriers, release and acquire by that one thread order the accesses of all (causality is transitive).
_GRID_BARRIER = """{
.reg .pred first, last, same; .reg .b32 x, y, z, n, old, now;
bar.sync 0;
mov.u32 x, %tid.x; mov.u32 y, %tid.y; mov.u32 z, %tid.z;
or.b32 x, x, y; or.b32 x, x, z; setp.eq.u32 first, x, 0;
@!first bra DONE;
mov.u32 x, %nctaid.x; mov.u32 y, %nctaid.y; mov.u32 z, %nctaid.z;
mul.lo.u32 n, x, y; mul.lo.u32 n, n, z;
atom.acq_rel.gpu.global.add.u32 old, [$0], 1;
and.b32 x, old, 0xffff; add.u32 x, x, 1; setp.eq.u32 last, x, n;
sub.u32 y, 0x10000, n;
@last red.release.gpu.global.add.u32 [$0], y;
@last bra DONE;
WAIT: ld.acquire.gpu.global.u32 now, [$0];
xor.b32 now, now, old; setp.lt.u32 same, now, 0x10000;
@same bra WAIT;
DONE: bar.sync 0;
}"""


@kernel_function
def grid_barrier(p: types.Type, index: types.Type) -> Typed:
    """Wait for all threads of the grid; their writes are then visible in it. Cooperative launches of at most 65535
    blocks only.

    ``p[index]`` is an int32 counter of which the low 16 bits are 0 before and after: zeroed once, it serves any number
    of barriers and launches, one launch at a time. ``atom.acq_rel.gpu`` and ``ld.acquire.gpu`` by one thread a block
    (PTX ISA, memory consistency model).
    """
    dtype = check_pointer(p)
    if dtype.name != "int32":
        raise TypingError(f"grid_barrier takes a pointer to int32, not {p}")
    check_index("index", index)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        address = element_address(builder, args[0], args[1], dtype)
        text = _GRID_BARRIER.replace("\n", " ")
        asm(builder, ir.VoidType(), text, "l,~{memory}", [address], effect=True, convergent=True)

    return types.none, emit


@kernel_function
def named_barrier(id: types.Type, threads: types.Type) -> Typed:
    """Wait for ``threads`` threads of the block (whole warps) at barrier ``id``, 1 to 15; their writes are then visible
    among them (``bar.sync id, threads``)."""
    number, count = literal(id, "id"), literal(threads, "threads")
    if not 1 <= number <= 15 or count < 32 or count % 32:
        raise TypingError(f"named_barrier takes an id of 1 to 15 and whole warps, not id={number}, threads={count}")
    return types.none, statement(f"bar.sync {number}, {count};", convergent=True)


FUNCTIONS: tuple[KernelFunction, ...] = (grid_barrier, named_barrier)
