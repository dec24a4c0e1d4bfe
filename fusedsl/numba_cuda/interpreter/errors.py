# SPDX-License-Identifier: Apache-2.0
"""What the interpreter finds wrong with a kernel: one class a mistake, each naming kernel line, thread and block."""

from __future__ import annotations

from fusedsl.graph.span import FuseError, SourceSpan

Index3 = tuple[int, int, int]


class KernelFault(FuseError):
    """Root of the interpreter's findings.

    Attributes:
        thread: index of the thread that failed, or None for a fault of the whole launch.
        block: index of its block, or None.
        origin: the user's line above the kernel line (``"norms.py:12  mean = x.mean(-1)"``), or None.
    """

    def __init__(
        self,
        message: str,
        span: SourceSpan | None = None,
        *,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, span, expected=expected, hint=hint)
        self.thread: Index3 | None = None
        self.block: Index3 | None = None
        self.origin: str | None = None

    def locate(self, span: SourceSpan | None, thread: Index3 | None, block: Index3 | None, origin: str | None) -> None:
        """Add where it happened; what is already known stays."""
        self.span = self.span or span
        self.thread = self.thread or thread
        self.block = self.block or block
        self.origin = self.origin or origin

    def __str__(self) -> str:
        text = super().__str__()
        places = []
        if self.thread is not None:
            places.append(f"  in thread {self.thread} of block {self.block}")
        if self.origin is not None:
            places.append(f"  made from {self.origin}")
        return "\n".join([text, *places])


class OutOfBounds(KernelFault):
    """An access outside a tensor's own span or a shared array."""


class MisalignedAccess(KernelFault):
    """A vector access whose address is not a multiple of its size."""


class UninitializedRead(KernelFault):
    """A read of an output, workspace or shared element that nobody has written."""


class UnwrittenOutput(KernelFault):
    """Output elements that no thread has written when the kernels are done."""


class SharedRace(KernelFault):
    """Two threads touch one shared element, one of them writing, with nothing that orders them."""


class GlobalRace(KernelFault):
    """Two threads of a launch write different values to one element of global memory, with nothing that orders them."""


class UnfinishedCopy(KernelFault):
    """An asynchronous copy that has not been waited for: its elements are touched, or the block ends."""


class BarrierMisuse(KernelFault):
    """An mbarrier that is not initialised, or gets more arrivals than it counts; a barrier called out of turn."""


class RemoteAccess(KernelFault):
    """Shared memory of a block of the cluster that may not have started yet, or may have ended."""


class Deadlock(KernelFault):
    """Threads wait for others that will never come."""


class AbsentLane(KernelFault):
    """A warp collective needs a lane that the block does not have."""


class TileMismatch(KernelFault):
    """Tiles whose dtypes or sizes do not go together, or an operation the dtype does not have."""


class InvalidOperand(KernelFault):
    """An operand outside what the kernel language allows."""


class KernelCrash(KernelFault):
    """Kernel text raised an ordinary Python exception."""
