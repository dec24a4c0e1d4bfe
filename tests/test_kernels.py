# SPDX-License-Identifier: Apache-2.0
"""The collection of planned kernels: what counts as the same kernel, and what counts as a bad one."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

import fusedsl
from fusedsl.numba_cuda.kernel import KernelSource
from fusedsl.schedulers.base import Launch
from tests.kernels import canonical, check, keep, watch

TEXT = """# a comment
SIZE = 4


def double_pointwise(x_ptr, y_ptr, extent):
    at = (block_x() * 32 + thread_x()) * SIZE
    x = load(x_ptr, at, extent - at, 1, 1, SIZE, 0)
    # user.py:3  return x * 2
    store(y_ptr, at, extent - at, x * 2, 1, 1, SIZE)
"""
SOURCE = KernelSource("double_pointwise", TEXT, ("*float32", "*float32", "int64"), 32)


def renamed(text: str) -> KernelSource:
    return attrs.evolve(SOURCE, name="twice", text=text.replace("double_pointwise", "twice"))


def test_names_and_comments_do_not_count() -> None:
    other = TEXT.replace("x_ptr", "input").replace("SIZE", "WIDTH").replace("user.py:3", "user.py:7")
    assert canonical(renamed(other)) == canonical(SOURCE)


def test_everything_else_counts() -> None:
    changes = [("SIZE = 4", "SIZE = 2"), ("x * 2", "x * 3"), ("load(", "load_stream("), ("y_ptr, at", "x_ptr, at")]
    for old, new in changes:
        assert canonical(renamed(TEXT.replace(old, new))) != canonical(SOURCE)
    assert canonical(attrs.evolve(SOURCE, threads=64)) != canonical(SOURCE)
    assert canonical(attrs.evolve(SOURCE, signature=("*float16", "*float16", "int64"))) != canonical(SOURCE)


def failures(tmp_path: Path, source: KernelSource) -> list[str]:
    keep(source, tmp_path)
    keep(attrs.evolve(source, text=source.text + "# moved\n"), tmp_path)
    (path,) = tmp_path.iterdir()
    return check(path)


def test_a_right_kernel_has_no_failures(tmp_path: Path) -> None:
    assert failures(tmp_path, SOURCE) == []


def test_a_kernel_that_spills_is_found(tmp_path: Path) -> None:
    text = TEXT.replace("SIZE = 4", "SIZE = 256").replace("x * 2", "x * 2 + where(tile_max(x) > x, x, exp(x))")
    found = failures(tmp_path, attrs.evolve(SOURCE, text=text, max_registers=32))
    assert [failure.split("\n")[0] for failure in found] == ["sm_80", "sm_90a"]
    assert "bytes spill stores" in found[0]
    assert "# user.py:3" in found[0]


def test_a_kernel_that_does_not_compile_is_found(tmp_path: Path) -> None:
    found = failures(tmp_path, attrs.evolve(SOURCE, text=TEXT.replace("x * 2", "x * unknown")))
    assert ["unknown" in failure for failure in found] == [True]


def test_kernels_that_need_hopper_are_not_assembled_for_older_chips(tmp_path: Path) -> None:
    text = TEXT.replace("block_x()", "(block_x() + cluster_rank())")
    assert failures(tmp_path, attrs.evolve(SOURCE, text=text)) == []


def test_planned_kernels_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @fusedsl.fuse
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    monkeypatch.setattr(Launch, "__init__", Launch.__init__)  # put back afterwards
    watch(tmp_path)
    double.explain(torch.empty(100, device="meta"))
    double.explain(torch.empty(100, device="meta"))
    (path,) = tmp_path.iterdir()
    assert "def double_pointwise(" in path.read_text()
    assert check(path) == []
