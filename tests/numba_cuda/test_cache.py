# SPDX-License-Identifier: Apache-2.0
"""The kernel cache: hits, keys, broken folders and entries, threads and processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from fusedsl.config import config
from fusedsl.numba_cuda import cache, linker
from fusedsl.numba_cuda.cache import CacheWarning, KernelCache, decode, encode, key
from fusedsl.numba_cuda.kernel import CompiledKernel, KernelSource

SOURCE = KernelSource("k", "def k(a):\n    store(a, thread_x(), None, 1.0, 1, 1, 1)\n", ("*float32",), 128)
KERNEL = CompiledKernel("k", "sm_90a", b"\0\ncubin", 8, 4, 16, 32, "log\n", b"lto\nir", ("-lto", "-arch=sm_90a"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    before = config.cache_dir, config.disable_cache
    config.cache_dir, config.disable_cache = str(tmp_path / "kernels"), False
    yield tmp_path / "kernels"
    config.cache_dir, config.disable_cache = before


def get(kernels: KernelCache, source: KernelSource = SOURCE, arch: str = "sm_90a") -> CompiledKernel:
    return kernels.get(source, arch, False, lambda: attrs.evolve(KERNEL, arch=arch))


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_entry_reads_back_whole() -> None:
    assert decode(encode(KERNEL)) == KERNEL


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:40], lambda b: b"", lambda b: b.replace(b"cubin", b"cuban")]
)
def test_a_damaged_entry_is_a_miss(folder: Path, damage: object) -> None:
    get(KernelCache())
    (entry,) = entries(folder)
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))  # type: ignore[operator]
    again = KernelCache()
    assert get(again) == KERNEL
    assert (again.counters.compilations, again.counters.disk_hits) == (1, 0)
    assert entry.read_bytes() == whole


def test_memory_then_disk(folder: Path) -> None:
    first = KernelCache()
    assert get(first) is get(first)
    assert attrs.astuple(first.counters) == (1, 0, 1)
    second = KernelCache()
    assert get(second) == KERNEL
    assert attrs.astuple(second.counters) == (0, 1, 0)
    second.clear_memory()
    get(second)
    assert second.counters.disk_hits == 2
    assert len(entries(folder)) == 1


def test_the_key_holds_all_that_decides_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [
        attrs.evolve(SOURCE, text=SOURCE.text + "\n"),
        attrs.evolve(SOURCE, name="other"),
        attrs.evolve(SOURCE, signature=("*float64",)),
        attrs.evolve(SOURCE, threads=256),
        attrs.evolve(SOURCE, min_blocks=2),
        attrs.evolve(SOURCE, max_registers=64),
    ]
    keys = {key(source, "sm_90a", False) for source in [SOURCE, *variants]}
    keys |= {key(SOURCE, "sm_80", False), key(SOURCE, "sm_90a", True)}
    monkeypatch.setattr(cache, "environment", lambda: "other versions")
    keys.add(key(SOURCE, "sm_90a", False))
    assert len(keys) == 10


def test_comment_lines_do_not_count_but_for_line_information() -> None:
    before = attrs.evolve(SOURCE, text="# a.py\n" + SOURCE.text)
    after = attrs.evolve(SOURCE, text="# a.py, moved\n" + SOURCE.text)
    assert key(before, "sm_80", False) == key(after, "sm_80", False) == key(SOURCE, "sm_80", False)
    assert key(before, "sm_80", True) != key(after, "sm_80", True)


def test_disabled_cache_touches_no_folder(folder: Path) -> None:
    config.disable_cache = True
    get(KernelCache())
    again = KernelCache()
    get(again)
    assert again.counters.compilations == 1
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    config.cache_dir = str(tmp_path / "file" / "kernels")
    kernels = KernelCache()
    with pytest.warns(CacheWarning, match="FUSEDSL_CACHE_DIR"):
        assert get(kernels) == KERNEL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get(kernels, arch="sm_80").arch == "sm_80"


def test_a_deleted_folder_is_made_again(folder: Path) -> None:
    kernels = KernelCache()
    get(kernels)
    shutil.rmtree(folder)
    get(kernels, arch="sm_80")
    assert len(entries(folder)) == 1


def test_no_home_and_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    config.cache_dir = ""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", home)
    assert cache.folder() is None
    assert get(KernelCache()) == KERNEL


def test_threads_compile_once() -> None:
    kernels, built = KernelCache(), []

    def build() -> CompiledKernel:
        built.append(threading.get_ident())
        time.sleep(0.05)
        return KERNEL

    found: list[CompiledKernel] = []
    threads = [
        threading.Thread(target=lambda: found.append(kernels.get(SOURCE, "sm_90a", False, build))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len(found) == 8
    assert all(kernel is found[0] for kernel in found)


def test_a_failed_compilation_is_tried_again() -> None:
    kernels = KernelCache()

    def fail() -> CompiledKernel:
        raise linker.CompilationError("no")

    for _ in range(2):
        with pytest.raises(linker.CompilationError, match="no"):
            kernels.get(SOURCE, "sm_90a", False, fail)
    assert get(kernels) == KERNEL


FRESH = """
import sys
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.cache import CACHE
from fusedsl.numba_cuda.kernel import KernelSource
kernel = compile_kernel(KernelSource{source!r}, "sm_90a")
print(CACHE.counters.compilations, CACHE.counters.disk_hits, "numba.cuda" in sys.modules, len(kernel.ptx) > 100,
kernel.registers)
"""


def test_a_fresh_process_reads_the_entry_without_numba(folder: Path) -> None:
    code = FRESH.format(source=attrs.astuple(SOURCE))
    lines = []
    for _ in range(2):
        environment = {"FUSEDSL_CACHE_DIR": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=120
        )
        lines.append(run.stdout.split())
    assert lines[0][:4] == ["1", "0", "True", "True"]
    assert lines[1][:4] == ["0", "1", "False", "True"]
    assert lines[0][4] == lines[1][4]
