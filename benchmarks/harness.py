# SPDX-License-Identifier: Apache-2.0
"""Runs one operation at one shape with every peer: values checked against float64, then timed side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from benchmarks.operations import Operation, Results, Shape
from benchmarks.peers import OURS, Peer
from benchmarks.timing import (
    AHEAD_CYCLES,
    AHEAD_CYCLES_AUTOGRAD,
    L2Flush,
    Timing,
    choose_repeats,
    measure_gpu,
)

#: A contestant's error may be this many times eager's before its values count as wrong.
ERROR_FACTOR = 2.0
#: Roundings of the measured dtype that are always allowed: 16-bit results are rounded once, wider ones are sums. They
#: hold for wider results of 16-bit operations too: torch.compile rounds float32 gradients of batch norm's weights.
HALF_ROUNDINGS = 1.0
WIDE_ROUNDINGS = 16.0


@attrs.frozen
class Entry:
    """One contestant in one case.

    Attributes:
        peer: its name.
        timing: GPU time a call, or None where it did not run.
        gbps: minimal traffic over the median time, in GB/s.
        error: norm of the difference from the float64 result over the norm of that result; of several results the one
            that comes nearest to its limit.
        correct: whether ``error`` is at most ``ERROR_FACTOR`` times eager's (or the roundings that are always allowed).
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
        ran = [e for e in self.entries if e.timing is not None and e.correct and e.peer not in OURS]
        return max(ran, key=lambda e: e.gbps, default=None)

    def ratio(self) -> float:
        """fusedsl's rate over the best peer's; NaN where either is missing."""
        ours, best = self.entry("fusedsl"), self.best_peer()
        return float("nan") if ours is None or best is None else ours.gbps / best.gbps

    def ratio_spread(self) -> float:
        """Interquartile range over median of that ratio, sample by sample as they were taken in turns; NaN without."""
        ours, best = self.entry("fusedsl"), self.best_peer()
        if ours is None or best is None or ours.timing is None or best.timing is None:
            return float("nan")
        pairs = zip(best.timing.samples_us, ours.timing.samples_us, strict=True)
        return relative_spread([theirs / mine for theirs, mine in pairs])


def relative_spread(samples: Sequence[float]) -> float:
    """Interquartile range over median; NaN for fewer than four samples."""
    if len(samples) < 4:
        return float("nan")
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle


def relative_error(actual: Tensor, truth: Tensor) -> float:
    """Norm of ``actual - truth`` over the norm of ``truth``; infinite where anything is not finite."""
    difference = actual.double().sub_(truth)
    error = float(difference.norm() / truth.norm().clamp_min(1e-300))
    return error if error == error else float("inf")


@attrs.frozen
class Expected:
    """What one value of an operation should be.

    Attributes:
        truth: in float64.
        dtype: eager's; float32 will do instead of a 16-bit one.
        limit: the largest relative error that counts as correct.
    """

    truth: Tensor
    dtype: torch.dtype
    limit: float

    def error(self, actual: Tensor) -> float:
        """The relative error.

        Raises:
            ValueError: it has another shape or dtype.
        """
        fits = actual.dtype is self.dtype or (self.dtype.itemsize == 2 and actual.dtype is torch.float32)
        if actual.shape != self.truth.shape or not fits:
            raise ValueError(f"result is {actual.dtype} {tuple(actual.shape)}")
        return relative_error(actual, self.truth)


def expect(operation: Operation, arguments: Sequence[Tensor]) -> list[Expected]:
    """The values of an operation in float64, and how near eager PyTorch comes to them."""
    truths = operation.evaluate(arguments, torch.float64)
    measured = arguments[0].dtype
    floor = (HALF_ROUNDINGS if measured.itemsize == 2 else WIDE_ROUNDINGS) * float(torch.finfo(measured).eps) / 2
    found = []
    for value, truth in zip(operation.evaluate(arguments), truths, strict=True):
        found.append(Expected(truth, value.dtype, max(ERROR_FACTOR * relative_error(value, truth), floor)))
    return found


def judge(expected: Sequence[Expected], values: Sequence[Tensor]) -> tuple[float, bool]:
    """Error and correctness as in :class:`Entry`.

    Raises:
        ValueError: the number of values, a shape or a dtype is another.
    """
    if len(values) != len(expected):
        raise ValueError(f"{len(values)} results instead of {len(expected)}")
    errors = [(e.error(value), e.limit) for e, value in zip(expected, values, strict=True)]
    error, limit = max(errors, key=lambda pair: pair[0] / pair[1])
    return error, error <= limit


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def check_peer(
    peer: Peer, operation: Operation, arguments: Sequence[Tensor], expected: Sequence[Expected]
) -> tuple[Entry, Callable[[], Results] | None]:
    """Prepare one contestant and check its values: its entry, and the call to time where it ran."""
    device = arguments[0].device.type
    own = operation.private(arguments)
    try:
        begin = time.perf_counter()
        call = peer.prepare(operation, own)
        if call is None:
            raise NotImplementedError("no such operation")
        call()
        _synchronize(device)
        prepare_s = time.perf_counter() - begin
        for index in operation.changed:
            own[index].copy_(arguments[index])
        error, correct = judge(expected, operation.values(call(), own))
    except Exception as failure:  # a peer's failure is part of the report
        reason = f"{type(failure).__name__}: {failure}".strip().splitlines()[0][:200]
        _synchronize(device)
        return Entry(peer.name, note=reason), None
    return Entry(peer.name, error=error, correct=correct, prepare_s=prepare_s), call


def run_case(
    operation: Operation,
    shape: Shape,
    dtype: torch.dtype,
    peers: Sequence[Peer],
    flush: L2Flush | None,
    budget_s: float,
) -> Case:
    """Measure ``operation`` at ``shape``.

    Args:
        operation: what to measure.
        shape: rows, columns; or batch, channels, height, width.
        dtype: dtype of all arguments that have none of their own.
        peers: contestants; one that fails gets an entry with the reason.
        flush: evicts the L2 cache; None: check the values on the CPU, time nothing.
        budget_s: GPU seconds to spend a contestant, which sets the number of samples.
    """
    arguments = operation.make_arguments(shape, dtype, "cpu" if flush is None else "cuda")
    expected = expect(operation, arguments)
    calls: dict[str, Callable[[], Results]] = {}
    entries: dict[str, Entry] = {}
    for peer in peers:
        entries[peer.name], call = check_peer(peer, operation, arguments, expected)
        if call is not None:
            calls[peer.name] = call
    del expected
    traffic = operation.traffic_bytes(shape, dtype)
    if calls and flush is not None:
        repeats = choose_repeats(next(iter(calls.values())), budget_s)
        ahead = AHEAD_CYCLES if operation.forward is None else AHEAD_CYCLES_AUTOGRAD
        for name, timing in measure_gpu(calls, flush, repeats, ahead).items():
            entries[name] = attrs.evolve(entries[name], timing=timing, gbps=traffic / timing.median_us / 1e3)
    return Case(operation.name, shape, str(dtype).removeprefix("torch."), traffic, tuple(entries.values()))
