# SPDX-License-Identifier: Apache-2.0
"""The few calls of the CUDA driver that fusedsl makes, through ctypes: loading costs nothing and a call about 0.3 us.

The driver is opened on first use, so a machine with no GPU can import this module. Torch owns the contexts (each
device's primary context); this module retains them and never creates or resets one.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Sequence
from typing import Any

from fusedsl.graph.span import FuseError

CUDA_ERROR_INVALID_CONTEXT = 201

# CUfunction_attribute
FUNCTION_MAX_DYNAMIC_SMEM_BYTES = 8
FUNCTION_NON_PORTABLE_CLUSTER_ALLOWED = 14

# CUlaunchAttribute: id, pad, 64-byte value
ATTRIBUTE_BYTES = 72
_ATTRIBUTE_CLUSTER = 4

# CUstreamCaptureMode
_CAPTURE_RELAXED = 2


class DriverError(FuseError):
    """A call of the CUDA driver failed; the message names the call and the driver's error."""


@functools.cache
def library() -> Any:
    """The opened and initialised driver.

    Raises:
        DriverError: there is no driver, or it found no device.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        opened = ctypes.CDLL(name)
    except OSError as error:
        raise DriverError(
            f"the CUDA driver ({name}) cannot be opened: {error}", hint="CPU tensors, which run in the interpreter"
        ) from None
    code = opened.cuInit(0)
    if code:
        raise DriverError(f"the CUDA driver does not start: {_describe(opened, code)}")
    return opened


def _describe(opened: Any, code: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    opened.cuGetErrorName(code, ctypes.byref(name))
    opened.cuGetErrorString(code, ctypes.byref(text))
    known, said = (name.value or b"unknown error").decode(), (text.value or b"").decode()
    return f"{known} ({code}): {said}" if said else f"{known} ({code})"


def describe(code: int) -> str:
    """The driver's name and sentence for an error code: ``CUDA_ERROR_INVALID_VALUE (1): invalid argument``."""
    return _describe(library(), code)


def call(name: str, *arguments: Any) -> None:
    """Call a driver function; ints are passed as 32 bits, anything wider must be a ctypes value.

    Raises:
        DriverError: it returned an error.
    """
    code = getattr(library(), name)(*arguments)
    if code:
        raise DriverError(f"{name} failed: {describe(code)}")


def device_attribute(device_index: int, attribute: int) -> int:
    """``cuDeviceGetAttribute`` of a device that torch calls ``cuda:device_index``."""
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), attribute, _device(device_index))
    return value.value


def device_name(device_index: int) -> str:
    """The marketing name: ``NVIDIA H200``."""
    buffer = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", buffer, len(buffer), _device(device_index))
    return buffer.value.decode()


def _device(device_index: int) -> int:
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), device_index)
    return device.value


@functools.cache
def primary_context(device_index: int) -> ctypes.c_void_p:
    """The primary context of a device, retained for the life of the process."""
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), _device(device_index))
    return context


class in_context:
    """Makes a device's primary context current on this thread, and its calls legal while a stream is being captured."""

    def __init__(self, device_index: int) -> None:
        self._context = primary_context(device_index)
        self._mode = ctypes.c_int(_CAPTURE_RELAXED)

    def __enter__(self) -> None:
        call("cuCtxPushCurrent_v2", self._context)
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(self._mode))

    def __exit__(self, *_: object) -> None:
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(self._mode))
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def set_current(device_index: int) -> None:
    """Make the device's primary context the current one of this thread (a new thread has none)."""
    call("cuCtxSetCurrent", primary_context(device_index))


def load_function(cubin: bytes, name: str, device_index: int) -> ctypes.c_void_p:
    """Load machine code on a device and return its entry ``name``; it stays loaded for the life of the process."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with in_context(device_index):
        call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin))
        call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
    return function


def set_function_attribute(function: ctypes.c_void_p, attribute: int, value: int, device_index: int) -> None:
    """``cuFuncSetAttribute``."""
    with in_context(device_index):
        call("cuFuncSetAttribute", function, attribute, value)


def cluster_attribute(size: int) -> bytes:
    """The ``CUlaunchAttribute`` of clusters of ``size`` blocks along x."""
    return struct.pack("<I4x3I", _ATTRIBUTE_CLUSTER, size, 1, 1).ljust(ATTRIBUTE_BYTES, b"\0")


#: A kernel that does nothing, compiled by the driver.
_PROBE = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry probe() { ret; }
"""


def resident_clusters(device_index: int, sizes: Sequence[int], smem_bytes: int) -> tuple[tuple[int, int], ...]:
    """For each cluster size how many clusters of blocks with so much shared memory are resident at once.

    A cluster lies within a group of multiprocessors, and the groups of a GPU differ (``cuOccupancyMaxActiveClusters``).
    """
    probe = load_function(_PROBE, "probe", device_index)
    set_function_attribute(probe, FUNCTION_MAX_DYNAMIC_SMEM_BYTES, smem_bytes, device_index)
    set_function_attribute(probe, FUNCTION_NON_PORTABLE_CLUSTER_ALLOWED, 1, device_index)
    found = []
    for size in sizes:
        attribute = ctypes.create_string_buffer(cluster_attribute(size), ATTRIBUTE_BYTES)
        config = struct.pack("<7I4xQQI4x", size, 1, 1, 32, 1, 1, smem_bytes, 0, ctypes.addressof(attribute), 1)
        count = ctypes.c_int()
        with in_context(device_index):
            call("cuOccupancyMaxActiveClusters", ctypes.byref(count), probe, ctypes.create_string_buffer(config))
        found.append((size, count.value))
    return tuple(found)
