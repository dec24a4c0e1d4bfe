# SPDX-License-Identifier: Apache-2.0
"""Times schedulers' kernels with parameters forced by hand: ``python -m benchmarks.tune norms``.

For the authors of heuristics. Every candidate is compiled, checked against float64, and timed beside the others of its
shape (all its kernels, and the allocation of its results); the table is sorted by rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.environment import describe
from benchmarks.harness import judge
from benchmarks.operations import Operation, Shape
from benchmarks.suites import BATCHNORM, IMAGES, NORMS, NORMS_BACKWARD, POINTWISE, REDUCTIONS, SHAPES
from benchmarks.timing import Deadline, L2Flush, measure_copy_gbps, measure_gpu
from benchmarks.tuning.candidates import HINTS, candidates, respell
from benchmarks.tuning.subject import NotOneSegment, Subject, make_subject
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.schedulers import inner_outer_persistent, inner_persistent, outer_persistent, pointwise, reduction
from fusedsl.schedulers.base import KernelPlan

SUITES: dict[str, list[tuple[Operation, ModuleType]]] = {
    "norms": [(op, inner_persistent) for op in NORMS],
    "pointwise": [(op, pointwise) for op in POINTWISE],
    "reductions": [(op, reduction) for op in REDUCTIONS],
    "norms_backward": [
        (op, inner_outer_persistent if len(op.wanted) > 1 else inner_persistent) for op in NORMS_BACKWARD
    ],
    "batchnorm": [(op, outer_persistent) for op in BATCHNORM],
}


def plans(subject: Subject, scheduler: ModuleType, shape: Shape) -> list[tuple[str, KernelPlan]]:
    """What is tried, each text once: label and plan, the heuristic's own choice first."""
    problem = subject.problem
    found = [
        (str(params), scheduler.schedule(problem, params))
        for params in candidates(shape[1], subject.base, shape[0], problem.device)
    ]
    found += [(f"{label} {found[0][0]}", respell(found[0][1], old, new)) for label, old, new in HINTS]
    different: dict[object, tuple[str, KernelPlan]] = {}
    for label, plan in found:
        key = tuple(
            (run.geometry, run.source.min_blocks, run.source.text.partition("\n\n")[2], run.arguments)
            for run in plan.launches
        )
        different.setdefault(key, (label, plan))
    return list(different.values())


def check(subject: Subject, label: str, plan: KernelPlan) -> tuple[dict[str, Any], Callable[[], Sequence[Tensor]]]:
    """One row of the table without its time, and the call to time."""
    call = subject.call(plan)
    for output in call():  # the next call gets this memory: elements it leaves alone are found
        output.fill_(float("nan"))
    del output
    error, correct = judge(subject.expected, subject.values(call()))
    row = {"params": label, "error": error, "correct": correct, "base": label == str(subject.base)}
    if subject.tensors[0].device.type == "cuda":
        kernels = [compile_kernel(launch.source, subject.program.device.arch) for launch in plan.launches]
        row |= {"registers": kernels[0].registers, "spill": kernels[0].spill_bytes}
    return row, call


def run(
    operation: Operation, scheduler: ModuleType, shape: Shape, repeats: int, deadline: Deadline
) -> list[dict[str, Any]]:
    """Time every candidate of one operation at one shape; candidates that no time is left for are not compiled."""
    try:
        subject = make_subject(operation, scheduler, shape, torch.bfloat16, "cuda")
    except NotOneSegment as refusal:
        print(f"\n{operation.name} {'x'.join(map(str, shape))}: {refusal}")
        return []
    calls, rows = {}, []
    for label, plan in plans(subject, scheduler, shape):
        if deadline.passed(10.0):
            break
        try:
            row, calls[label] = check(subject, label, plan)
        except Exception as failure:  # a candidate that does not run is part of the table
            print(label, f"{type(failure).__name__}: {str(failure)[:300]}")
            continue
        rows.append(row)
    timings = measure_gpu(calls, L2Flush(), repeats) if calls else {}
    for row in rows:
        row["gbps"] = round(subject.traffic_bytes / timings[row["params"]].median_us / 1e3)
    return sorted(rows, key=lambda row: -row["gbps"])


def show(title: str, rows: Sequence[dict[str, Any]], count: int) -> None:
    """Print the ``count`` best candidates and the heuristic's."""
    print(f"\n{title}")
    for row in [*rows[:count], *[r for r in rows[count:] if r["base"]]]:
        print(
            f"  {row['gbps']:5d} err {row['error']:.1e}{' ' if row['correct'] else '!'} regs {row['registers']:3d} "
            f"spill {row['spill']} {'*' if row['base'] else ' '} {row['params']}",
            flush=True,
        )


def main() -> None:
    """Tune a suite and print the best candidates of every shape."""
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=(*SUITES, "all"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--show", type=int, default=6)
    parser.add_argument("--columns", type=int, nargs="+", help="only shapes with these row lengths (images: channels)")
    parser.add_argument("--ops", nargs="+", help="only these operations")
    parser.add_argument("--out", default="")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="try no other candidate after this time")
    options = parser.parse_args()
    deadline = Deadline(options.budget)
    chosen = list(itertools.chain(*SUITES.values())) if options.suite == "all" else SUITES[options.suite]
    chosen = [(op, scheduler) for op, scheduler in chosen if not options.ops or op.name in options.ops]
    images = {operation.name for operation in BATCHNORM}
    runs = [
        (operation, scheduler, shape)
        for operation, scheduler in chosen
        for shape in (IMAGES if operation.name in images else SHAPES)
        if not options.columns or shape[1] in options.columns
    ]
    copy_gbps = measure_copy_gbps(L2Flush())
    print("copy", round(copy_gbps), "GB/s")
    results: dict[str, Any] = {"environment": describe(), "copy_gbps": copy_gbps}
    with torch.no_grad():
        for operation, scheduler, shape in runs:
            title = f"{operation.name} {'x'.join(map(str, shape))}"
            if deadline.passed(10.0):
                print(f"{title}: no time left")
                continue
            rows = run(operation, scheduler, shape, options.repeats, deadline)
            if rows:
                results[title] = rows
                show(title, rows, options.show)
            torch.cuda.empty_cache()
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
