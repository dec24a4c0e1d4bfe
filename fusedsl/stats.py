# SPDX-License-Identifier: Apache-2.0
"""Counters of what fusedsl did in this process: how often it traced, planned, compiled and launched."""

from __future__ import annotations

import attrs

from fusedsl.numba_cuda.cache import CACHE


@attrs.define
class Stats:
    """Counts since the start of the process or the last :func:`reset_stats`.

    They are kept without a lock, so that a cached call stays cheap: calls that many threads make at once may be missed.

    Attributes:
        traces: functions traced (a new dtype, rank, static argument or captured value).
        plans: programs planned (a new shape, stride or alignment): about a millisecond each, nothing is compiled.
        compilations: kernels compiled by numba.
        disk_hits: kernels read from the disk cache instead.
        launches: kernels launched on a GPU.
        interpreted: kernels run by the interpreter.
        hits: calls that needed no trace and no plan.
    """

    traces: int = 0
    plans: int = 0
    compilations: int = 0
    disk_hits: int = 0
    launches: int = 0
    interpreted: int = 0
    hits: int = 0


#: The live counters; code that counts adds to its fields. The kernel cache counts compilations and disk hits itself.
COUNTERS = Stats()

_cache_at_reset = attrs.evolve(CACHE.counters)


def stats() -> Stats:
    """A snapshot of the counters.

    Example:
        >>> import fusedsl
        >>> fusedsl.reset_stats()
        >>> fusedsl.stats().compilations
        0
    """
    return attrs.evolve(
        COUNTERS,
        compilations=CACHE.counters.compilations - _cache_at_reset.compilations,
        disk_hits=CACHE.counters.disk_hits - _cache_at_reset.disk_hits,
    )


def reset_stats() -> None:
    """Set every counter to zero."""
    global _cache_at_reset
    _cache_at_reset = attrs.evolve(CACHE.counters)
    for field in attrs.fields(Stats):
        setattr(COUNTERS, field.name, 0)
