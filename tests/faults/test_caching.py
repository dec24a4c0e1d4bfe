# SPDX-License-Identifier: Apache-2.0
"""What makes a new kernel and what must not: scalars, sizes, captured values, edited helpers, shared cache folders."""

from __future__ import annotations

import errno
import shutil
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from fusedsl.config import config
from fusedsl.numba_cuda import cache
from fusedsl.numba_cuda.cache import CacheWarning, KernelCache
from fusedsl.numba_cuda.kernel import CompiledKernel, KernelSource
from tests.faults.programs import run_python
from tests.tolerance import assert_matches_eager

SCALE = 2.0
FACTORS = [2.0, 5.0]
settings = types.SimpleNamespace(scale=2.0)


def helper(x: Tensor) -> Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    global SCALE, helper
    scale, factors, attribute, function = SCALE, list(FACTORS), settings.scale, helper
    yield
    SCALE, settings.scale, helper = scale, attribute, function
    FACTORS[:] = factors


def test_a_new_float_traces_and_compiles_nothing(device: str) -> None:
    def f(x: Tensor, a: float, b: float) -> Tensor:
        return x * (a * b) + a

    fused, x = fusedsl.fuse(f), torch.randn(4, 8, device=device)
    fused(x, 0.5, 0.25)
    before = fusedsl.stats()
    for step in range(100):
        a, b = 0.01 * step + 0.003, 1.0 + step
        torch.testing.assert_close(fused(x, a, b), f(x, a, b))
    after = fusedsl.stats()
    assert after.traces == before.traces
    assert after.plans == before.plans
    assert after.compilations == before.compilations


def test_a_new_sequence_length_compiles_nothing(device: str) -> None:
    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)

    hidden = 1024 if device == "cuda" else 32
    lengths = [1, *range(2, 4098, 65)] if device == "cuda" else [1, 2, 3, 5, 8, 13, 21]
    fused, weight = fusedsl.fuse(norm), torch.randn(hidden, device=device)
    before = fusedsl.stats()
    for length in lengths:
        assert_matches_eager(fused, torch.randn(length, hidden, device=device), weight)
    after = fusedsl.stats()
    assert after.traces - before.traces <= 2  # a leading size of 1 is a structure of its own
    assert after.compilations + after.disk_hits - before.compilations - before.disk_hits <= 4
    texts = {fused.source(torch.empty(length, hidden, device="meta"), weight.to("meta")) for length in lengths}
    assert len(texts) <= 4


def test_a_rebound_global_is_seen(device: str) -> None:
    global SCALE

    @fusedsl.fuse
    def f(x: Tensor) -> Tensor:
        return x * SCALE

    x = torch.ones(4, device=device)
    assert f(x).tolist() == [2.0] * 4
    SCALE = 3.0
    assert f(x).tolist() == [3.0] * 4
    SCALE = 2.0
    assert f(x).tolist() == [2.0] * 4


def test_a_changed_list_element_is_seen(device: str) -> None:
    @fusedsl.fuse
    def f(x: Tensor) -> Tensor:
        return x * FACTORS[0] + FACTORS[1]

    x = torch.ones(4, device=device)
    assert f(x).tolist() == [7.0] * 4
    FACTORS[0] = 3.0
    assert f(x).tolist() == [8.0] * 4
    FACTORS[1] = 1.0
    assert f(x).tolist() == [4.0] * 4


def test_a_changed_attribute_is_seen(device: str) -> None:
    @fusedsl.fuse
    def f(x: Tensor) -> Tensor:
        return x * settings.scale

    x = torch.ones(4, device=device)
    assert f(x).tolist() == [2.0] * 4
    settings.scale = 3.0
    assert f(x).tolist() == [3.0] * 4


def test_a_rebound_helper_is_seen(device: str) -> None:
    global helper

    @fusedsl.fuse
    def f(x: Tensor) -> Tensor:
        return helper(x) + 1

    x = torch.ones(4, device=device)
    assert f(x).tolist() == [3.0] * 4

    def thrice(x: Tensor) -> Tensor:
        return x * 3

    helper = thrice
    assert f(x).tolist() == [4.0] * 4


def test_a_changed_closure_cell_is_seen(device: str) -> None:
    def make() -> tuple[Callable[[Tensor], Tensor], Callable[[float], None]]:
        factor = 2.0

        @fusedsl.fuse
        def f(x: Tensor) -> Tensor:
            return x * factor

        def change(value: float) -> None:
            nonlocal factor
            factor = value

        return f, change

    f, change = make()
    x = torch.ones(4, device=device)
    assert f(x).tolist() == [2.0] * 4
    change(3.0)
    assert f(x).tolist() == [3.0] * 4


_HELPERS = """
def g(x):
    return x * {factor}

def by_name(x, mode):
    if mode == "double":
        return x * {factor}
    return x - {factor}

TABLE = {{"h": g}}
"""

_MAIN = """
import sys
import torch, fusedsl
import edited_helpers
from edited_helpers import TABLE

@fusedsl.fuse
def f(x, mode):
    return edited_helpers.g(x), TABLE["h"](x) + 1, edited_helpers.by_name(x, mode)

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.ones(4, device=device)
print([float(y[0]) for y in f(x, "double")], float(f(x, "other")[2][0]))
for kernel in f.compile(x, "double", arch="sm_90a"):
    assert kernel.cubin
"""


def test_an_edited_helper_is_seen_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(_MAIN)
    printed = []
    for factor in (2, 3):
        (tmp_path / "edited_helpers.py").write_text(_HELPERS.format(factor=factor))
        output = run_python(
            str(tmp_path / "main.py"), FUSEDSL_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1"
        )
        printed.append(output.splitlines()[0])
    assert printed == ["[2.0, 3.0, 2.0] -1.0", "[3.0, 4.0, 3.0] -2.0"]


_COMPILE = """
import warnings
import torch, fusedsl

@fusedsl.fuse
def f(x):
    return torch.sin(x) * 2

for dtype in (torch.float32, torch.float16):
    for kernel in f.compile(torch.empty(8, 8, dtype=dtype, device="meta"), arch="sm_90a"):
        assert kernel.cubin
if torch.cuda.is_available():
    x = torch.ones(8, 8, device="cuda")
    assert torch.allclose(f(x), torch.sin(x) * 2)
print("done")
"""


def test_an_unusable_cache_folder_breaks_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    (tmp_path / "main.py").write_text(_COMPILE)
    output = run_python(str(tmp_path / "main.py"), FUSEDSL_CACHE_DIR=str(blocked / "cache"))
    assert "done" in output


def fake_kernel(number: int) -> tuple[KernelSource, CompiledKernel]:
    """A kernel that costs nothing to compile, and what compiling it gives."""
    source = KernelSource(f"k{number}", f"def k{number}():\n    barrier()\n", (), 32)
    content = bytes([number]) * 100_000
    return source, CompiledKernel(source.name, "sm_90a", content, 8, 0, 0, 0, "log", content, ("-lto",))


def use_cache(folders: list[str], start: Barrier, kind: str, report: SimpleQueue[str]) -> None:
    """One of many processes: in every round ask for 8 kernels as the others do; report what went wrong."""
    config.disable_cache = False
    wrong: list[str] = []
    for folder in folders:
        config.cache_dir = folder
        kernels = KernelCache()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start.wait(60)
            for number in range(8):
                if kind == "deleted" and number == 4:
                    shutil.rmtree(folder, ignore_errors=True)
                source, kernel = fake_kernel(number)
                try:
                    assert kernels.get(source, "sm_90a", False, lambda kernel=kernel: kernel) == kernel
                except BaseException as failure:
                    wrong.append(repr(failure))
        if len(caught) > (0 if kind == "whole" else 1):
            wrong += [str(warning.message) for warning in caught]
    report.put("\n".join(wrong))


@pytest.mark.parametrize("kind", ["whole", "deleted", "unwritable"])
def test_many_processes_share_one_cache_folder(tmp_path: Path, kind: str) -> None:
    """16 processes, 20 rounds of 8 kernels in a new folder: left alone, deleted half-way by each, unwritable."""
    processes = get_context("forkserver")
    processes.set_forkserver_preload(["fusedsl.numba_cuda.cache"])
    (tmp_path / "file").write_text("")
    folders = [tmp_path / ("file" if kind == "unwritable" else "folder") / str(round_) for round_ in range(20)]
    start, report = processes.Barrier(16), processes.SimpleQueue()
    arguments = ([str(folder) for folder in folders], start, kind, report)
    running = [processes.Process(target=use_cache, args=arguments) for _ in range(16)]
    for process in running:
        process.start()
    assert [report.get() for _ in running] == [""] * 16
    for process in running:
        process.join(60)
    if kind == "whole":
        assert [sum(path.is_file() for path in folder.rglob("*")) for folder in folders] == [8] * 20


def test_a_read_only_folder_serves_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    monkeypatch.setattr(config, "disable_cache", False)
    (source, kernel), (other_source, other) = fake_kernel(1), fake_kernel(2)
    KernelCache().get(source, "sm_90a", False, lambda: kernel)

    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    kernels = KernelCache()
    assert kernels.get(source, "sm_90a", False, lambda: other) == kernel
    with pytest.warns(CacheWarning, match="Read-only file system"):
        assert kernels.get(other_source, "sm_90a", False, lambda: other) == other
    assert (kernels.counters.disk_hits, kernels.counters.compilations) == (1, 1)


@pytest.mark.parametrize(
    "changed", ["fusedsl", "numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "driver"]
)
def test_a_new_version_is_a_miss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: str) -> None:
    source, _ = fake_kernel(1)
    version = metadata.version
    before = cache.key(source, "sm_90a", False)

    def other_version(name: str) -> str:
        return "999" if name == changed else version(name)

    (tmp_path / "version").write_text("another driver")
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", other_version)
        if changed == "driver":
            patch.setattr(cache, "_DRIVER", tmp_path / "version")
        cache.environment.cache_clear()
        after = cache.key(source, "sm_90a", False)
    cache.environment.cache_clear()
    assert after != before
    assert cache.key(source, "sm_90a", False) == before


def test_a_binary_of_another_architecture_is_never_used() -> None:
    @fusedsl.fuse
    def f(x: Tensor) -> Tensor:
        return torch.exp(x) - 1

    x = torch.empty(64, 64, device="meta")
    old, new = f.compile(x, arch="sm_80"), f.compile(x, arch="sm_90a")
    again = f.compile(x, arch="sm_80")
    assert [k.arch for k in (*old, *new, *again)] == ["sm_80", "sm_90a", "sm_80"]
    assert old[0].cubin == again[0].cubin
    assert old[0].cubin != new[0].cubin
