# SPDX-License-Identifier: Apache-2.0
"""Small kernels from the lines of a body: compiled and checked, or run in the interpreter or on the GPU."""

from __future__ import annotations

import re
from typing import Any

import torch

from fusedsl.numba_cuda import launch
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.device import properties
from fusedsl.numba_cuda.interpreter import interpret
from fusedsl.numba_cuda.kernel import CompiledKernel, Geometry, KernelSource

ARCHITECTURES = ("sm_80", "sm_90a")


def kernel(body: str, *signature: str, name: str = "k", constants: str = "", threads: int = 128) -> KernelSource:
    """A kernel of parameters a, b, c... from the lines of its body."""
    parameters = ", ".join("abcdefghij"[: len(signature)])
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return KernelSource(name, f"{constants}\ndef {name}({parameters}):\n{lines}\n", signature, threads)


def compiled(source: KernelSource, arch: str = "sm_90a") -> CompiledKernel:
    """Compile and check what must hold for every kernel."""
    result = compile_kernel(source, arch)
    assert result.spill_bytes == 0, result.log
    assert not re.search(r"C75\d\d", result.log), result.log
    assert f".target {arch}" in result.ptx
    assert f".visible .entry {source.name}(" in result.ptx
    return result


def run(
    source: KernelSource, geometry: Geometry, arguments: tuple[Any, ...], device: str, *, order: str | int = "forward"
) -> None:
    """Run a kernel once on CPU tensors, which it changes: in the interpreter ("cpu") or on copies on the GPU.

    Args:
        source: the kernel.
        geometry: its launch.
        arguments: CPU tensors and numbers.
        device: "cpu" or "cuda".
        order: of the interpreter's threads.
    """
    if device == "cpu":
        interpret(source, geometry, arguments, order=order)
        return
    index = torch.cuda.current_device()
    function = launch.load(compile_kernel(source, properties(index).arch), source.signature, index)
    copies = [value.cuda() if isinstance(value, torch.Tensor) else value for value in arguments]
    values = tuple(value.data_ptr() if isinstance(value, torch.Tensor) else value for value in copies)
    function.bind(geometry)(torch.cuda.current_stream().cuda_stream, values)
    torch.cuda.synchronize()
    for before, after in zip(arguments, copies, strict=True):
        if isinstance(before, torch.Tensor):
            before.copy_(after)
