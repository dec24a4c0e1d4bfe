# SPDX-License-Identifier: Apache-2.0
"""Asynchronous copies, mbarriers, clusters, barriers of other groups: instructions, and values in the interpreter and
on the GPU."""

from __future__ import annotations

import pytest
import torch

from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.kernel import Geometry, KernelSource
from fusedsl.numba_cuda.linker import CompilationError
from tests.numba_cuda.support import ARCHITECTURES, compiled, kernel, run

ORDERS = ("forward", "reversed", 1)


def check(source: KernelSource, geometry: Geometry, arguments: tuple, device: str, result: int, want: object) -> None:
    """Run in every order of the interpreter, or once on the GPU; argument ``result`` must be ``want`` afterwards."""
    for order in ORDERS if device == "cpu" else ("forward",):
        fresh = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)
        run(source, geometry, fresh, device, order=order)
        torch.testing.assert_close(fresh[result], want)


# cp.async ------------------------------------------------------------------------------------------------------------

PIPELINE = """
first = thread_x() * VECTOR
s = dynamic_shared(DTYPE, 64)
for step in range(c):
    async_copy(s, step * 1024 + first, a, step * 1024 + first, d - step * 1024 - first, 2, 512, VECTOR)
    async_commit()
async_wait(0)
barrier()
for step in range(c):
    t = shared_load_tile(s, step * 1024 + 512 - VECTOR - first, 2, 512, VECTOR)
    store(b, step * 1024 + first, None, t, 2, 512, VECTOR)
"""


def pipeline(dtype: str) -> KernelSource:
    body = PIPELINE.replace("VECTOR", "4")
    return kernel(body, f"*{dtype}", f"*{dtype}", "int64", "int64", constants=f"DTYPE = {dtype}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("limit", [4096, 3000])
def test_a_row_through_shared_memory(dtype: torch.dtype, limit: int, device: str) -> None:
    """Every thread reads chunks that another thread has copied; beyond the limit are zeros."""
    x = torch.arange(1, 4097).remainder(100).to(dtype)
    known = x.clone()
    known[limit:] = 0
    want = known.view(-1, 512 // 4, 4).flip(1).reshape(-1)
    source = pipeline(str(dtype).removeprefix("torch."))
    geometry = Geometry((1, 1, 1), (128, 1, 1), dynamic_smem_bytes=4096 * dtype.itemsize + 64)
    check(source, geometry, (x, torch.zeros_like(x), 4, limit), device, 1, want)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("vector", "instruction"), [(1, "ca"), (2, "ca"), (4, "cg"), (16, "cg")])
def test_copy_instructions(vector: int, instruction: str, arch: str) -> None:
    body = f"""
s = shared(float32, 4096)
i = thread_x() * {vector}
async_copy(s, i, a, i, b, 2, 2048, {vector})
async_commit()
async_copy(s, i, a, i, None, 1, 0, {vector})
async_commit()
async_wait(1)
async_wait(0)
store(a, i, None, shared_load_tile(s, i, 2, 2048, {vector}), 2, 2048, {vector})
"""
    ptx = compiled(kernel(body, "*float32", "int64"), arch).ptx
    parts = max(vector // 4, 1)
    assert ptx.count(f"cp.async.{instruction}.shared.global") == 3 * parts
    assert f", {min(vector, 4) * 4}, %p" in ptx
    assert ptx.count("cp.async.commit_group") == 2
    assert ptx.count("cp.async.wait_group") == 2


def test_shared_tiles(device: str) -> None:
    body = """
s = shared(bfloat16, 2048)
i = thread_x() * 8
shared_store_tile(s, i, load(a, i, None, 2, 1024, 8), 2, 1024, 8)
barrier()
j = 1016 - i
store(b, i, None, shared_load_tile(s, j, 2, 1024, 8), 2, 1024, 8)
barrier()
shared_store_tile(s, i, 2.5, 2, 1024, 8)
store(b, i + 2048, None, shared_load_tile(s, i, 2, 1024, 8), 2, 1024, 8)
"""
    x = torch.randn(2048).bfloat16()
    want = torch.cat([x.view(2, 128, 8).flip(1).reshape(-1), torch.full((2048,), 2.5).bfloat16()])
    source = kernel(body, "*bfloat16", "*bfloat16")
    check(source, Geometry((1, 1, 1), (128, 1, 1)), (x, torch.zeros(4096).bfloat16()), device, 1, want)
    assert compiled(source).ptx.count("st.shared.v4.b32") == 4


# bulk copies and mbarriers -------------------------------------------------------------------------------------------

RING = """
first = thread_x() * 4
stages = dynamic_shared(float32)
full = mbarriers(2)
if thread_x() == 0:
    mbarrier_init(full, 0, 1)
    mbarrier_init(full, 1, 1)
    mbarrier_fence()
    for step in range(min(c, 2)):
        mbarrier_expect(full, step, 2048)
        bulk_load(stages, step * 512, a, step * 512, 512, full, step)
barrier()
stage = 0
phase = 0
for step in range(c):
    mbarrier_wait(full, stage, phase)
    t = shared_load(stages, stage * 512 + first, 4)
    barrier()
    if thread_x() == 0 and step + 2 < c:
        mbarrier_expect(full, stage, 2048)
        bulk_load(stages, stage * 512, a, step * 512 + 1024, 512, full, stage)
    store(b, step * 512 + first, None, t * 2.0, 1, 1, 4)
    stage = stage + 1
    if stage == 2:
        stage = 0
        phase = phase ^ 1
"""


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_ring_of_bulk_loads(steps: int, device: str) -> None:
    x = torch.randn(steps * 512)
    geometry = Geometry((1, 1, 1), (128, 1, 1), dynamic_smem_bytes=4096)
    source = kernel(RING, "*float32", "*float32", "int64")
    check(source, geometry, (x, torch.zeros_like(x), steps), device, 1, x * 2)


ROLES = """
slots = shared(float32, 128)
full = mbarriers(2)
empty = mbarriers(2)
if thread_x() == 0:
    for i in range(2):
        mbarrier_init(full, i, 1)
        mbarrier_init(empty, i, 64)
    mbarrier_fence()
barrier()
if warp() == 2:
    if lane() == 0:
        for step in range(c):
            stage = step % 2
            mbarrier_wait(empty, stage, (step // 2 + 1) % 2)
            mbarrier_expect(full, stage, 256)
            bulk_load(slots, stage * 64, a, step * 64, 64, full, stage)
else:
    total = cast(0.0, float32)
    for step in range(c):
        stage = step % 2
        mbarrier_wait(full, stage, step // 2 % 2)
        total = total + shared_load(slots, stage * 64 + 63 - thread_x(), 1)
        mbarrier_arrive(empty, stage)
    named_barrier(1, 64)
    store(b, thread_x(), None, total, 1, 1, 1)
"""


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_warps_with_roles(steps: int, device: str) -> None:
    """A warp that only copies, and two that only compute: full and empty mbarriers order them, no block barrier."""
    x = torch.arange(steps * 64, dtype=torch.float32)
    source = kernel(ROLES, "*float32", "*float32", "int64")
    want = x.view(steps, 64).flip(1).sum(0)
    check(source, Geometry((1, 1, 1), (96, 1, 1)), (x, torch.zeros(64), steps), device, 1, want)
    ptx = compiled(source).ptx
    assert "bar.sync 1, 64" in ptx
    assert "mbarrier.arrive.shared::cta.b64" in ptx


BULK_STORE = """
i = thread_x() * 8
s = shared(bfloat16, 2048)
for step in range(2):
    if thread_x() == 0:
        bulk_wait(0)
    barrier()
    t = load(a, step * 2048 + i, None, 2, 1024, 8)
    shared_store_tile(s, i, t, 2, 1024, 8)
    async_fence()
    barrier()
    if thread_x() == 0:
        bulk_store(b, step * 2048, s, 0, 2048)
        bulk_commit()
if thread_x() == 0:
    bulk_wait(0)
"""


def test_bulk_store(device: str) -> None:
    x = torch.randn(4096).bfloat16()
    source = kernel(BULK_STORE, "*bfloat16", "*bfloat16")
    check(source, Geometry((1, 1, 1), (128, 1, 1)), (x, torch.zeros_like(x)), device, 1, x)
    ptx = compiled(source).ptx
    assert "cp.async.bulk.global.shared::cta.bulk_group" in ptx
    assert "cp.async.bulk.wait_group.read 0" in ptx
    assert "fence.proxy.async.shared::cta" in ptx


# clusters ------------------------------------------------------------------------------------------------------------

CLUSTER_SUM = """
rank = cluster_rank()
size = cluster_size()
mine = shared(float32, 4)
sums = shared(float32, 8)
cluster_arrive()
total = warp_sum(load(a, block_x() * 128 + thread_x(), None, 1, 1, 1), 32)
if lane() == 0:
    shared_store(mine, warp(), total)
barrier()
total = tile_sum(shared_load(mine, 0, 4))
cluster_wait()
if thread_x() < size:
    remote_store(sums, rank, total, thread_x())
cluster_arrive()
cluster_wait()
total = cast(0.0, float32)
for i in range(size):
    total = total + shared_load(sums, i, 1)
neighbour = remote_load(sums, rank, 1, umod(rank + 1, size))
cluster_arrive()
cluster_wait()
store(b, block_x() * 128 + thread_x(), None, total + neighbour, 1, 1, 1)
"""


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_remote_stores_and_loads(cluster: int, device: str) -> None:
    blocks = 2 * cluster
    x = torch.arange(blocks * 128, dtype=torch.float32).remainder(17)
    sums = x.view(blocks, 128).sum(1)
    want = sums.view(2, cluster).sum(1).repeat_interleave(cluster) + sums
    source = kernel(CLUSTER_SUM, "*float32", "*float32")
    want = want.repeat_interleave(128)
    check(source, Geometry((blocks, 1, 1), (128, 1, 1), cluster), (x, torch.zeros_like(x)), device, 1, want)
    ptx = compiled(source).ptx
    assert "st.shared::cluster.b32" in ptx
    assert "ld.shared::cluster.b32" in ptx


ASYNC_SUM = """
arrived = mbarriers(1)
sums = shared(DTYPE, 64)
if thread_x() == 0:
    mbarrier_init(arrived, 0, 1)
    mbarrier_fence()
    mbarrier_expect(arrived, 0, 4 * SIZE * BYTES * N)
cluster_arrive()
total = warp_sum(load(a, (block_x() * 128 + thread_x()) * N, None, 1, 1, N), 32)
cluster_wait()
if lane() < SIZE:
    remote_store_async(sums, (cluster_rank() * 4 + warp()) * N, total, lane(), arrived, 0)
mbarrier_wait(arrived, 0, 0)
total = fold_sum(shared_load(sums, 0, TOTAL), N)
store(b, (block_x() * 128 + thread_x()) * N, None, total, 1, 1, N)
"""


@pytest.mark.parametrize(("dtype", "n"), [("float32", 1), ("float32", 2), ("float32", 4), ("float64", 1), ("int64", 2)])
def test_remote_stores_that_complete_on_an_mbarrier(dtype: str, n: int, device: str) -> None:
    bytes_ = 8 if "64" in dtype else 4
    constants = f"DTYPE = {dtype}\nSIZE = 4\nN = {n}\nBYTES = {bytes_}\nTOTAL = {16 * n}"
    source = kernel(ASYNC_SUM, f"*{dtype}", f"*{dtype}", constants=constants)
    x = torch.arange(8 * 128 * n).remainder(13).to(getattr(torch, dtype))
    want = x.view(2, -1, n).sum(1, dtype=x.dtype).repeat_interleave(4 * 128, 0).reshape(-1)
    check(source, Geometry((8, 1, 1), (128, 1, 1), 4), (x, torch.zeros_like(x)), device, 1, want)
    suffix = (f".v{n}" if n > 1 else "") + f".b{8 * bytes_}"
    assert f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{suffix}" in compiled(source).ptx


# whole grids ---------------------------------------------------------------------------------------------------------

GRID = """
for step in range(3):
    total = cast(0.0, float32)
    for block in range(grid_x()):
        total = total + load(a, block, None, 1, 1, 1)
    grid_barrier(b, 1)
    if thread_x() == 0:
        store(a, block_x(), None, total + 1.0, 1, 1, 1)
    grid_barrier(b, 1)
"""


def test_grid_barrier(device: str) -> None:
    """Each round every block reads what all wrote in the last; the counter serves six barriers and two launches."""
    source = kernel(GRID, "*float32", "*int32")
    geometry = Geometry((4, 1, 1), (64, 1, 1), cooperative=True)
    x, counters = torch.arange(4.0), torch.zeros(2, dtype=torch.int32)
    for _ in range(2):
        run(source, geometry, (x, counters), device)
    want = torch.arange(4.0)
    for _ in range(6):
        want = (want.sum() + 1).expand(4)
    torch.testing.assert_close(x, want.clone())
    assert counters[0] == 0
    assert counters[1] & 0xFFFF == 0
    for arch in ARCHITECTURES:
        assert "ld.acquire.gpu.global.u32" in compiled(source, arch).ptx


# wrong text ----------------------------------------------------------------------------------------------------------

WRONG = {
    "async_copy(s, 0, a, 0, None, 1, 1, 3)": "at least 4 bytes",
    "async_copy(s, 0, b, 0, None, 1, 1, 4)": "the dtypes differ",
    "async_copy(shared(int8, 8), 0, c, 0, None, 1, 1, 2)": "at least 4 bytes",
    "async_wait(thread_x())": "module-level constant",
    "x = dynamic_shared(float32, 8)": "multiple of 16",
    "mbarrier_wait(s, 0, 0)": "mbarriers are needed",
    "remote_store_async(s, 0, load(a, 0, None, 1, 1, 8), 0, m, 0)": "1, 2 or 4 elements",
    "remote_store(s, 0, load(b, 0, None, 1, 1, 1), 0)": "remote_store of",
    "x = shared_load_tile(s, 0, 2, 4, 3)": "power of two",
    "shared_store_tile(s, 0, load(a, 0, None, 2, 1, 1), 4, 4, 1)": "is needed",
    "named_barrier(0, 32)": "id of 1 to 15",
    "named_barrier(1, 33)": "whole warps",
    "grid_barrier(a, 0)": "pointer to int32",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_text_is_refused(line: str) -> None:
    body = f"s = shared(float32, 8)\nm = mbarriers(1)\n{line}"
    with pytest.raises(CompilationError, match=WRONG[line]):
        compile_kernel(kernel(body, "*float32", "*float64", "*int8"), "sm_90a")


def test_clusters_need_sm_90() -> None:
    with pytest.raises(CompilationError, match="sm_90"):
        compile_kernel(kernel(CLUSTER_SUM, "*float32", "*float32"), "sm_80")
