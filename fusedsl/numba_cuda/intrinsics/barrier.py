# SPDX-License-Identifier: Apache-2.0
"""Barriers and fences (PTX ISA ``barrier``, ``bar.warp.sync``, ``fence``)."""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types

from fusedsl.numba_cuda.convert import asm
from fusedsl.numba_cuda.registry import KernelFunction, Lower, Typed, kernel_function


def statement(text: str, *, convergent: bool) -> Lower:
    """Code of an instruction without operands that memory accesses do not cross; see `asm` for ``convergent``."""

    def emit(builder: ir.IRBuilder, _: list[ir.Value]) -> None:
        asm(builder, ir.VoidType(), text, "~{memory}", [], effect=True, convergent=convergent)

    return emit


@kernel_function
def barrier() -> Typed:
    """Wait for all threads of the block; their shared and global writes are then visible in the block (``bar.sync
    0``)."""
    return types.none, statement("bar.sync 0;", convergent=True)


@kernel_function
def warp_barrier() -> Typed:
    """Wait for all lanes of the warp; their writes are then visible in the warp (``bar.warp.sync``)."""
    return types.none, statement("bar.warp.sync -1;", convergent=True)


@kernel_function
def fence_gpu() -> Typed:
    """Order this thread's memory accesses for all threads of the GPU (``fence.acq_rel.gpu``)."""
    return types.none, statement("fence.acq_rel.gpu;", convergent=False)


FUNCTIONS: tuple[KernelFunction, ...] = (barrier, warp_barrier, fence_gpu)
