# SPDX-License-Identifier: Apache-2.0
"""Times GPU calls: interleaved contestants, a flushed L2 cache before every call, CUDA events, medians.

A sample is the GPU time between two events around one call. Before each sample a sleeping kernel and the flush are
queued, so that the host is ahead of the GPU and its own time (launch overhead) stays out of the sample.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import attrs
import torch

Call = Callable[[], object]

#: Cycles the GPU sleeps before a sample: about 0.1 ms, longer than any contestant's host time of a forward call.
AHEAD_CYCLES = 200_000
#: The same for calls that go through autograd's engine, which wakes a thread: about 0.5 ms.
AHEAD_CYCLES_AUTOGRAD = 1_000_000


@attrs.frozen
class Timing:
    """Samples of one contestant, in microseconds.

    Attributes:
        median_us: median.
        low_us: 20th percentile.
        high_us: 80th percentile.
        samples: how many calls were timed.
        samples_us: each of them, in the order they were taken; not written to files.
    """

    median_us: float
    low_us: float
    high_us: float
    samples: int
    samples_us: tuple[float, ...] = attrs.field(default=(), repr=False)

    @classmethod
    def of(cls, samples_us: list[float]) -> Timing:
        """Summarise samples given in microseconds."""
        ordered = sorted(samples_us)
        last = len(ordered) - 1
        low, high = ordered[round(0.2 * last)], ordered[round(0.8 * last)]
        return cls(statistics.median(ordered), low, high, len(ordered), tuple(samples_us))


class Deadline:
    """When to start nothing new.

    Args:
        budget_s: seconds from now; None: no limit.
    """

    def __init__(self, budget_s: float | None) -> None:
        self._end = None if budget_s is None else time.perf_counter() + budget_s

    def passed(self, reserve_s: float = 0.0) -> bool:
        """Whether less than ``reserve_s`` seconds are left."""
        return self._end is not None and time.perf_counter() + reserve_s >= self._end


class L2Flush:
    """Evicts the L2 cache by writing a buffer several times its size (at least 256 MiB)."""

    def __init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._buffer = torch.empty(max(256 << 20, 4 * l2_bytes), dtype=torch.int8, device="cuda")

    def __call__(self) -> None:
        self._buffer.zero_()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def measure_gpu(
    calls: Mapping[str, Call], flush: L2Flush, repeats: int, ahead_cycles: int = AHEAD_CYCLES
) -> dict[str, Timing]:
    """Time every call ``repeats`` times, taking turns; the order rotates, so that no one is always first.

    Args:
        calls: contestant -> function without arguments; each must have run before (compiled).
        flush: evicts the L2 cache.
        repeats: samples a contestant.
        ahead_cycles: how long the GPU sleeps before a sample, so that the host is ahead of it.

    Returns:
        contestant -> its timing.
    """
    names = list(calls)
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
    torch.cuda.synchronize()
    for turn in range(repeats):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            start, stop = _event(), _event()
            torch.cuda._sleep(ahead_cycles)  # type: ignore[no-untyped-call]
            flush()
            start.record()
            calls[name]()
            stop.record()
            events[name].append((start, stop))
    torch.cuda.synchronize()
    return {
        name: Timing.of([start.elapsed_time(stop) * 1e3 for start, stop in pairs]) for name, pairs in events.items()
    }


def choose_repeats(call: Call, budget_s: float, low: int = 20, high: int = 50) -> int:
    """Repeats that fit into ``budget_s`` of GPU time for this call, between ``low`` and ``high``."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return min(high, max(low, int(budget_s / max(time.perf_counter() - begin, 1e-6))))


def measure_copy_gbps(flush: L2Flush, megabytes: int = 512, repeats: int = 30) -> float:
    """Rate of ``Tensor.copy_`` on this GPU in GB/s: bytes read and written over the median time.

    Args:
        flush: evicts the L2 cache.
        megabytes: size of the source in MiB; as much is written.
        repeats: samples.
    """
    source = torch.zeros(megabytes << 19, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    timing = measure_gpu({"copy": lambda: target.copy_(source)}, flush, repeats)["copy"]
    return 2 * source.nbytes / timing.median_us / 1e3


def measure_host(calls: Mapping[str, Call], loops: int, rounds: int) -> dict[str, Timing]:
    """Host time of one call in microseconds: ``loops`` calls in a row without synchronising, over ``rounds`` rounds.

    The GPU must need less time a call than the host, otherwise the launch queue fills and the GPU is what is measured.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(loops):
                call()
            samples[name].append((time.perf_counter() - begin) / loops * 1e6)
    torch.cuda.synchronize()
    return {name: Timing.of(values) for name, values in samples.items()}
