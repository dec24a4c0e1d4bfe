# SPDX-License-Identifier: Apache-2.0
"""Names in kernel text: those of a user's variables, kept clear of what the text itself needs."""

from __future__ import annotations

import keyword
import re

from fusedsl.graph.graph import Graph

#: What a local name must not hide, besides Python's keywords: names of the kernel language, which are looked up in the
#: text's globals, and names of the lines that schedulers write.
_RESERVED = """
    boolean int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64
    range min max INF NAN
    thread_x thread_y thread_z block_x block_y block_z grid_x grid_y grid_z lane warp
    udiv umod udiv32 umod32
    load load_stream store store_stream load_strided load_strided_stream store_strided store_strided_stream
    load_across chunk_mask repeat spread join take gather scatter iota full random_uniform cast bitcast where
    maximum minimum fmax fmin abs_ sign floor ceil trunc round_ sqrt rsqrt reciprocal
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
    erf erfc erfinv lgamma digamma pow_ fmod remainder atan2 hypot copysign nextafter isnan isinf isfinite signbit fma
    barrier shared dynamic_shared shared_load shared_store warp_barrier fence_gpu atomic_add
    row col rows limit valid live begin end start share parts part kept place slot line block outer stop column_blocks
    columns back half line cell other grid_barrier turn ahead more room
    add_rows chunk chunks whole inside own places stay coming there first copied
    head right edge edges rest
"""
_WORDS = frozenset(_RESERVED.split())
_PREFIXES = (
    "async_",
    "bulk_",
    "cluster_",
    "mbarrier",
    "remote_",
    "fold_",
    "tile_",
    "warp_",
    "shuffle_",
    "fast_",
)


def local_name(wanted: str, taken: set[str]) -> str:
    """A local name close to ``wanted`` that hides nothing and is not in ``taken``."""
    base = re.sub(r"\W", "_", wanted).strip("_") or "value"
    if base[0].isdigit():
        base = f"v{base}"
    if keyword.iskeyword(base) or base in _WORDS or base.startswith(_PREFIXES):
        base += "_"
    if re.fullmatch(r"[EDi][\d_]+|rest\d+|[A-Z_]+\d*", base):
        base = base.lower() + "_"
    candidate, count = base, 1
    while candidate in taken:
        candidate, count = f"{base}_{count}", count + 1
    return candidate


def kernel_name(graph: Graph, suffix: str) -> str:
    """The name profilers show: the user's function (ASCII letters, digits and underscores only) and the scheduler."""
    return f"{re.sub('[^A-Za-z0-9_]', '_', graph.name)}_{suffix}"
