# SPDX-License-Identifier: Apache-2.0
"""Host time of each part of a call, and of the ways to do it: ``python -m benchmarks.host_paths [--json FILE]``.

Launching an empty kernel, asking for the stream and device, allocating a result, building the key of a call, and whole
calls. Times are microseconds of host time, the median over batches; the device is drained between batches, so a full
launch queue is never what is measured. Without a GPU only the parts that need none are timed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

BATCHES = 25
CALLS = 400

#: An empty kernel with the parameters of a small fused one: three pointers, two extents, one float.
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry probe(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 rows, .param .u64 cols, .param .f32 eps)
{
    ret;
}
"""
SIGNATURE = ("*float32", "*float32", "*float32", "int64", "int64", "float32")

Timed = Callable[[], Any]


def time_us(function: Timed, cuda: bool) -> float:
    """Median host time of a call in microseconds."""
    found = []
    for _ in range(BATCHES):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            function()
        found.append((time.perf_counter_ns() - start) / CALLS / 1e3)
    return statistics.median(found)


def launch_variants() -> dict[str, Timed]:
    """Ways to launch the probe kernel on ``cuda:0``."""
    from fusedsl.numba_cuda import driver
    from fusedsl.numba_cuda.kernel import CompiledKernel, Geometry
    from fusedsl.numba_cuda.launch import Function

    geometry = Geometry((8, 1, 1), (128, 1, 1))
    handle = driver.load_function(PTX.encode(), "probe", 0)
    kernel = CompiledKernel("probe", "sm_80", b"", 8, 0, 0, 0, "", b"", ())
    function = Function(kernel, SIGNATURE, 0, handle)
    tensor = torch.ones(1024, device="cuda")
    address = tensor.data_ptr()
    stream = torch.cuda.current_stream().cuda_stream
    whole = function.bind(geometry)
    short = function.bind(geometry, {3: 8, 4: 128})
    everything = (address, address, address, 8, 128, 1e-5)
    pointers = (address, address, address, 1e-5)
    variants: dict[str, Timed] = {
        "fusedsl launcher, 6 arguments": lambda: whole(stream, everything),
        "fusedsl launcher, 2 of 6 constant": lambda: short(stream, pointers),
    }
    variants.update(_raw_variants(handle, everything, stream))
    variants.update(_bindings_variants(handle, everything, stream))
    variants.update(_core_variants(everything))
    return variants


def _raw_variants(handle: ctypes.c_void_p, values: Sequence[Any], stream: int) -> dict[str, Timed]:
    """The driver through ctypes with all arguments in place: the floor of any such launcher."""
    slots = [ctypes.c_uint64(v) if isinstance(v, int) else ctypes.c_float(v) for v in values]
    table = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(slot) for slot in slots))
    config = ctypes.create_string_buffer(struct.pack("<7I4xQQI4x", 8, 1, 1, 128, 1, 1, 0, stream, 0, 0), 56)
    config_at, table_at = ctypes.c_void_p(ctypes.addressof(config)), ctypes.c_void_p(ctypes.addressof(table))
    releasing, holding = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")
    launch_ex, launch_ex_gil = releasing["cuLaunchKernelEx"], holding["cuLaunchKernelEx"]
    launch = releasing["cuLaunchKernel"]
    raw_stream = ctypes.c_void_p(stream)
    keep = (slots, table, config)
    return {
        "ctypes cuLaunchKernelEx, arguments in place": lambda: launch_ex(config_at, handle, table_at, None),
        "ctypes cuLaunchKernelEx, GIL held": lambda: launch_ex_gil(config_at, handle, table_at, None),
        "ctypes cuLaunchKernel, 11 values": lambda keep=keep: launch(  # type: ignore[misc]
            handle, 8, 1, 1, 128, 1, 1, 0, raw_stream, table_at, None
        ),
    }


def _bindings_variants(handle: ctypes.c_void_p, values: Sequence[Any], stream: int) -> dict[str, Timed]:
    """The driver through cuda.bindings."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return {}
    function = driver.CUfunction(handle.value)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 8, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 128, 1, 1
    config.hStream = driver.CUstream(stream)
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_float)
    arguments = (tuple(values), types)
    slots = [ctypes.c_uint64(v) if isinstance(v, int) else ctypes.c_float(v) for v in values]
    table = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(slot) for slot in slots))
    table_at = ctypes.addressof(table)
    return {
        "cuda.bindings cuLaunchKernelEx, values": lambda: driver.cuLaunchKernelEx(config, function, arguments, 0),
        "cuda.bindings cuLaunchKernelEx, in place": lambda keep=(slots, table): driver.cuLaunchKernelEx(  # type: ignore[misc]
            config, function, table_at, 0
        ),
    }


def _core_variants(values: Sequence[Any]) -> dict[str, Timed]:
    """cuda.core's launch."""
    try:
        from cuda.core import Device, LaunchConfig, ObjectCode, launch
    except ImportError:
        try:
            from cuda.core.experimental import Device, LaunchConfig, ObjectCode, launch
        except ImportError:
            return {}
    device = Device(0)
    device.set_current()
    kernel = ObjectCode.from_ptx(PTX.encode()).get_kernel("probe")
    config = LaunchConfig(grid=8, block=128)
    raw = torch.cuda.current_stream()

    class TorchStream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, raw.cuda_stream

    stream = device.create_stream(TorchStream())
    plain = (*values[:5], ctypes.c_float(values[5]))
    return {
        "cuda.core launch, Python ints": lambda: launch(stream, config, kernel, *plain),
    }


def slot_variants() -> dict[str, Timed]:
    """Ways to give every thread argument slots of its own (no GPU needed)."""
    record = struct.Struct("<QQQQQQqqf4x")
    values = (1, 0, 0, 4096, 8192, 12288, 8, 128, 1e-5)
    pool = [bytearray(256)]
    local = threading.local()
    local.block = bytearray(256)
    lock = threading.Lock()
    shared = bytearray(256)

    def pooled() -> None:
        block = pool.pop()
        record.pack_into(block, 32, *values)
        pool.append(block)

    def thread_local() -> None:
        record.pack_into(local.block, 32, *values)

    def locked() -> None:
        with lock:
            record.pack_into(shared, 32, *values)

    def built() -> None:
        ctypes.create_string_buffer(record.pack(*values))

    return {"pool of blocks": pooled, "threading.local": thread_local, "lock": locked, "built at each call": built}


def query_variants() -> dict[str, Timed]:
    """Ways to ask torch for the stream and the device."""
    return {
        "torch._C._cuda_getCurrentRawStream(0)": lambda: torch._C._cuda_getCurrentRawStream(0),
        "torch.cuda.current_stream().cuda_stream": lambda: torch.cuda.current_stream().cuda_stream,
        "torch._C._cuda_getDevice()": lambda: torch._C._cuda_getDevice(),
        "torch.cuda.current_device()": lambda: torch.cuda.current_device(),
    }


def allocation_variants(device: str) -> dict[str, Timed]:
    """Ways to allocate a (64, 128) float32 result."""
    x = torch.ones(64, 128, device=device)
    where = x.device
    shape, strides = (64, 128), (128, 1)
    overload = torch.ops.aten.empty_strided.default
    found: dict[str, Timed] = {
        "torch.empty_strided, torch.device": lambda: torch.empty_strided(
            shape, strides, dtype=torch.float32, device=where
        ),
        "torch.empty_strided, str": lambda: torch.empty_strided(shape, strides, dtype=torch.float32, device=device),
        "torch.empty": lambda: torch.empty(shape, dtype=torch.float32, device=where),
        "torch.empty_like": lambda: torch.empty_like(x),
        "x.new_empty": lambda: x.new_empty(shape),
        "x.new_empty_strided": lambda: x.new_empty_strided(shape, strides),
        "aten.empty_strided.default": lambda: overload(shape, strides, dtype=torch.float32, device=where),
    }
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    direct = getattr(guards, f"_empty_strided_{where.type}", None)
    if direct is not None:
        found[f"_empty_strided_{where.type}"] = lambda: direct(shape, strides, torch.float32)
    return found


def key_variants(device: str) -> dict[str, Timed]:
    """Parts of the key of a call, and ways to build it for two tensors and a float."""
    from fusedsl.keys import call_key

    x, y = torch.ones(64, 128, device=device), torch.ones(128, device=device)
    values = (x, y, 1e-5)
    key = call_key(values)
    found: dict[str, Timed] = {
        "x.dtype": lambda: x.dtype,
        "x.shape": lambda: x.shape,
        "x.stride()": lambda: x.stride(),
        "x.data_ptr()": lambda: x.data_ptr(),
        "x.get_device()": lambda: x.get_device(),
        "x.device": lambda: x.device,
        "x.requires_grad": lambda: x.requires_grad,
        "x.is_neg()": lambda: x.is_neg(),
        "torch.is_grad_enabled()": lambda: torch.is_grad_enabled(),
        "torch.get_default_dtype()": lambda: torch.get_default_dtype(),
        "torch.compiler.is_compiling()": lambda: torch.compiler.is_compiling(),
        "call_key of two tensors and a float": lambda: call_key(values),
        "hash of that key": lambda: hash(key),
        "empty lambda (what each line includes)": lambda: None,
    }
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    if guards is not None:
        checker = guards.TensorGuards(x, y, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        found["TensorGuards.check of two tensors"] = lambda: checker.check(x, y)
    return found


def whole_variants(device: str) -> dict[str, Timed]:
    """Whole calls with two inputs and one output, against eager PyTorch (two kernels)."""
    import fusedsl

    def scaled(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + bias

    x, bias = torch.ones(64, 128, device=device), torch.ones(128, device=device)
    fused = fusedsl.fuse(scaled)
    fused(x, bias)
    dispatcher = fused._dispatcher
    values = (x, bias)
    return {
        "fused call": lambda: fused(x, bias),
        "  of which bind": lambda: dispatcher.bind(x, bias),
        "  of which key, look-up and run": lambda: dispatcher.cached(values),
        "eager": lambda: scaled(x, bias),
    }


def main() -> None:
    """Run every suite that this machine can, print a table, write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the times to this file")
    chosen = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    suites: list[tuple[str, Callable[[], dict[str, Timed]], bool]] = [
        ("launch", launch_variants, True),
        ("argument slots", slot_variants, False),
        ("stream and device", query_variants, True),
        ("allocation", lambda: allocation_variants(device), False),
        ("key", lambda: key_variants(device), False),
        ("whole call", lambda: whole_variants(device), True),
    ]
    results: dict[str, dict[str, float]] = {}
    for name, make, needs_gpu in suites:
        if needs_gpu and not cuda:
            continue
        print(f"\n{name}")
        results[name] = {}
        for variant, function in make().items():
            function()
            results[name][variant] = time_us(function, cuda)
            print(f"  {results[name][variant]:8.3f} us  {variant}")
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "times_us": results}, file, indent=1)


if __name__ == "__main__":
    main()
