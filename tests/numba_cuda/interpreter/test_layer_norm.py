# SPDX-License-Identifier: Apache-2.0
"""A whole layer-norm kernel in the interpreter, against torch."""

from __future__ import annotations

import pytest
import torch

from fusedsl.numba_cuda.dtypes import from_torch
from fusedsl.numba_cuda.interpreter import interpret, poison, settle
from fusedsl.numba_cuda.kernel import Geometry, KernelSource

THREADS = 64
TEXT = """\
BATCH = {batch}
VECTOR = {vector}
STRIDE = {stride}


def layer_norm(x, weight, bias, out, n, eps):
    column = thread_x() * VECTOR
    start = block_x() * n + column
    limit = n - column
    # norms.py:2  mean = x.mean(-1, keepdim=True)
    x_tile = cast(load(x, start, limit, BATCH, STRIDE, VECTOR, 0.0), {compute})
    sums = shared({compute}, 2)
    total = warp_sum(tile_sum(x_tile), 32)
    if lane() == 0:
        shared_store(sums, warp(), total)
    barrier()
    mean = tile_sum(shared_load(sums, 0, 2)) / n
    # norms.py:3  var = ((x - mean) ** 2).mean(-1, keepdim=True)
    centred = where(iota(BATCH, STRIDE, VECTOR, int64) < limit, x_tile - mean, 0.0)
    squares = shared({compute}, 2)
    total = warp_sum(tile_sum(centred * centred), 32)
    if lane() == 0:
        shared_store(squares, warp(), total)
    barrier()
    var = tile_sum(shared_load(squares, 0, 2)) / n
    # norms.py:4  return (x - mean) * torch.rsqrt(var + eps) * weight + bias
    weight_tile = cast(load(weight, column, limit, BATCH, STRIDE, VECTOR, 0.0), {compute})
    bias_tile = cast(load(bias, column, limit, BATCH, STRIDE, VECTOR, 0.0), {compute})
    y = centred * rsqrt(var + eps) * weight_tile + bias_tile
    store(out, start, limit, cast(y, {dtype}), BATCH, STRIDE, VECTOR)
"""


@pytest.mark.parametrize("order", ["forward", 5])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 63), (2, 64), (2, 1000), (3, 1024)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_layer_norm(dtype: torch.dtype, rows: int, columns: int, order: str | int) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = (torch.randn(rows, columns, generator=generator) * 3 + 1).to(dtype)
    weight, bias = torch.randn(2, columns, generator=generator).to(dtype)
    vector = next(v for v in (16 // dtype.itemsize, 1) if columns % v == 0)
    batch = -(-columns // (THREADS * vector))
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    text = TEXT.format(
        batch=batch,
        vector=vector,
        stride=THREADS * vector,
        dtype=from_torch(dtype).name,
        compute=from_torch(compute).name,
    )
    source = KernelSource("layer_norm", text, (f"*{from_torch(dtype).name}",) * 4 + ("int64", "float32"), THREADS)
    out = torch.empty_like(x)
    poison(out)
    interpret(source, Geometry((rows, 1, 1), (THREADS, 1, 1)), (x, weight, bias, out, columns, 1e-5), order=order)
    settle(out, "out")
    want = torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 1e-5)
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6, torch.float64: 1e-7}[dtype]
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
