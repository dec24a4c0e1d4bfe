# SPDX-License-Identifier: Apache-2.0
"""The records that pass between the schedulers, the compiler, the launcher and the interpreter."""

from __future__ import annotations

from functools import cached_property

import attrs

from fusedsl.numba_cuda.dtypes import DTYPES
from fusedsl.numba_cuda.linker import link

#: Types a kernel parameter may have besides pointers (``"*" + dtype name``).
SCALAR_PARAMETERS = ("int64", "float32", "float64", "boolean")


def _check_signature(_: object, __: object, value: tuple[str, ...]) -> None:
    for parameter in value:
        known = parameter[1:] in DTYPES if parameter.startswith("*") else parameter in SCALAR_PARAMETERS
        assert known, f"kernel parameter type {parameter!r} is neither *dtype nor one of {SCALAR_PARAMETERS}"


@attrs.frozen
class KernelSource:
    """A kernel as text: everything that decides its machine code but the architecture.

    Attributes:
        name: name of the kernel's function in ``text``; profilers show it.
        text: the whole module: constants and one function over the kernel language.
        signature: type of each parameter: ``"*bfloat16"`` for a pointer, ``"int64"``, ``"float32"``, ``"float64"``,
        ``"boolean"``. threads: threads a block (the launch bound).
        min_blocks: blocks a multiprocessor should hold; limits registers. None: no wish.
        max_registers: cap on registers a thread. None: no cap.
    """

    name: str
    text: str
    signature: tuple[str, ...] = attrs.field(validator=_check_signature)
    threads: int
    min_blocks: int | None = None
    max_registers: int | None = None


@attrs.frozen
class Geometry:
    """A launch configuration.

    Attributes:
        grid: blocks in x, y, z.
        block: threads in x, y, z.
        cluster: blocks a cluster, along x.
        dynamic_smem_bytes: size of the dynamic shared array.
        cooperative: all blocks must be resident at once (grid-wide barriers).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: int = 1
    dynamic_smem_bytes: int = 0
    cooperative: bool = False


@attrs.frozen
class CompiledKernel:
    """A kernel linked for one architecture.

    Attributes:
        name: entry point in ``cubin``.
        arch: ``"sm_90a"``.
        cubin: machine code.
        registers: registers a thread.
        spill_bytes: bytes of spill stores and loads a thread.
        local_bytes: local memory (stack) a thread, spills included.
        smem_bytes: static shared memory a block.
        log: the linker's verbose log.
        ltoir: what was linked.
        link_options: how it was linked.
    """

    name: str
    arch: str
    cubin: bytes = attrs.field(repr=False)
    registers: int
    spill_bytes: int
    local_bytes: int
    smem_bytes: int
    log: str = attrs.field(repr=False)
    ltoir: bytes = attrs.field(repr=False)
    link_options: tuple[str, ...] = attrs.field(repr=False)

    @cached_property
    def ptx(self) -> str:
        """PTX of the linked program, made when first asked for (some tens of milliseconds)."""
        return link(self.name, self.ltoir, self.link_options, ptx=True)[0].decode()
