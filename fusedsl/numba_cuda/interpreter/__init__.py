# SPDX-License-Identifier: Apache-2.0
"""Runs kernel text on CPU tensors, thread by thread, and finds what a GPU would not tell.

Every thread of a block is a greenlet on NumPy. The interpreter checks bounds and alignment of global and shared memory,
reads of what nobody has written, races on shared memory between barriers, writes of different values to one global
element, and threads that wait for each other for ever; each finding is a `KernelFault` that names the kernel line, the
thread and the block.

| file | what it holds |
|---|---|
| `run.py` | `interpret`: binds arguments, orders blocks |
| `block.py` | threads, blocks, meetings at barriers and collectives, the scheduler |
| `reports.py` | deadlock reports |
| `text.py` | kernel text as a Python function that can name its lines |
| `tile.py`, `storage.py` | tiles and their operators; how elements are held |
| `convert.py`, `elementwise.py`, `reduce.py`, `index.py` | what kernels compute |
| `pointer.py`, `memory.py`, `shared.py` | global and shared memory |
| `ordering.py`, `tracked.py` | what happened before what, where mbarriers, clusters or copies order threads |
| `async_copy.py`, `mbarrier.py`, `cluster.py` | copies beside the threads; blocks and warps that work together |
| `names.py` | the kernel-language names |
| `errors.py` | the faults |

greenlet and the modules that need it are imported when something is first interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedsl.numba_cuda.interpreter.errors import KernelFault

if TYPE_CHECKING:
    import torch

    from fusedsl.numba_cuda.kernel import Geometry, KernelSource

__all__ = ["KernelFault", "interpret", "poison", "settle"]


def interpret(
    source: KernelSource, geometry: Geometry, arguments: tuple[Any, ...], *, order: str | int = "forward"
) -> None:
    """Run a kernel to its end on the CPU; see `fusedsl.numba_cuda.interpreter.run.interpret`."""
    from fusedsl.numba_cuda.interpreter import run  # noqa: PLC0415 - greenlet only when needed

    run.interpret(source, geometry, arguments, order=order)


def poison(tensor: torch.Tensor) -> None:
    """Fill an output or workspace with NaN or a telling integer and watch it for reads before writes."""
    from fusedsl.numba_cuda.interpreter import pointer  # noqa: PLC0415

    pointer.poison(tensor)


def settle(tensor: torch.Tensor, name: str) -> None:
    """End the watch of a poisoned tensor; UnwrittenOutput if an element was never written."""
    from fusedsl.numba_cuda.interpreter import pointer  # noqa: PLC0415

    pointer.settle(tensor, name)
