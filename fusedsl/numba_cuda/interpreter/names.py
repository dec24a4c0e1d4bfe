# SPDX-License-Identifier: Apache-2.0
"""The kernel language on the CPU: every name that kernel text may use."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from fusedsl.numba_cuda.dtypes import DTYPES
from fusedsl.numba_cuda.interpreter import (
    async_copy,
    cluster,
    convert,
    elementwise,
    index,
    mbarrier,
    memory,
    random,
    reduce,
    shared,
)

_FUNCTIONS: tuple[tuple[ModuleType, str], ...] = (
    (index, "thread_x thread_y thread_z block_x block_y block_z grid_x grid_y grid_z lane warp"),
    (index, "udiv umod udiv32 umod32"),
    (memory, "load store load_strided store_strided load_across gather scatter fence_gpu atomic_add"),
    (convert, "iota full cast recast bitcast chunk_mask repeat spread join take"),
    (elementwise, "abs_ sign floor ceil trunc round_ sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p"),
    (elementwise, "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma"),
    (elementwise, "isnan isinf isfinite signbit maximum minimum fmax fmin pow_ fmod remainder atan2 hypot copysign"),
    (elementwise, "nextafter fma"),
    (elementwise, "fast_exp fast_exp2 fast_log fast_log2 fast_reciprocal fast_rsqrt fast_tanh fast_erf fast_divide"),
    (reduce, "tile_sum tile_prod tile_max tile_min tile_any tile_all tile_argmax tile_argmin"),
    (reduce, "fold_sum fold_prod fold_max fold_min fold_any fold_all fold_argmax fold_argmin add_rows"),
    (reduce, "warp_sum warp_prod warp_max warp_min warp_any warp_all warp_argmax warp_argmin"),
    (reduce, "shuffle_xor shuffle_down shuffle_index"),
    (random, "random_uniform"),
    (shared, "shared dynamic_shared shared_load shared_store shared_load_tile shared_store_tile barrier warp_barrier"),
    (async_copy, "async_copy async_copy_strided async_commit async_wait"),
    (async_copy, "bulk_load bulk_store bulk_commit bulk_wait async_fence"),
    (mbarrier, "mbarriers mbarrier_init mbarrier_fence mbarrier_arrive mbarrier_expect mbarrier_wait"),
    (cluster, "cluster_rank cluster_size cluster_arrive cluster_arrive_relaxed cluster_wait"),
    (cluster, "remote_store remote_load remote_store_async named_barrier grid_barrier"),
)

#: Kernel-language name -> what the interpreter runs.
NAMES: dict[str, Any] = {
    **DTYPES,
    **{name: getattr(module, name) for module, names in _FUNCTIONS for name in names.split()},
    "where": convert.select,
    "load_stream": memory.load,
    "load_strided_stream": memory.load_strided,
    "store_stream": memory.store,
    "store_strided_stream": memory.store_strided,
}
