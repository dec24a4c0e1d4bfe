# SPDX-License-Identifier: Apache-2.0
"""Missing barriers, idle threads, blocks that wait for each other, and Python threads that compile at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from fusedsl.config import config
from tests.faults.programs import run_python
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def norm_then_softmax(x: Tensor) -> Tensor:
    return torch.softmax(F.layer_norm(x, (x.shape[-1],), None, None, 1e-5), -1)


@pytest.mark.parametrize(
    "columns", [33, 257, pytest.param(1024, marks=pytest.mark.gpu), pytest.param(4096, marks=pytest.mark.gpu)]
)
def test_four_dependent_block_reductions(device: str, columns: int) -> None:
    if device == "cpu" and columns > 300:
        pytest.skip("long rows are for the GPU")
    x = torch.randn(64 if device == "cuda" else 2, columns, device=device)
    first = assert_matches_eager(norm_then_softmax, x)
    for _ in range(200 if device == "cuda" else 2):
        assert torch.equal(norm_then_softmax(x), first)


@pytest.mark.parametrize(("rows", "columns"), [(4, 5), (1, 1), (3, 2), (7, 31)])
def test_threads_without_work_leave_the_result_alone(device: str, rows: int, columns: int) -> None:
    def row_sum(x: Tensor) -> Tensor:
        return x.sum(-1)

    fused, x = fusedsl.fuse(row_sum), torch.ones(rows, columns, device=device)
    expected = torch.full((rows,), float(columns), device=device)
    for _ in range(1000 if device == "cuda" else 2):
        assert torch.equal(fused(x), expected)


_TWO_STREAMS = """
import torch, fusedsl

@fusedsl.fuse
def total(x):
    return x.sum()

x = torch.ones(2**26, device="cuda")
total(x)
torch.cuda.synchronize()
busy, one, two = (torch.cuda.Stream() for _ in range(3))
with torch.cuda.stream(busy):
    torch.cuda._sleep(2_000_000_000)
results = []
for _ in range(10):
    for stream in (one, two):
        with torch.cuda.stream(stream):
            results.append(total(x))
torch.cuda.synchronize()
assert all(float(r) == 2.0**26 for r in results), results
"""


@pytest.mark.gpu
def test_full_reductions_on_busy_streams_finish(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(_TWO_STREAMS)
    run_python(str(path))


def make_function(kind: int) -> Callable[[Tensor], Tensor]:
    """A new function object for each test round; ``kind`` is captured."""

    def function(x: Tensor) -> Tensor:
        return x * kind + 1.0

    return function


@pytest.mark.parametrize("mixed", [False, True])
def test_many_threads_make_the_first_call(device: str, mixed: bool) -> None:
    fused = fusedsl.fuse(make_function(3))
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.float64] if mixed else [torch.float32]
    count = 8
    barrier = threading.Barrier(count)
    results: dict[int, Tensor] = {}
    failures: list[BaseException] = []

    def work(index: int) -> None:
        x = torch.full((4, 32), float(index), device=device, dtype=dtypes[index % len(dtypes)])
        barrier.wait()
        try:
            results[index] = fused(x)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not failures
    assert len(results) == count
    for index, y in results.items():
        assert y.dtype == dtypes[index % len(dtypes)]
        assert bool((y == 3.0 * index + 1).all())


def fresh_process(report: SimpleQueue[str]) -> None:
    """Eight threads make the first calls of this process: run on the CPU, and compile for two dtypes."""
    config.disable_cache = True
    fused = fusedsl.fuse(make_function(2))
    barrier = threading.Barrier(8)
    wrong: list[str] = []

    def work(index: int) -> None:
        dtype = (torch.float32, torch.bfloat16)[index % 2]
        barrier.wait()
        try:
            for kernel in fused.compile(torch.empty(8, 64, dtype=dtype, device="meta"), arch="sm_90a"):
                assert kernel.cubin
            x = torch.full((2, 8), float(index), dtype=dtype)
            assert bool((fused(x) == 2.0 * index + 1).all()), "wrong values"
        except BaseException as failure:
            wrong.append(repr(failure))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    compilations = fusedsl.stats().compilations
    report.put("\n".join(wrong) or f"{compilations} compilations")


def test_many_threads_make_the_first_call_of_many_processes() -> None:
    """Processes in which nothing has been compiled, traced or interpreted; two at a time."""
    pytest.importorskip("greenlet")
    processes = get_context("forkserver")
    processes.set_forkserver_preload(["fusedsl"])
    report = processes.SimpleQueue()
    reports = []
    for _ in range(10):
        pair = [processes.Process(target=fresh_process, args=(report,)) for _ in range(2)]
        for process in pair:
            process.start()
        reports += [report.get() for _ in pair]
        for process in pair:
            process.join(60)
    assert reports == ["2 compilations"] * 20
