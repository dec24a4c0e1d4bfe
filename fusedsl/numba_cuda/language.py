# SPDX-License-Identifier: Apache-2.0
"""The table of names that kernel text may use, with their GPU meaning."""

from __future__ import annotations

from fusedsl.numba_cuda.dtypes import DTYPES
from fusedsl.numba_cuda.intrinsics import (
    across,
    async_copy,
    atomic,
    barrier,
    cluster,
    convert,
    fast_math,
    gather,
    grid,
    index,
    math,
    mbarrier,
    memory,
    random,
    reduce,
    shared,
    shuffle,
)

_FAMILIES = (
    index,
    memory,
    across,
    gather,
    convert,
    math,
    fast_math,
    reduce,
    shuffle,
    shared,
    barrier,
    atomic,
    random,
    async_copy,
    mbarrier,
    cluster,
    grid,
)

#: Name in kernel text -> dtype marker or kernel function.
NAMES: dict[str, object] = {
    **DTYPES,
    **{function.__name__: function for family in _FAMILIES for function in family.FUNCTIONS},
}
