# SPDX-License-Identifier: Apache-2.0
"""What the examples share: arguments for this machine, the check against PyTorch, and the timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.timing import L2Flush, measure_copy_gbps, measure_gpu


def default_device() -> str:
    """ "cuda" where torch sees an NVIDIA GPU, otherwise "cpu" (the interpreter runs the kernels)."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_shape(device: str) -> tuple[int, int]:
    """Rows and columns: large on a GPU, small in the interpreter."""
    return (8192, 8192) if device == "cuda" else (4, 256)


def check(name: str, fused: Callable[..., Tensor], eager: Callable[..., Tensor], arguments: Sequence[Tensor]) -> None:
    """Compare with float64: the fused error may be at most twice eager PyTorch's (or one rounding of the result).

    Args:
        name: for the printed line.
        fused: the fused function.
        eager: the PyTorch function it must agree with.
        arguments: tensors for both.

    Raises:
        AssertionError: the error is larger.
    """
    truth = eager(*(a.double() for a in arguments))
    theirs = float((eager(*arguments).double() - truth).abs().max())
    result = fused(*arguments)
    ours = float((result.double() - truth).abs().max())
    allowed = max(2 * theirs, float(torch.finfo(result.dtype).eps) * float(truth.abs().max()))
    where = f"{result.dtype} {tuple(result.shape)} on {result.device.type}"
    print(f"{name}: {where}, largest error {ours:.2e}, eager PyTorch {theirs:.2e}")
    assert result.dtype == arguments[0].dtype, f"{name}: result is {result.dtype}"
    assert ours <= allowed, f"{name}: error {ours:.3e}, allowed {allowed:.3e}"


def time_against_eager(
    name: str, fused: Callable[..., Tensor], eager: Callable[..., Tensor], arguments: Sequence[Tensor]
) -> None:
    """Print GB/s and percent of the copy rate for both, on the GPU; on the CPU print that nothing is timed."""
    if arguments[0].device.type != "cuda":
        print(f"{name}: ran in the interpreter, thread by thread; times are taken on a GPU only")
        return
    flush = L2Flush()
    copy_gbps = measure_copy_gbps(flush)
    traffic = sum(a.nbytes for a in arguments) + fused(*arguments).nbytes
    calls = {"fusedsl": lambda: fused(*arguments), "eager": lambda: eager(*arguments)}
    for label, timing in measure_gpu(calls, flush, 50).items():
        gbps = traffic / timing.median_us / 1e3
        print(
            f"{name}: {label:8} {timing.median_us:8.1f} us  {gbps:6.0f} GB/s  "
            f"{100 * gbps / copy_gbps:5.1f} % of the copy rate ({copy_gbps:.0f} GB/s)"
        )
