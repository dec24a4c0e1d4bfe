# SPDX-License-Identifier: Apache-2.0
"""Suite ``host``: what a call costs the host, how long the first call takes, what the import adds.

First calls and imports run in fresh processes. The host time of a cached call needs a GPU.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile

import torch
from torch import Tensor

import fusedsl
from benchmarks.timing import measure_host


def scale_shift(x: Tensor, y: Tensor) -> Tensor:
    """Three pointwise ops, two inputs, one output."""
    return torch.relu(x * 2.0 + y)


def sum_of_eight(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """Seven pointwise ops, eight inputs, one output."""
    return a + b + c + d + e + f + g + h


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


def measure_cached_calls(loops: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median host time of a call in microseconds: {case: {contestant: us}}, on (32, 64) float32 tensors."""
    results: dict[str, dict[str, float]] = {}
    for function, count in ((scale_shift, 2), (sum_of_eight, 8)):
        arguments = [torch.randn(32, 64, device="cuda") for _ in range(count)]
        contestants = {"fusedsl": fusedsl.fuse(function), "eager": function, "compile": torch.compile(function)}
        calls = {name: functools.partial(f, *arguments) for name, f in contestants.items()}
        for call in calls.values():
            for _ in range(10):
                call()
        timings = measure_host(calls, loops, rounds)
        results[function.__name__] = {name: timing.median_us for name, timing in timings.items()}
    return results


def run(quick: bool) -> dict[str, object]:
    """The whole suite, printed as it goes."""
    payload: dict[str, object] = {}
    if torch.cuda.is_available():
        cached = measure_cached_calls(200 if quick else 500, 5 if quick else 15)
        for case, row in cached.items():
            print(f"host time of a cached call, {case}: " + ", ".join(f"{k} {v:.1f} us" for k, v in row.items()))
        payload["cached_call_us"] = cached
    else:
        print("host time of a cached call: needs an NVIDIA GPU")
    first = measure_first_call(1 if quick else 3)
    for name, seconds in first.items():
        print(f"{name}: {seconds:.3f}")
    return {**payload, **first, "device": "cuda" if torch.cuda.is_available() else "cpu"}
