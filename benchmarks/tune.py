# SPDX-License-Identifier: Apache-2.0
"""Times schedulers' kernels with parameters forced by hand: ``python -m benchmarks.tune norms``.

For the authors of heuristics. Every candidate is compiled, checked against float64, and timed beside the others of its
shape; the table is sorted by rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch import Tensor

import fusedsl
from benchmarks.harness import relative_error
from benchmarks.operations import NORMS, POINTWISE, REDUCTIONS, SHAPES, Operation
from benchmarks.timing import L2Flush, measure_copy_gbps, measure_gpu
from fusedsl.host_scalars import compile_host
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.device import properties
from fusedsl.numba_cuda.launch import load
from fusedsl.programs import layout_of
from fusedsl.schedulers import inner_persistent, pointwise, reduction
from fusedsl.schedulers.base import IntArgument, KernelPlan, Layout, Problem, ScalarArgument, TensorArgument
from fusedsl.schedulers.columns import ColumnParams
from fusedsl.schedulers.pointwise import PointwiseParams
from fusedsl.schedulers.row_params import RowParams


def make_problem(operation: Operation, arguments: tuple[Tensor, ...], result: Tensor) -> Problem:
    """The scheduling problem of an operation as one segment."""
    graph = fusedsl.fuse(operation.function).graph(*arguments)
    layouts: dict[int, Layout] = dict(zip(graph.inputs, map(layout_of, arguments), strict=True))
    layouts[graph.outputs[0]] = layout_of(result)
    return Problem(graph, layouts, properties(0))


def make_call(plan: KernelPlan, problem: Problem, arguments: tuple[Tensor, ...], result: Tensor) -> Callable[[], None]:
    """A function that launches a plan on the current stream."""
    graph = problem.graph
    tensors = {**dict(zip(graph.inputs, arguments, strict=True)), graph.outputs[0]: result}
    buffers = [torch.zeros(w.numel, dtype=w.dtype, device="cuda") for w in plan.workspaces]
    launches = []
    for launch in plan.launches:
        kernel = compile_kernel(launch.source, problem.device.arch)
        values: list[Any] = []
        for argument in launch.arguments:
            if isinstance(argument, TensorArgument):
                values.append(tensors[argument.node].data_ptr())
            elif isinstance(argument, IntArgument):
                values.append(argument.value)
            elif isinstance(argument, ScalarArgument):
                values.append(compile_host(graph, [(argument.node, argument.kind)], problem.sizes())(())[0])
            else:
                values.append(buffers[argument.index].data_ptr())
        launches.append((load(kernel, launch.source.signature, 0).bind(launch.geometry), tuple(values), kernel))

    def call() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for launcher, values, _ in launches:
            launcher(stream, values)

    call.kernels = [kernel for _, _, kernel in launches]  # type: ignore[attr-defined]
    return call


def row_candidates(columns: int, base: RowParams) -> Iterator[RowParams]:
    """Rows in registers: block sizes, clusters, rows a block, what is loaded early."""
    for threads, cluster in itertools.product((32, 64, 128, 256, 512), (1, 2, 4, 8, 16)):
        batch, rest = divmod(columns, threads * cluster * base.vector)
        if rest or not 8 <= batch * base.vector <= 128 or (cluster > 1 and (columns < 16384 or threads < 128)):
            continue
        many = batch * base.vector > 32
        if columns >= 65536 and not 32 <= batch * base.vector <= 64:
            continue
        for rows, prefetch in itertools.product((1, 2), (True,) if many else (True, False)):
            if rows == 1 or threads * rows <= 128:
                yield RowParams(threads, rows, base.vector, batch, "register", True, prefetch, cluster=cluster)


def shared_candidates(columns: int, base: RowParams) -> Iterator[RowParams]:
    """Rows in shared memory: block sizes, accesses in flight, clusters."""
    cluster = max(columns // 16384, 1)
    clusters = {cluster, min(2 * cluster, 16)} if columns > 8192 else {1}
    for threads, batch, cluster in itertools.product((128, 256), (1, 2), sorted(clusters)):
        tile = threads * batch * base.vector * cluster
        tiles = -(-columns // tile)
        if tile > columns or tiles * tile // cluster * 2 > 220 << 10:
            continue
        exact = tiles * tile == columns
        for blocks in (None, *(5, 6) * (threads == 256)):
            yield RowParams(threads, 1, base.vector, batch, "shared", exact, cluster=cluster, min_blocks=blocks)


def pointwise_candidates(base: PointwiseParams) -> Iterator[PointwiseParams]:
    """Block sizes and batches."""
    for threads, batch in itertools.product((64, 128, 256), (1, 2, 4)):
        if base.lines == 1 and base.threads == 256:
            yield attrs.evolve(base, threads=threads, batch=batch)
        elif threads <= base.threads:
            for lines in (1, 2, 4):
                if threads * lines >= 64:
                    yield attrs.evolve(base, threads=threads, lines=lines, batch=batch)


def column_candidates(base: ColumnParams) -> Iterator[ColumnParams]:
    """Block shapes and splits."""
    for threads, lines, batch in itertools.product((16, 32), (8, 16), (2, 4, 8)):
        for factor in (0.5, 1, 2):
            yield attrs.evolve(base, threads=threads, lines=lines, batch=batch, split=max(int(base.split * factor), 1))


def candidates(name: str, columns: int, base: Any) -> list[Any]:
    """The parameters to try, the heuristic's own first."""
    found: list[Any]
    if isinstance(base, ColumnParams):
        found = list(column_candidates(base))
    elif isinstance(base, PointwiseParams):
        found = list(pointwise_candidates(base))
    elif base.storage == "register":
        found = [*row_candidates(columns, base), *(shared_candidates(columns, base) if columns >= 4096 else ())]
    elif base.storage == "shared":
        found = [*row_candidates(columns, base), *shared_candidates(columns, base)]
    else:
        found = [
            attrs.evolve(base, threads=t, batch=n, rows=max(r // t, 1), exact=columns % (t * n * base.vector) == 0)
            for t in (32, 64, 128, 256, 512)
            for n in (1, 2, 4)
            for r in (128, 256)
            if base.split == 1
        ]
        if columns <= 16384:
            found += row_candidates(columns, base)
    return list(dict.fromkeys([base, *found]))


#: Cache hints to try on the heuristic's choice: label, spelling, other spelling.
HINTS = (
    ("plain loads", " load_stream(", " load("),
    ("plain loads", "(load_stream(", "(load("),
    ("plain loads", "load_strided_stream(", "load_strided("),
    ("plain stores", "store_stream(", "store("),
    ("plain stores", "store_strided_stream(", "store_strided("),
    ("streamed stores", " store(", " store_stream("),
)


def respell(plan: KernelPlan, old: str, new: str) -> KernelPlan:
    """The plan with one function of its kernel texts replaced."""
    launches = tuple(
        attrs.evolve(run, source=attrs.evolve(run.source, text=run.source.text.replace(old, new)))
        for run in plan.launches
    )
    return attrs.evolve(plan, launches=launches)


def run(operation: Operation, scheduler: Any, shape: tuple[int, int], repeats: int) -> list[dict[str, Any]]:
    """Time every candidate of one operation at one shape."""
    arguments = operation.make_arguments(shape, torch.bfloat16, "cuda")
    truth = operation.function(*(a.double() for a in arguments))
    result = torch.empty_like(truth, dtype=torch.bfloat16)
    problem = make_problem(operation, arguments, result)
    base = scheduler.compute_heuristics(problem)
    calls, rows = {}, []
    seen = set()
    plans = [
        (str(params), scheduler.schedule(problem, params)) for params in candidates(operation.name, shape[1], base)
    ]
    plans += [(f"{label} {plans[0][0]}", respell(plans[0][1], old, new)) for label, old, new in HINTS]
    for params, plan in plans:
        key = tuple(
            (run.geometry, run.source.min_blocks, run.source.text.partition("\n\n")[2], run.arguments)
            for run in plan.launches
        )
        if key in seen:
            continue
        seen.add(key)
        try:
            call = make_call(plan, problem, arguments, result)
            result.fill_(float("nan"))
            call()
            error = relative_error(result, truth)
        except Exception as failure:  # a candidate that does not run is part of the table
            print(params, f"{type(failure).__name__}: {str(failure)[:300]}")
            continue
        kernel = call.kernels[0]  # type: ignore[attr-defined]
        calls[params] = call
        rows.append(
            {
                "params": params,
                "error": error,
                "registers": kernel.registers,
                "spill": kernel.spill_bytes,
                "base": params == str(base),
            }
        )
    timings = measure_gpu(calls, L2Flush(), repeats)
    traffic = operation.traffic_bytes(shape, torch.bfloat16)
    for row in rows:
        row["gbps"] = round(traffic / timings[row["params"]].median_us / 1e3)
    return sorted(rows, key=lambda row: -row["gbps"])


def main() -> None:
    """Tune a suite and print the best candidates of every shape."""
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=("norms", "pointwise", "reductions", "all"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--show", type=int, default=6)
    parser.add_argument("--columns", type=int, nargs="+", help="only shapes with these row lengths")
    parser.add_argument("--ops", nargs="+", help="only these operations")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    suites = {
        "norms": [(op, inner_persistent) for op in NORMS],
        "pointwise": [(op, pointwise) for op in POINTWISE],
        "reductions": [(op, reduction) for op in REDUCTIONS],
    }
    chosen = list(itertools.chain(*suites.values())) if options.suite == "all" else suites[options.suite]
    print("copy", round(measure_copy_gbps(L2Flush())), "GB/s")
    results = {}
    shapes = [shape for shape in SHAPES if not options.columns or shape[1] in options.columns]
    chosen = [(op, scheduler) for op, scheduler in chosen if not options.ops or op.name in options.ops]
    for (operation, scheduler), shape in itertools.product(chosen, shapes):
        rows = run(operation, scheduler, shape, options.repeats)
        results[f"{operation.name} {shape[0]}x{shape[1]}"] = rows
        print(f"\n{operation.name} {shape[0]}x{shape[1]}")
        for row in [*rows[: options.show], *[r for r in rows[options.show :] if r["base"]]]:
            print(
                f"  {row['gbps']:5d} err {row['error']:.1e} regs {row['registers']:3d} spill {row['spill']} "
                f"{'*' if row['base'] else ' '} {row['params']}",
                flush=True,
            )
        torch.cuda.empty_cache()
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
