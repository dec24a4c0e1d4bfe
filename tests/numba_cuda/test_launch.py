# SPDX-License-Identifier: Apache-2.0
"""The launcher: what it hands to the driver, byte by byte, also from many threads; limits it checks on the host."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

import attrs
import pytest
import torch

from fusedsl.graph.span import FuseError
from fusedsl.numba_cuda import driver, launch
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.device import A100, H200, properties
from fusedsl.numba_cuda.kernel import CompiledKernel, Geometry, KernelSource

KERNEL = CompiledKernel("probe", "sm_90a", b"", 40, 0, 0, 1024, "", b"", ())
SIGNATURE = ("*float32", "int64", "float32", "boolean", "float64", "*bfloat16")
_CODES = {"*": "Q", "int64": "q", "float32": "f", "float64": "d", "boolean": "?"}
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@attrs.frozen
class Seen:
    """One launch as the driver would read it."""

    dims: tuple[int, ...]
    dynamic_smem_bytes: int
    stream: int
    attributes: bytes
    function: int
    arguments: tuple[Any, ...]


class FakeDriver:
    """Reads launch records as ``cuLaunchKernelEx`` does; fails with ``codes`` first."""

    def __init__(self, signature: tuple[str, ...], codes: tuple[int, ...] = ()) -> None:
        self.seen: list[Seen] = []
        self.signature = signature
        self.codes = list(codes)
        self._entry = _LAUNCH(self._launch)

    def __getitem__(self, name: str) -> Any:
        assert name == "cuLaunchKernelEx"
        return self._entry

    def _launch(self, config: int, function: int, table: int, extra: int | None) -> int:
        assert extra is None
        *dims, smem, stream, attributes, count = struct.unpack("<7I4xQQI4x", ctypes.string_at(config, 56))
        places = struct.unpack(f"<{len(self.signature)}Q", ctypes.string_at(table, 8 * len(self.signature)))
        values = []
        for place, parameter in zip(places, self.signature, strict=True):
            code = _CODES["*" if parameter.startswith("*") else parameter]
            values.append(struct.unpack("<" + code, ctypes.string_at(place, struct.calcsize(code)))[0])
        packed = ctypes.string_at(attributes, 72 * count)
        self.seen.append(Seen(tuple(dims), smem, stream, packed, function, tuple(values)))
        return self.codes.pop(0) if self.codes else 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    found = FakeDriver(SIGNATURE)
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setattr(driver, "describe", lambda code: f"CUDA_ERROR ({code})")
    return found


def make(geometry: Geometry, constants: dict[int, Any] | None = None) -> launch.Launcher:
    function = launch.Function(KERNEL, SIGNATURE, 0, ctypes.c_void_p(77))
    return launch.bind(function, geometry, ctypes.c_void_p(77), constants or {})


def test_every_argument_reaches_the_driver(fake: FakeDriver) -> None:
    launcher = make(Geometry((5, 6, 7), (32, 4, 2), dynamic_smem_bytes=50000))
    launcher(99, (2**40 + 16, -3, 0.5, True, 1e-300, 64))
    assert fake.seen == [Seen((5, 6, 7, 32, 4, 2), 50000, 99, b"", 77, (2**40 + 16, -3, 0.5, True, 1e-300, 64))]


def test_constants_keep_their_places(fake: FakeDriver) -> None:
    launcher = make(Geometry((1, 1, 1), (32, 1, 1)), {1: 2**33, 4: 2.5})
    launcher(0, (16, 1.5, False, 32))
    launcher(1, (48, 2.5, True, 64))
    assert [seen.arguments for seen in fake.seen] == [
        (16, 2**33, 1.5, False, 2.5, 32),
        (48, 2**33, 2.5, True, 2.5, 64),
    ]


def test_cluster_and_cooperative_attributes(fake: FakeDriver) -> None:
    make(Geometry((8, 1, 1), (32, 1, 1), cluster=4, cooperative=True))(0, (0, 0, 0.0, False, 0.0, 0))
    packed = fake.seen[0].attributes
    assert struct.unpack_from("<I4xi", packed, 0) == (2, 1)
    assert struct.unpack_from("<I4x3I", packed, 72) == (4, 4, 1, 1)
    assert len(packed) == 144


def test_threads_never_share_slots(fake: FakeDriver) -> None:
    launcher = make(Geometry((1, 1, 1), (32, 1, 1)))
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for step in range(300):
            value = number * 1000 + step
            launcher(value, (value, value, float(value), False, float(value), value))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seen in fake.seen:
        value = seen.stream
        assert seen.arguments == (value, value, float(value), False, float(value), value)
    assert sorted(seen.stream for seen in fake.seen) == [n * 1000 + s for n in range(8) for s in range(300)]


def test_a_thread_without_a_context_gets_one(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    current = []
    monkeypatch.setattr(driver, "set_current", current.append)
    fake.codes = [driver.CUDA_ERROR_INVALID_CONTEXT]
    make(Geometry((1, 1, 1), (32, 1, 1)))(0, (1, 2, 3.0, True, 4.0, 5))
    assert current == [0]
    assert len(fake.seen) == 2
    assert fake.seen[1].arguments == (1, 2, 3.0, True, 4.0, 5)


def test_a_failed_launch_names_kernel_geometry_and_sizes(fake: FakeDriver) -> None:
    fake.codes = [701]
    with pytest.raises(launch.LaunchError) as caught:
        make(Geometry((9, 1, 1), (64, 1, 1)), {1: 4096})(0, (16, 0.5, True, 0.5, 32))
    assert str(caught.value) == (
        "LaunchError: launching kernel probe on cuda:0 failed: CUDA_ERROR (701) "
        "(grid (9, 1, 1), block (64, 1, 1), cluster 1, 0 bytes dynamic shared memory, 40 registers, "
        "1024 bytes static shared memory, sizes (4096,), arguments (16, 0.5, True, 0.5, 32))\n"
        "  try: an error of an earlier kernel may only show here: run with CUDA_LAUNCH_BLOCKING=1"
    )
    make(Geometry((9, 1, 1), (64, 1, 1)))(0, (16, 1, 0.5, True, 0.5, 32))
    assert fake.seen[-1].arguments == (16, 1, 0.5, True, 0.5, 32)


def test_an_int_beyond_64_bits_is_an_error(fake: FakeDriver) -> None:
    with pytest.raises(launch.LaunchError, match="a Python int must fit 64 bits"):
        make(Geometry((1, 1, 1), (32, 1, 1)))(0, (1, 2**63, 3.0, True, 4.0, 5))
    assert fake.seen == []


@pytest.mark.parametrize(
    ("geometry", "said"),
    [
        (Geometry((1, 1, 1), (2048, 1, 1)), "a block of 2048 threads"),
        (Geometry((0, 1, 1), (32, 1, 1)), "a grid of 0 blocks along x"),
        (Geometry((1, 65536, 1), (32, 1, 1)), "a grid of 65536 blocks along y"),
        (Geometry((2**31, 1, 1), (32, 1, 1)), f"a grid of {2**31} blocks along x"),
        (Geometry((6, 1, 1), (32, 1, 1), cluster=4), "clusters of 4 blocks"),
        (
            Geometry((1, 1, 1), (32, 1, 1), dynamic_smem_bytes=231425),
            "1024 static + 231425 dynamic = 232449 bytes of shared memory",
        ),
    ],
)
def test_geometry_beyond_the_device(geometry: Geometry, said: str) -> None:
    with pytest.raises(launch.LaunchError) as caught:
        launch.check_geometry(KERNEL, geometry, H200)
    assert said in str(caught.value)
    assert "kernel probe" in str(caught.value)
    assert isinstance(caught.value, FuseError)


def test_geometry_at_the_limits() -> None:
    launch.check_geometry(KERNEL, Geometry((2**31 - 1, 65535, 1), (1024, 1, 1), dynamic_smem_bytes=231424), H200)
    launch.check_geometry(KERNEL, Geometry((16, 1, 1), (32, 1, 1), cluster=16), H200)
    with pytest.raises(launch.LaunchError, match="clusters of 2 blocks"):
        launch.check_geometry(KERNEL, Geometry((16, 1, 1), (32, 1, 1), cluster=2), A100)


ADD_ONE = KernelSource(
    "add_one",
    "def add_one(x_ptr, y_ptr, limit):\n"
    "    at = block_x() * 128 + thread_x()\n"
    "    x = load(x_ptr, at, limit - at, 1, 1, 1, 0)\n"
    "    store(y_ptr, at, limit - at, x + 1.0, 1, 1, 1)\n",
    ("*float32", "*float32", "int64"),
    128,
)


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [0, 48 * 1024 - 4, 48 * 1024, 48 * 1024 + 4, 100 * 1024])
def test_launch_on_the_device(dynamic: int) -> None:
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    y = torch.zeros_like(x)
    function = launch.load(compile_kernel(ADD_ONE, properties(0).arch), ADD_ONE.signature, 0)
    launcher = function.bind(Geometry((8, 1, 1), (128, 1, 1), dynamic_smem_bytes=dynamic), {2: 1000})
    launcher(torch.cuda.current_stream().cuda_stream, (x.data_ptr(), y.data_ptr()))
    assert torch.equal(y, x + 1)


@pytest.mark.gpu
def test_launch_from_a_new_thread() -> None:
    x = torch.zeros(128, device="cuda")
    y = torch.zeros_like(x)
    function = launch.load(compile_kernel(ADD_ONE, properties(0).arch), ADD_ONE.signature, 0)
    launcher = function.bind(Geometry((1, 1, 1), (128, 1, 1)), {2: 128})
    torch.cuda.synchronize()
    thread = threading.Thread(target=launcher, args=(0, (x.data_ptr(), y.data_ptr())))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.ones_like(y))


@pytest.mark.gpu
def test_a_kernel_for_another_architecture_is_never_loaded() -> None:
    other = "sm_80" if properties(0).arch != "sm_80" else "sm_90a"
    with pytest.raises(launch.LaunchError, match=f"is compiled for {other}, but cuda:0 is {properties(0).arch}"):
        launch.load(attrs.evolve(KERNEL, arch=other), SIGNATURE, 0)
