# SPDX-License-Identifier: Apache-2.0
"""Suite ``host``: what a call costs the host, how long the first call takes, what the import adds.

First calls and imports run in fresh processes. The host time of cached calls, without and with gradients recorded,
needs a GPU.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import fusedsl
from benchmarks.operations import Shape
from benchmarks.suites import layernorm
from benchmarks.timing import measure_host


def scale_shift(x: Tensor, y: Tensor) -> Tensor:
    """Three pointwise ops, two inputs, one output."""
    return torch.relu(x * 2.0 + y)


def sum_of_eight(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """Seven pointwise ops, eight inputs, one output."""
    return a + b + c + d + e + f + g + h


#: Shape of the tensors: so small that the GPU keeps up with the host.
SMALL = (32, 64)

#: Functions whose gradient is recorded, and the shapes of their arguments.
RECORDED: tuple[tuple[Callable[..., Tensor], Sequence[Shape]], ...] = (
    (scale_shift, [SMALL] * 2),
    (layernorm, [SMALL, SMALL[1:], SMALL[1:]]),
)

#: Host time that a forward call which records a gradient should take at most, in microseconds.
RECORDED_TARGET_US = 20.0

_FIRST_CALL = """
import json, sys, time
import torch
import torch.nn.functional as F
import numba.cuda
begin = time.perf_counter()
import fusedsl
import_s = time.perf_counter() - begin

@fusedsl.fuse
def norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)

device = "cuda" if torch.cuda.is_available() else "cpu"
shape = (4096, 4096) if device == "cuda" else (2, 64)
x = torch.randn(shape, device=device, dtype=torch.bfloat16)
weight = torch.randn(shape[1], device=device, dtype=torch.bfloat16)
synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
(x * 1.0).sum().item()
synchronize()
begin = time.perf_counter()
y = norm(x, weight)
synchronize()
first_s = time.perf_counter() - begin
assert bool(torch.isfinite(y).all())
print(json.dumps({"import_s": import_s, "first_s": first_s, "device": device}))
"""


def _fresh_process(cache_dir: str) -> dict[str, float]:
    """Import time and first-call time in seconds of a new process that uses ``cache_dir``."""
    environment = dict(os.environ, FUSEDSL_CACHE_DIR=cache_dir)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [here, environment.get("PYTHONPATH", "")]))
    with tempfile.NamedTemporaryFile("w", suffix=".py", dir=cache_dir) as script:
        script.write(_FIRST_CALL)
        script.flush()
        done = subprocess.run([sys.executable, script.name], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"first-call process failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure_first_call(repeats: int) -> dict[str, float]:
    """Medians in seconds over fresh processes: cold (empty cache), warm (from the disk cache), import of fusedsl."""
    cold, warm, imports = [], [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache_dir:
            first, second = _fresh_process(cache_dir), _fresh_process(cache_dir)
        cold.append(first["first_s"])
        warm.append(second["first_s"])
        imports += [first["import_s"], second["import_s"]]
    return {
        "first_call_cold_s": statistics.median(cold),
        "first_call_warm_disk_s": statistics.median(warm),
        "import_added_s": statistics.median(imports),
    }


#: {case: {contestant: median microseconds}}
HostTimes = dict[str, dict[str, float]]


def make_calls(
    function: Callable[..., Tensor], shapes: Sequence[Shape], device: str, recorded: bool
) -> dict[str, Callable[[], object]]:
    """Calls of a function on float32 tensors, by contestant; ``recorded``: every tensor requires a gradient."""
    arguments = [torch.randn(shape, device=device, requires_grad=recorded) for shape in shapes]
    contestants: dict[str, Callable[..., Tensor]] = {
        "fusedsl": fusedsl.fuse(function),
        "eager": function,
        "compile": torch.compile(function),
    }
    return {name: functools.partial(f, *arguments) for name, f in contestants.items()}


def measure_calls(cases: Sequence[tuple[Callable[..., Tensor], Sequence[Shape]]], loops: int, rounds: int) -> HostTimes:
    """Median host time of a cached call in microseconds; gradients are recorded where grad mode is on."""
    results: HostTimes = {}
    for function, shapes in cases:
        calls = make_calls(function, shapes, "cuda", torch.is_grad_enabled())
        for call in calls.values():
            for _ in range(10):
                call()
        timings = measure_host(calls, loops, rounds)
        results[function.__name__] = {name: timing.median_us for name, timing in timings.items()}
    return results


def measure_cached_calls(loops: int, rounds: int) -> HostTimes:
    """Calls that record nothing: pointwise functions of two and of eight tensors."""
    with torch.no_grad():
        return measure_calls(((scale_shift, [SMALL] * 2), (sum_of_eight, [SMALL] * 8)), loops, rounds)


def measure_recorded_calls(loops: int, rounds: int) -> HostTimes:
    """Forward calls that record a gradient: a pointwise function of two tensors, and layer norm."""
    with torch.enable_grad():
        return measure_calls(RECORDED, loops, rounds)


def run(quick: bool) -> dict[str, object]:
    """The whole suite, printed as it goes."""
    payload: dict[str, object] = {}
    if torch.cuda.is_available():
        loops, rounds = (200, 5) if quick else (500, 15)
        payload["cached_call_us"] = cached = measure_cached_calls(loops, rounds)
        payload["recorded_call_us"] = recorded = measure_recorded_calls(loops, rounds)
        payload["recorded_call_target_us"] = RECORDED_TARGET_US
        for what, times in (("a cached call", cached), ("a call that records a gradient", recorded)):
            for case, row in times.items():
                print(f"host time of {what}, {case}: " + ", ".join(f"{k} {v:.1f} us" for k, v in row.items()))
        for case, row in recorded.items():
            verdict = "met" if row["fusedsl"] <= RECORDED_TARGET_US else "missed"
            print(f"target of {RECORDED_TARGET_US:.0f} us for {case} with a gradient: {verdict}")
    else:
        print("host time of a cached call: needs an NVIDIA GPU")
    first = measure_first_call(1 if quick else 3)
    for name, seconds in first.items():
        print(f"{name}: {seconds:.3f}")
    return {**payload, **first, "device": "cuda" if torch.cuda.is_available() else "cpu"}
