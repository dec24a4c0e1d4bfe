# SPDX-License-Identifier: Apache-2.0
"""mbarriers: counters of arrivals and of bytes in shared memory, on which copies complete and threads wait (PTX ISA
``mbarrier``, sm_90).

A phase completes when all its arrivals have come and all expected bytes have landed; the phases of a barrier have
parities 0, 1, 0, ...
"""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import asm
from fusedsl.numba_cuda.intrinsics.barrier import statement
from fusedsl.numba_cuda.intrinsics.shared import check_int, narrow, shared_address, static_array
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function, literal
from fusedsl.numba_cuda.tile import MBarriersType

_BYTES = 8


def check_mbarriers(argument: types.Type) -> None:
    """An argument must be what `mbarriers` gives."""
    if not isinstance(argument, MBarriersType):
        raise TypingError(f"mbarriers are needed, not {argument}")


def mbarrier_address(builder: ir.IRBuilder, array: ir.Value, index: ir.Value) -> ir.Value:
    """Shared address of mbarrier ``index``."""
    return shared_address(builder, array, index, _BYTES)


@kernel_function
def mbarriers(n: types.Type) -> Typed:
    """A static shared array of n mbarriers, to be initialised; each call site is an array of its own."""
    count = literal(n, "n")
    return MBarriersType(), lambda builder, _: static_array(builder, count * _BYTES)


def _operation(text: str, m: types.Type, i: types.Type, *amount: tuple[str, types.Type]) -> Typed:
    """An instruction on mbarrier i, and perhaps a 32-bit operand."""
    check_mbarriers(m)
    for name, argument in (("i", i), *amount):
        check_int(name, argument)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        operands = [mbarrier_address(builder, args[0], args[1]), *(narrow(builder, value) for value in args[2:])]
        constraints = ",".join(["r"] * len(operands)) + ",~{memory}"
        asm(builder, ir.VoidType(), text, constraints, operands, effect=True)

    return types.none, emit


@kernel_function
def mbarrier_init(m: types.Type, i: types.Type, count: types.Type) -> Typed:
    """Make mbarrier i expect ``count`` arrivals a phase, from phase 0 on; by one thread, which then runs
    `mbarrier_fence`, and all threads a barrier (``mbarrier.init.shared::cta.b64 [addr], count``)."""
    return _operation("mbarrier.init.shared::cta.b64 [$0], $1;", m, i, ("count", count))


@kernel_function
def mbarrier_fence() -> Typed:
    """Make this thread's `mbarrier_init` visible to the cluster and to copies
    (``fence.mbarrier_init.release.cluster``)."""
    return types.none, statement("fence.mbarrier_init.release.cluster;", convergent=False)


@kernel_function
def mbarrier_arrive(m: types.Type, i: types.Type) -> Typed:
    """One arrival at the current phase; this thread's earlier accesses are then visible to who waits for it
    (``mbarrier.arrive.shared::cta.b64 _, [addr]``)."""
    return _operation("mbarrier.arrive.shared::cta.b64 _, [$0];", m, i)


@kernel_function
def mbarrier_expect(m: types.Type, i: types.Type, bytes: types.Type) -> Typed:
    """One arrival, and ``bytes`` more to land in the current phase, before the copies that bring them are issued
    (``mbarrier.arrive.expect_tx.shared::cta.b64 _, [addr], bytes``)."""
    return _operation("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", m, i, ("bytes", bytes))


@kernel_function
def mbarrier_wait(m: types.Type, i: types.Type, parity: types.Type) -> Typed:
    """Wait until the phase of that parity (0 or 1) has completed; on a new barrier parity 1 passes at once
    (``mbarrier.try_wait.parity.shared::cta.b64``, in a loop)."""
    text = "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra D; bra W; D: }"
    return _operation(text, m, i, ("parity", parity))


FUNCTIONS: tuple[KernelFunction, ...] = (
    mbarriers,
    mbarrier_init,
    mbarrier_fence,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_wait,
)
