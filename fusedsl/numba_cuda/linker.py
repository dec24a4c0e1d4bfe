# SPDX-License-Identifier: Apache-2.0
"""nvJitLink: LTO-IR to a cubin or to PTX, with the verbose log. No GPU and no numba needed."""

from __future__ import annotations

import re
from typing import Any

import attrs

from fusedsl.graph.span import FuseError

_REGISTERS = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SMEM = re.compile(r"(\d+) bytes smem")


class CompilationError(FuseError):
    """A kernel could not be compiled: a fault of fusedsl or of the installed toolchain, not of the user's function."""


@attrs.frozen
class Resources:
    """What the assembler reports of a kernel: registers a thread, bytes spilled, stack and static shared memory."""

    registers: int
    spill_bytes: int
    local_bytes: int
    smem_bytes: int


def read_log(log: str) -> Resources:
    """Resources from the linker's verbose log."""
    registers, stack, smem = _REGISTERS.search(log), _STACK.search(log), _SMEM.search(log)
    assert registers is not None, f"unknown form of the linker's log:\n{log}"
    assert stack is not None, f"unknown form of the linker's log:\n{log}"
    return Resources(
        registers=int(registers[1]),
        spill_bytes=int(stack[2]) + int(stack[3]),
        local_bytes=int(stack[1]),
        smem_bytes=int(smem[1]) if smem else 0,
    )


def link(name: str, ltoir: bytes, options: tuple[str, ...], *, ptx: bool = False) -> tuple[bytes, str]:
    """Optimise and assemble LTO-IR.

    Args:
        name: of the program, for messages.
        ltoir: libNVVM's output.
        options: nvJitLink options; ``-lto`` and ``-arch`` among them.
        ptx: stop at the program's PTX.

    Returns:
        The cubin (or PTX text) and the log.

    Raises:
        CompilationError: the linker or assembler refuses it.
    """
    from cuda.bindings import nvjitlink  # noqa: PLC0415 (heavy, and not needed for cached kernels)

    # With its cache on, the linker returns an empty log for LTO-IR it has linked before in the process.
    flags = [*options, "-verbose", "-no-cache", *(["-ptx"] if ptx else [])]
    handle: Any = nvjitlink.create(len(flags), flags)
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, ltoir, len(ltoir), name)
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            message = _text(_read(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle))
            raise refused(name, str(error), message) from error
        log = _text(_read(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle))
        if ptx:
            return _read(nvjitlink.get_linked_ptx_size, nvjitlink.get_linked_ptx, handle).rstrip(b"\0"), log
        return _read(nvjitlink.get_linked_cubin_size, nvjitlink.get_linked_cubin, handle), log
    finally:
        nvjitlink.destroy(handle)


def refused(name: str, code: str, message: str) -> CompilationError:
    """The error for what nvJitLink refuses, given its error code and log."""
    hint = None
    if "OUTDATED_LIBRARY" in code:
        hint = (
            "install nvidia-nvjitlink and nvidia-nvvm of one release: this nvJitLink is older than the NVVM beside it"
        )
    return CompilationError(f"nvJitLink cannot link {name!r}: {code}\n{message}", hint=hint)


def _read(size: Any, get: Any, handle: Any) -> bytes:
    buffer = bytearray(size(handle))
    if buffer:
        get(handle, buffer)
    return bytes(buffer)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace").rstrip("\0").strip()
