# SPDX-License-Identifier: Apache-2.0
"""Runs one operation at one shape with every peer: values checked against float64, then timed side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from benchmarks.operations import Operation, Shape
from benchmarks.peers import Peer
from benchmarks.timing import L2Flush, Timing, choose_repeats, measure_gpu

#: A contestant's error may be this many times eager's before its values count as wrong.
ERROR_FACTOR = 2.0


@attrs.frozen
class Entry:
    """One contestant in one case.

    Attributes:
        peer: its name.
        timing: GPU time a call, or None where it did not run.
        gbps: minimal traffic over the median time, in GB/s.
        error: norm of the difference from the float64 result over the norm of that result.
        correct: whether ``error`` is at most ``ERROR_FACTOR`` times eager's (or the rounding of the result's dtype).
        prepare_s: seconds until the first result was there: imports, compilation and autotuning.
        note: why it did not run, or "".
    """

    peer: str
    timing: Timing | None = None
    gbps: float = 0.0
    error: float = 0.0
    correct: bool = False
    prepare_s: float = 0.0
    note: str = ""


@attrs.frozen
class Case:
    """One operation at one shape: the entries of all peers, on the same tensors."""

    operation: str
    shape: Shape
    dtype: str
    traffic_bytes: int
    entries: tuple[Entry, ...]

    def entry(self, peer: str) -> Entry | None:
        """The entry of ``peer``, if it ran."""
        return next((e for e in self.entries if e.peer == peer and e.timing is not None), None)

    def best_peer(self) -> Entry | None:
        """The fastest contestant with right values that is not fusedsl."""
        ran = [e for e in self.entries if e.timing is not None and e.correct and e.peer != "fusedsl"]
        return max(ran, key=lambda e: e.gbps, default=None)


def relative_error(actual: Tensor, truth: Tensor) -> float:
    """Norm of ``actual - truth`` over the norm of ``truth``; infinite where anything is not finite."""
    difference = actual.double().sub_(truth)
    error = float(difference.norm() / truth.norm().clamp_min(1e-300))
    return error if error == error else float("inf")


def _prepare(peer: Peer, operation: Operation, arguments: tuple[Tensor, ...]) -> tuple[Callable[[], Tensor], float]:
    """The peer's call after a first run, and the seconds that took; RuntimeError where it has no such operation."""
    begin = time.perf_counter()
    call = peer.prepare(operation, arguments)
    if call is None:
        raise NotImplementedError("no such operation")
    call()
    torch.cuda.synchronize()
    return call, time.perf_counter() - begin


def run_case(
    operation: Operation,
    shape: Shape,
    dtype: torch.dtype,
    peers: Sequence[Peer],
    flush: L2Flush,
    budget_s: float,
) -> Case:
    """Measure ``operation`` at ``shape``.

    Args:
        operation: what to measure.
        shape: rows, columns.
        dtype: dtype of all arguments.
        peers: contestants; one that fails gets an entry with the reason.
        flush: evicts the L2 cache.
        budget_s: GPU seconds to spend a contestant, which sets the number of samples.
    """
    arguments = operation.make_arguments(shape, dtype, "cuda")
    truth = operation.function(*(a.double() for a in arguments))
    rounding = float(torch.finfo(dtype).eps) / 2
    eager_error = relative_error(operation.function(*arguments), truth)
    calls: dict[str, Callable[[], Tensor]] = {}
    entries: dict[str, Entry] = {}
    for peer in peers:
        try:
            call, prepare_s = _prepare(peer, operation, arguments)
            result = call()
            if result.shape != truth.shape or result.dtype != dtype:
                raise ValueError(f"result is {result.dtype} {tuple(result.shape)}")
            error = relative_error(result, truth)
        except Exception as failure:  # a peer's failure is part of the report
            reason = f"{type(failure).__name__}: {failure}".strip().splitlines()[0][:200]
            entries[peer.name] = Entry(peer.name, note=reason)
            torch.cuda.synchronize()
            continue
        correct = error <= max(ERROR_FACTOR * eager_error, rounding)
        calls[peer.name] = call
        entries[peer.name] = Entry(peer.name, error=error, correct=correct, prepare_s=prepare_s)
    del truth
    traffic = operation.traffic_bytes(shape, dtype)
    if calls:
        repeats = choose_repeats(next(iter(calls.values())), budget_s)
        for name, timing in measure_gpu(calls, flush, repeats).items():
            entries[name] = attrs.evolve(entries[name], timing=timing, gbps=traffic / timing.median_us / 1e3)
    return Case(operation.name, shape, str(dtype).removeprefix("torch."), traffic, tuple(entries.values()))
