# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels by source and architecture: from memory, from disk, or built by numba, libNVVM and nvJitLink.

Importing this module does not import numba; the first kernel that is in no cache does (the background thread of
`warm_up` does it ahead of time).
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager

from fusedsl.numba_cuda.cache import CACHE
from fusedsl.numba_cuda.kernel import CompiledKernel, KernelSource
from fusedsl.numba_cuda.linker import CompilationError

_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")


def parse_arch(arch: str) -> tuple[int, int, str]:
    """``(9, 0, "a")`` for ``"sm_90a"``.

    Raises:
        CompilationError: not of that form.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise CompilationError(f"unknown architecture {arch!r}", expected="a name such as 'sm_80' or 'sm_90a'")
    return int(match[1]), int(match[2]), match[3]


def compile_kernel(source: KernelSource, arch: str, *, lineinfo: bool = False) -> CompiledKernel:
    """The machine code of a kernel for one architecture, compiled at most once.

    Args:
        source: the kernel.
        arch: ``"sm_80"``, ``"sm_90a"``...
        lineinfo: map machine code to lines of the kernel text, for profilers.

    Raises:
        CompilationError: the kernel language, the compiler or the assembler rejects it.
    """
    parse_arch(arch)
    return CACHE.get(source, arch, lineinfo, lambda: _build(source, arch, lineinfo))


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause the collector: a full collection walks all of torch and numba, which takes longer than a compilation.

    What a compilation leaves behind is collected later.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def _build(source: KernelSource, arch: str, lineinfo: bool) -> CompiledKernel:
    with without_garbage_collection():
        from fusedsl.numba_cuda import build  # noqa: PLC0415 (imports numba)

        return build.build(source, arch, lineinfo=lineinfo)
