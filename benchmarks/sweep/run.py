# SPDX-License-Identifier: Apache-2.0
"""Runs a sweep: plans every length, compiles all kernels in parallel, then measures them beside a copy."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import attrs
import torch
from torch import Tensor

import fusedsl
from benchmarks.environment import describe
from benchmarks.harness import expect, judge
from benchmarks.operations import KINDS, Operation, Results, Shape, as_tuple
from benchmarks.report import write_json
from benchmarks.suites import NORMS
from benchmarks.sweep.chart import write_chart
from benchmarks.sweep.lengths import row_lengths, spread_order, thinned
from benchmarks.sweep.strategy import TENSOR_BYTES, Planner, Strategy, matrix_shape
from benchmarks.sweep.verdict import Point, cliffs, report, slow
from benchmarks.timing import Deadline, L2Flush, measure_gpu
from fusedsl.numba_cuda.cache import folder
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.device import properties
from fusedsl.numba_cuda.kernel import KernelSource

OPERATIONS = tuple(one for one in NORMS if one.name in ("layernorm", "rmsnorm", "softmax"))

#: Lengths measured of the dtypes beside bfloat16.
THIN = 60
#: Elements of the first and of the last rows whose values are compared.
CHECKED = 1 << 20
RESERVE_S = 15.0


def operands(operation: Operation, shape: Shape, numbers: Tensor) -> tuple[Tensor, ...]:
    """The arguments at a shape as views of ``numbers``: the matrix, then vectors one after the other, all aligned."""
    found, begin = [], 0
    for kind in operation.arguments:
        sizes = KINDS[kind].shape(shape)
        count = math.prod(sizes)
        if len(sizes) == 2:
            found.append(numbers[:count].view(sizes))
        else:
            found.append(numbers[begin : begin + count])
            begin += -(-count // 64) * 64
    return tuple(found)


def ends(tensor: Tensor, count: int) -> Tensor:
    """The first and the last ``count`` rows of a matrix, all of them if there are no more."""
    return tensor if tensor.shape[0] <= 2 * count else torch.cat([tensor[:count], tensor[-count:]])


def check(operation: Operation, call: Callable[[], Results], arguments: Sequence[Tensor]) -> tuple[float, bool]:
    """Relative error of the first and last rows, and whether it is within the limit of the other suites."""
    count = max(CHECKED // arguments[0].shape[1], 1)
    some = [ends(a, count) if a.dim() == 2 else a for a in arguments]
    return judge(expect(operation, some), [ends(one, count) for one in as_tuple(call())])


def _compile(job: tuple[KernelSource, str]) -> bool:
    try:
        compile_kernel(*job)
    except Exception:  # told when the length is measured
        return False
    return True


def compile_all(sources: Iterable[KernelSource], arch: str, processes: int) -> int:
    """Compile kernels into the disk cache in ``processes`` new processes; the number of them that compiled."""
    jobs = [(source, arch) for source in dict.fromkeys(sources)]
    if processes < 2 or folder() is None or not jobs:
        return 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return sum(pool.map(_compile, jobs, chunksize=4))


@attrs.frozen
class Plan:
    """The sweep of one dtype.

    Attributes:
        dtype: of all tensors.
        lengths: in the order they are measured.
        strategies: by operation and length.
    """

    dtype: torch.dtype
    lengths: tuple[int, ...]
    strategies: dict[tuple[str, int], Strategy] = attrs.field(repr=False)

    @property
    def sources(self) -> list[KernelSource]:
        """All kernels, each once."""
        return list(dict.fromkeys(source for one in self.strategies.values() for source in one.sources))


def make_plan(dtype: torch.dtype, keep: int | None, arch: str | None, nbytes: int = TENSOR_BYTES) -> Plan:
    """The lengths of a dtype, about ``keep`` of them if given, and what is run at each."""
    planners = [Planner(operation, dtype, arch, nbytes) for operation in OPERATIONS]
    lengths = row_lengths([planner.key for planner in planners])
    chosen = spread_order(lengths if keep is None else thinned(lengths, keep))
    strategies = {(p.operation.name, length): p.strategy(length) for p in planners for length in chosen}
    return Plan(dtype, tuple(chosen), strategies)


def measure_length(
    plan: Plan, functions: dict[str, Callable[..., Results]], length: int, numbers: Tensor, flush: L2Flush, repeats: int
) -> list[Point]:
    """All operations at one length, their values checked, timed in turns with a copy of the matrix."""
    shape = matrix_shape(length, plan.dtype, numbers.nbytes)
    calls: dict[str, Callable[[], Results]] = {}
    checks = {}
    for operation in OPERATIONS:
        arguments = operands(operation, shape, numbers)
        function = functions[operation.name]
        call: Callable[[], Results] = lambda f=function, a=arguments: f(*a)  # type: ignore[misc]  # noqa: E731
        try:
            checks[operation.name] = check(operation, call, arguments)
        except Exception as failure:  # the sweep goes on
            print(f"{operation.name} {length} did not run: {type(failure).__name__}: {str(failure)[:200]}", flush=True)
            continue
        calls[operation.name] = call
    matrix = operands(OPERATIONS[0], shape, numbers)[0]
    target = torch.empty_like(matrix)
    timings = measure_gpu({**calls, "copy": lambda: target.copy_(matrix)}, flush, repeats)
    copy_gbps = 2 * matrix.nbytes / timings["copy"].median_us / 1e3
    points = []
    for operation in OPERATIONS:
        if operation.name not in calls:
            continue
        strategy, median_us = plan.strategies[operation.name, length], timings[operation.name].median_us
        gbps = operation.traffic_bytes(shape, plan.dtype) / median_us / 1e3
        error, correct = checks[operation.name]
        point = Point(
            operation=operation.name,
            dtype=str(plan.dtype).removeprefix("torch."),
            length=length,
            rows=shape[0],
            strategy=strategy.label,
            params=strategy.params,
            median_us=median_us,
            gbps=gbps,
            copy_gbps=copy_gbps,
            error=error,
            correct=correct,
        )
        points.append(point)
    return points


def make_numbers(dtype: torch.dtype) -> Tensor:
    """Random numbers that every matrix of the sweep is a view of."""
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(TENSOR_BYTES // dtype.itemsize, dtype=dtype, device="cuda", generator=generator)


def write(out: Path, points: Sequence[Point], left_out: int) -> None:
    """Print the verdict; write ``sweep.json`` and ``sweep.png``."""
    environment = describe()
    print(f"\nsweep: {len(points)} points, {environment['gpu']}")
    print(report(points), flush=True)
    payload: dict[str, object] = {
        "tensor_bytes": TENSOR_BYTES,
        "left_out": left_out,
        "cliffs": [attrs.asdict(cliff) for cliff in cliffs(points)],
        "slow": [[p.operation, p.dtype, p.length, p.of_copy] for p in slow(points)],
        "points": [attrs.asdict(point) for point in points],
    }
    write_json(out / "sweep.json", "sweep", environment, payload)
    write_chart(out / "sweep.png", f"sweep, {environment['gpu']}", points)


def run(out: Path, quick: bool, deadline: Deadline) -> None:
    """The whole suite.

    Args:
        out: folder for the results.
        quick: few lengths and samples.
        deadline: when to start no other length.
    """
    begin = time.perf_counter()
    arch = properties(torch.cuda.current_device()).arch
    keeps = {
        torch.bfloat16: 24 if quick else None,
        torch.float16: 8 if quick else THIN,
        torch.float32: 8 if quick else THIN,
    }
    plans = [make_plan(dtype, keep, arch) for dtype, keep in keeps.items()]
    sources = [source for plan in plans for source in plan.sources]
    compiled = compile_all(sources, arch, min(len(os.sched_getaffinity(0)), 16))
    print(
        f"sweep: {compiled} kernels of {len(set(sources))} compiled after {time.perf_counter() - begin:.0f} s",
        flush=True,
    )
    functions: dict[str, Callable[..., Results]] = {
        one.name: fusedsl.fuse(one.function, fallback="error") for one in OPERATIONS
    }
    flush, points, left_out = L2Flush(), [], 0
    for plan in plans:
        numbers = make_numbers(plan.dtype)
        for place, length in enumerate(plan.lengths):
            if deadline.passed(RESERVE_S):
                left_out += len(plan.lengths) - place
                break
            points += measure_length(plan, functions, length, numbers, flush, 5 if quick else 20)
    write(out, points, left_out)
    print(f"({time.perf_counter() - begin:.0f} s" + (f"; {left_out} lengths left out, no time)" if left_out else ")"))
