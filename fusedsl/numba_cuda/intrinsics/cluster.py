# SPDX-License-Identifier: Apache-2.0
"""Blocks of a cluster: its barrier, and access to each other's shared memory (PTX ISA ``barrier.cluster``, ``mapa``,
``ld.shared::cluster``, ``st.shared::cluster``, ``st.async``; sm_90).

A block must not end while another may still touch its shared memory: it waits on an mbarrier for all that is sent
to it, or ends with a cluster barrier.
"""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import asm, operand, tile_words
from fusedsl.numba_cuda.intrinsics.access import braces
from fusedsl.numba_cuda.intrinsics.barrier import statement
from fusedsl.numba_cuda.intrinsics.mbarrier import check_mbarriers, mbarrier_address
from fusedsl.numba_cuda.intrinsics.shared import (
    SharedChunks,
    check_array,
    check_int,
    contiguous,
    narrow,
    shared_address,
)
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function, literal
from fusedsl.numba_cuda.tile import I32, I64, TileType


def _special_register(name: str) -> Typed:
    def emit(builder: ir.IRBuilder, _: list[ir.Value]) -> ir.Value:
        return builder.zext(asm(builder, I32, f"mov.u32 $0, %{name};", "=r", []), I64)

    return types.int64, emit


@kernel_function
def cluster_rank() -> Typed:
    """Index of the block in its cluster (``%cluster_ctarank``)."""
    return _special_register("cluster_ctarank")


@kernel_function
def cluster_size() -> Typed:
    """Blocks of the cluster (``%cluster_nctarank``)."""
    return _special_register("cluster_nctarank")


@kernel_function
def cluster_arrive() -> Typed:
    """First half of the cluster barrier: every thread of every block; what it wrote before is visible after the others'
    `cluster_wait` (``barrier.cluster.arrive.release.aligned``)."""
    return types.none, statement("barrier.cluster.arrive.release.aligned;", convergent=True)


@kernel_function
def cluster_arrive_relaxed() -> Typed:
    """`cluster_arrive` that orders nothing but fenced `mbarrier_init` (``barrier.cluster.arrive.relaxed.aligned``): the
    other one waits until all the thread's loads and stores are over."""
    return types.none, statement("barrier.cluster.arrive.relaxed.aligned;", convergent=True)


@kernel_function
def cluster_wait() -> Typed:
    """Second half of the cluster barrier: wait until all threads of the cluster have arrived
    (``barrier.cluster.wait.acquire.aligned``)."""
    return types.none, statement("barrier.cluster.wait.acquire.aligned;", convergent=True)


def _map(builder: ir.IRBuilder, address: ir.Value, rank: ir.Value) -> ir.Value:
    """The cluster address of a shared address in another block (``mapa.shared::cluster.u32``)."""
    return asm(builder, I32, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", [address, rank])


@kernel_function
def remote_store(s: types.Type, index: types.Type, tile: types.Type, rank: types.Type) -> Typed:
    """`shared_store` into the same array of block ``rank`` of the cluster (``st.shared::cluster``); visible there after
    a cluster barrier."""
    chunks = contiguous("remote_store", s, tile)
    check_int("index", index)
    check_int("rank", rank)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        address = shared_address(builder, args[0], args[1], chunks.dtype.itemsize)
        value = operand(builder, tile, args[2], chunks.dtype, chunks.tile.n)
        chunks.store(builder, "st.shared::cluster", _map(builder, address, narrow(builder, args[3])), value)

    return types.none, emit


@kernel_function
def remote_load(s: types.Type, index: types.Type, n: types.Type, rank: types.Type) -> Typed:
    """`shared_load` from the same array of block ``rank`` of the cluster (``ld.shared::cluster``)."""
    chunks = SharedChunks(check_array(s), 1, 0, literal(n, "n"))
    check_int("index", index)
    check_int("rank", rank)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        address = shared_address(builder, args[0], args[1], chunks.dtype.itemsize)
        return chunks.load(builder, "ld.shared::cluster", _map(builder, address, narrow(builder, args[3])))

    return chunks.tile, emit


@kernel_function
def remote_store_async(
    s: types.Type, index: types.Type, tile: types.Type, rank: types.Type, m: types.Type, i: types.Type
) -> Typed:
    """Store 1, 2 or 4 elements of 4 bytes, or 1 or 2 of 8, into the same array of block ``rank`` of the cluster; the
    bytes count down what mbarrier i of that block expects, and are visible to who waits for it.

    ``st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{.v2,.v4}.b32|b64 [addr], value, [mbar]`` (PTX ISA
    ``st.async``); ``s[index]`` aligned to the whole.
    """
    dtype = check_array(s)
    check_mbarriers(m)
    for name, argument in (("index", index), ("rank", rank), ("i", i)):
        check_int(name, argument)
    chunks = contiguous("remote_store_async", s, tile)
    n = chunks.tile.n
    if dtype.itemsize not in (4, 8) or n * dtype.itemsize not in (4, 8, 16):
        raise TypingError(f"remote_store_async takes 1, 2 or 4 elements of 4 bytes or 1 or 2 of 8, not {n} of {dtype}")
    suffix = (f".v{n}" if n > 1 else "") + f".b{dtype.bits}"
    letter = "r" if dtype.bits == 32 else "l"

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        rank_word = narrow(builder, args[3])
        to = _map(builder, shared_address(builder, args[0], args[1], dtype.itemsize), rank_word)
        barrier = _map(builder, mbarrier_address(builder, args[4], args[5]), rank_word)
        words, _ = tile_words(builder, TileType(dtype, n), operand(builder, tile, args[2], dtype, n))
        values = braces([f"${k + 2}" for k in range(n)])
        text = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{suffix} [$0], {values}, [$1];"
        constraints = ",".join(["r", "r", *[letter] * n, "~{memory}"])
        asm(builder, ir.VoidType(), text, constraints, [to, barrier, *words], effect=True)

    return types.none, emit


FUNCTIONS: tuple[KernelFunction, ...] = (
    cluster_rank,
    cluster_size,
    cluster_arrive,
    cluster_arrive_relaxed,
    cluster_wait,
    remote_store,
    remote_load,
    remote_store_async,
)
