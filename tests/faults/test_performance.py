# SPDX-License-Identifier: Apache-2.0
"""Overhead, cliffs between neighbouring sizes, torch.compile around a fused function, and machines with no GPU."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from benchmarks.timing import L2Flush, measure_gpu, measure_host
from tests.faults.programs import run_python


@fusedsl.fuse
def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), None, None, 1e-5)


@fusedsl.fuse
def three_ops(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * 2.0 + y)


@pytest.mark.gpu
@pytest.mark.perf
def test_host_time_of_a_cached_call_is_that_of_one_eager_op() -> None:
    x, y = torch.randn(32, 64, device="cuda"), torch.randn(32, 64, device="cuda")
    calls = {"fusedsl": lambda: three_ops(x, y), "eager": lambda: three_ops.reference(x, y)}
    for call in calls.values():
        for _ in range(10):
            call()
    timings = measure_host(calls, 500, 9)
    assert timings["fusedsl"].median_us <= 10.0
    assert timings["fusedsl"].median_us <= timings["eager"].median_us


@pytest.mark.gpu
@pytest.mark.perf
def test_no_cliff_between_neighbouring_row_lengths() -> None:
    flush, rates = L2Flush(), []
    for columns in range(1024, 32769, 1024):
        x = torch.randn(2**27 // columns, columns, device="cuda", dtype=torch.bfloat16)
        calls = {"fusedsl": lambda x=x: layer_norm(x), "eager": lambda x=x: layer_norm.reference(x)}
        for call in calls.values():
            call()
        timings = measure_gpu(calls, flush, 10)
        assert timings["fusedsl"].median_us <= 1.05 * timings["eager"].median_us, f"slower than eager at {columns}"
        rates.append(2 * x.nbytes / timings["fusedsl"].median_us)
    drops = [after / before for before, after in itertools.pairwise(rates)]
    assert min(drops) > 0.75, f"row length {1024 * (drops.index(min(drops)) + 2)}"


@pytest.mark.parametrize("columns", [1024, 8192, 15360, 16384, 16385, 32768])
def test_no_spills_over_a_range_of_row_lengths(columns: int) -> None:
    for kernel in layer_norm.compile(torch.empty(64, columns, dtype=torch.bfloat16, device="meta"), arch="sm_90a"):
        assert kernel.spill_bytes == 0


def test_fused_function_inside_torch_compile(device: str) -> None:
    """A graph break is allowed, a wrong value or an error is not."""

    def outer(x: Tensor) -> Tensor:
        return layer_norm(x) * 2

    compiled = torch.compile(outer, backend="eager")
    for rows in (2, 3):
        x = torch.randn(rows, 32, device=device)
        torch.testing.assert_close(compiled(x), layer_norm.reference(x) * 2)


_NO_GPU = """
import torch, fusedsl
assert not torch.cuda.is_available()

@fusedsl.fuse
def f(x):
    return torch.softmax(x, -1)

x = torch.randn(2, 33)
assert torch.allclose(f(x), torch.softmax(x, -1))
print("fine")
"""


def test_import_and_run_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(_NO_GPU)
    assert "fine" in run_python(str(path), CUDA_VISIBLE_DEVICES="")
