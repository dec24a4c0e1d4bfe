# SPDX-License-Identifier: Apache-2.0
"""The passes of numba that kernel text needs: bytecode, SSA, type inference, lowering to LLVM.

numba's own CUDA pipeline has twice as many (closures, list comprehensions, context managers, branch pruning, NumPy
rewrites, deletions of variables), and most walk the whole function again.
"""

from __future__ import annotations

from typing import Any

from numba.cuda.compiler import (
    CreateLibrary,
    CUDABackend,
    CUDACompiler,
    CUDANativeLowering,
    CUDATranslateBytecode,
)
from numba.cuda.core.compiler_machinery import PassManager
from numba.cuda.core.typed_passes import NopythonTypeInference, PreLowerStripPhis
from numba.cuda.core.untyped_passes import FixupArgs, IRProcessing, ReconstructSSA

_PASSES: tuple[tuple[Any, str], ...] = (
    (CUDATranslateBytecode, "bytecode to numba IR"),
    (FixupArgs, "arguments"),
    (IRProcessing, "variable lifetimes"),
    (ReconstructSSA, "single assignment"),
    (NopythonTypeInference, "types"),
    (PreLowerStripPhis, "phi nodes to assignments"),
    (CreateLibrary, "code library"),
    (CUDANativeLowering, "LLVM"),
    (CUDABackend, "result"),
)


class KernelCompiler(CUDACompiler):
    """numba's compiler with `_PASSES`."""

    def define_pipelines(self) -> list[PassManager]:
        """The one pipeline."""
        manager = PassManager("fusedsl kernel")
        for step, description in _PASSES:
            manager.add_pass(step, description)
        manager.finalize()
        return [manager]
