# SPDX-License-Identifier: Apache-2.0
"""Loading kernels and launching them with little host time.

A bound launcher keeps the driver's launch record and argument slots in one block of memory: a launch writes the stream
and the arguments with one ``struct`` call and enters ``cuLaunchKernelEx``. Blocks are taken from a pool for the
length of a call (list pop and append are atomic), so threads never share one and no lock is needed.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from fusedsl.graph.span import FuseError
from fusedsl.numba_cuda import driver
from fusedsl.numba_cuda.device import DeviceProperties, properties
from fusedsl.numba_cuda.kernel import CompiledKernel, Geometry

#: Called as ``launcher(stream, arguments)``: a raw stream handle and the variable arguments (a pointer is an address).
Launcher = Callable[[int, Sequence[Any]], None]

Number = int | float | bool

# CUlaunchConfig: grid and block (6 x uint32), sharedMemBytes, pad | hStream, attrs, numAttrs, pad | our argument slots
_CONFIG_HEAD = struct.Struct("<7I4x")
_CONFIG_TAIL = "<QQQ"
_SLOTS_AT = 56
_SLOT_BYTES = 8
_SLOT_CODES = {"int64": "q", "float32": "f4x", "float64": "d", "boolean": "?7x"}

# CUlaunchAttribute
_ATTRIBUTE_COOPERATIVE = 2

_MAX_THREADS = 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)
_PORTABLE_CLUSTER = 8


class LaunchError(FuseError):
    """A kernel could not be launched: the message has its name, geometry and sizes."""


def slot_code(parameter: str) -> str:
    """``struct`` code of one 8-byte argument slot for a signature entry (``"*float32"``, ``"int64"``, ...)."""
    return "Q" if parameter.startswith("*") else _SLOT_CODES[parameter]


@attrs.define(eq=False)
class Function:
    """A kernel loaded on one device.

    Attributes:
        kernel: what was loaded.
        signature: its parameter types.
        device_index: the device.
    """

    kernel: CompiledKernel
    signature: tuple[str, ...]
    device_index: int
    _handle: ctypes.c_void_p = attrs.field(repr=False)
    _dynamic_smem_bytes: int = attrs.field(default=0, init=False, repr=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    def bind(
        self,
        geometry: Geometry,
        constants: Mapping[int, Number] | None = None,
        sources: Mapping[int, int] | None = None,
        types: Sequence[str] | None = None,
    ) -> Launcher:
        """A launcher for one geometry.

        Args:
            geometry: grid (in blocks), block, cluster, dynamic shared memory.
            constants: parameter index -> value that never changes.
            sources: parameter index, of those that are not constant -> place of its value in the launcher's arguments;
                default: the arguments are these parameters, in order.
            types: type of each of the launcher's arguments, in the words of a signature; goes with ``sources``. No
                parameter needs to read an argument, so many launchers can share one tuple.

        Raises:
            LaunchError: the device cannot run this geometry.
        """
        check_geometry(self.kernel, geometry, properties(self.device_index))
        self._allow(geometry)
        return bind(self, geometry, self._handle, constants, sources, types)

    def _allow(self, geometry: Geometry) -> None:
        """Opt in to what the geometry needs beyond a kernel's defaults (48 KiB of shared memory, clusters of 8)."""
        with self._lock:
            if geometry.dynamic_smem_bytes > self._dynamic_smem_bytes:
                driver.set_function_attribute(
                    self._handle, driver.FUNCTION_MAX_DYNAMIC_SMEM_BYTES, geometry.dynamic_smem_bytes, self.device_index
                )
                self._dynamic_smem_bytes = geometry.dynamic_smem_bytes
            if geometry.cluster > _PORTABLE_CLUSTER:
                driver.set_function_attribute(
                    self._handle, driver.FUNCTION_NON_PORTABLE_CLUSTER_ALLOWED, 1, self.device_index
                )


def load(compiled: CompiledKernel, signature: tuple[str, ...], device_index: int) -> Function:
    """Load a kernel on ``cuda:device_index``.

    Raises:
        LaunchError: the kernel is for another architecture, or the driver refuses it.
    """
    arch = properties(device_index).arch
    if compiled.arch != arch:
        raise LaunchError(
            f"kernel {compiled.name} is compiled for {compiled.arch}, but cuda:{device_index} is {arch}",
            expected=f"a kernel for {arch}",
        )
    try:
        handle = driver.load_function(compiled.cubin, compiled.name, device_index)
    except driver.DriverError as error:
        raise LaunchError(f"kernel {compiled.name} cannot be loaded on cuda:{device_index}: {error.message}") from None
    return Function(compiled, signature, device_index, handle)


def check_geometry(kernel: CompiledKernel, geometry: Geometry, device: DeviceProperties) -> None:
    """Compare a geometry with the device's limits, with the arithmetic in the message.

    Raises:
        LaunchError: threads, grid, cluster or shared memory are beyond them.
    """
    threads = geometry.block[0] * geometry.block[1] * geometry.block[2]
    if not 1 <= threads <= _MAX_THREADS:
        raise _refuse(kernel, geometry, f"a block of {threads} threads", f"1 to {_MAX_THREADS} threads")
    for axis, extent, limit in zip("xyz", geometry.grid, _MAX_GRID, strict=True):
        if not 1 <= extent <= limit:
            raise _refuse(kernel, geometry, f"a grid of {extent} blocks along {axis}", f"1 to {limit}")
    if not 1 <= geometry.cluster <= device.max_cluster or geometry.grid[0] % geometry.cluster:
        raise _refuse(
            kernel,
            geometry,
            f"clusters of {geometry.cluster} blocks",
            f"1 to {device.max_cluster} on {device.name}, dividing the grid's {geometry.grid[0]} blocks along x",
        )
    total = kernel.smem_bytes + geometry.dynamic_smem_bytes
    if total > device.smem_per_block_optin:
        raise _refuse(
            kernel,
            geometry,
            f"{kernel.smem_bytes} static + {geometry.dynamic_smem_bytes} dynamic = {total} bytes of shared memory",
            f"at most {device.smem_per_block_optin} bytes on {device.name}",
        )


def _refuse(kernel: CompiledKernel, geometry: Geometry, found: str, expected: str) -> LaunchError:
    return LaunchError(f"kernel {kernel.name} needs {found} ({describe(geometry)})", expected=expected)


def describe(geometry: Geometry) -> str:
    """``grid (8, 1, 1), block (256, 1, 1), cluster 1, 0 bytes dynamic shared memory``."""
    cooperative = ", cooperative" if geometry.cooperative else ""
    return (
        f"grid {geometry.grid}, block {geometry.block}, cluster {geometry.cluster}, "
        f"{geometry.dynamic_smem_bytes} bytes dynamic shared memory{cooperative}"
    )


def launch_attributes(geometry: Geometry) -> bytes:
    """The array of ``CUlaunchAttribute`` a geometry needs, packed (72 bytes each)."""
    packed = b""
    if geometry.cooperative:
        packed += struct.pack("<I4xi", _ATTRIBUTE_COOPERATIVE, 1).ljust(driver.ATTRIBUTE_BYTES, b"\0")
    if geometry.cluster > 1:
        packed += driver.cluster_attribute(geometry.cluster)
    return packed


@attrs.frozen
class _Layout:
    """Where everything of a launch lies in a pool block: config, argument slots, constant slots, pointer table."""

    head: bytes
    record: struct.Struct  # from byte 32: stream, attributes' address, their number, arguments
    constants: bytes
    slots: tuple[int, ...]  # per parameter: byte offset of its slot
    table_at: int


def _layout(
    signature: tuple[str, ...],
    geometry: Geometry,
    constants: Mapping[int, Number],
    sources: Mapping[int, int],
    types: Sequence[str],
) -> _Layout:
    fixed = sorted(constants)
    place = {**sources, **{index: len(types) + rank for rank, index in enumerate(fixed)}}
    return _Layout(
        _CONFIG_HEAD.pack(*geometry.grid, *geometry.block, geometry.dynamic_smem_bytes),
        struct.Struct(_CONFIG_TAIL + "".join(slot_code(type_) for type_ in types)),
        b"".join(struct.pack("<" + slot_code(signature[index]), constants[index]) for index in fixed),
        tuple(_SLOTS_AT + _SLOT_BYTES * place[index] for index in range(len(signature))),
        _SLOTS_AT + _SLOT_BYTES * (len(types) + len(fixed)),
    )


def _new_block(layout: _Layout) -> tuple[bytearray, ctypes.c_void_p, ctypes.c_void_p]:
    """A pool block: its bytes, the address of the config in it, and the address of its table of slot addresses."""
    count = len(layout.slots)
    block = bytearray(layout.table_at + 8 * max(count, 1))
    base = ctypes.addressof(ctypes.c_char.from_buffer(block))
    block[: len(layout.head)] = layout.head
    block[layout.table_at - len(layout.constants) : layout.table_at] = layout.constants
    struct.pack_into(f"<{count}Q", block, layout.table_at, *(base + offset for offset in layout.slots))
    return block, ctypes.c_void_p(base), ctypes.c_void_p(base + layout.table_at)


def bind(
    function: Function,
    geometry: Geometry,
    handle: ctypes.c_void_p,
    constants: Mapping[int, Number] | None = None,
    sources: Mapping[int, int] | None = None,
    types: Sequence[str] | None = None,
) -> Launcher:
    """The fast path of :meth:`Function.bind`: checks nothing, see there."""
    signature, constants = function.signature, constants or {}
    variable = [index for index in range(len(signature)) if index not in constants]
    if sources is None:
        sources = {index: rank for rank, index in enumerate(variable)}
        types = [signature[index] for index in variable]
    assert types is not None, "the types of the arguments come with their places"
    layout = _layout(signature, geometry, constants, sources, types)
    wanted = launch_attributes(geometry)
    packed = ctypes.create_string_buffer(wanted, max(len(wanted), 1))
    attributes, attribute_count = ctypes.addressof(packed), len(wanted) // driver.ATTRIBUTE_BYTES
    pack_into = layout.record.pack_into
    enter = driver.library()["cuLaunchKernelEx"]
    pool: list[tuple[bytearray, ctypes.c_void_p, ctypes.c_void_p]] = []

    def launch(stream: int, arguments: Sequence[Any], packed: Any = packed) -> None:
        try:
            slot = pool.pop()
        except IndexError:
            slot = _new_block(layout)
        block, config, table = slot
        try:
            pack_into(block, 32, stream, attributes, attribute_count, *arguments)
        except struct.error as error:
            raise _bad_argument(function, arguments, error) from None
        code = enter(config, handle, table, None)
        if code == driver.CUDA_ERROR_INVALID_CONTEXT:  # a new thread, before torch touched the device on it
            driver.set_current(function.device_index)
            code = enter(config, handle, table, None)
        pool.append(slot)
        if code:
            raise _launch_failed(function, geometry, arguments, constants, code)

    return launch


def _bad_argument(function: Function, arguments: Sequence[Any], error: struct.error) -> LaunchError:
    return LaunchError(
        f"kernel {function.kernel.name} cannot take the arguments {tuple(arguments)}: {error}",
        expected=f"values of {', '.join(function.signature)}; a Python int must fit 64 bits",
    )


def _launch_failed(
    function: Function,
    geometry: Geometry,
    arguments: Sequence[Any],
    constants: Mapping[int, Number],
    code: int,
) -> LaunchError:
    sizes = f"sizes {tuple(constants.values())}, " if constants else ""
    return LaunchError(
        f"launching kernel {function.kernel.name} on cuda:{function.device_index} failed: {driver.describe(code)} "
        f"({describe(geometry)}, {function.kernel.registers} registers, {function.kernel.smem_bytes} bytes static "
        f"shared memory, {sizes}arguments {tuple(arguments)})",
        hint="an error of an earlier kernel may only show here: run with CUDA_LAUNCH_BLOCKING=1",
    )
