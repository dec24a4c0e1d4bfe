# SPDX-License-Identifier: Apache-2.0
"""Approximate functions and `recast`: their instructions, values and errors, and what `recast` is for."""

from __future__ import annotations

import math
import re

import attrs
import pytest
import torch

from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.interpreter.errors import TileMismatch
from fusedsl.numba_cuda.intrinsics import fast_math
from fusedsl.numba_cuda.kernel import Geometry, KernelSource
from fusedsl.numba_cuda.linker import CompilationError, link, read_log
from tests.numba_cuda.support import ARCHITECTURES, compiled, kernel, run

#: Name -> torch's function, relative error allowed, values besides the special ones.
FAST = {
    "fast_exp": (torch.exp, 2e-5, (-80.0, 80.0)),
    "fast_exp2": (torch.exp2, 2e-7, (-120.0, 120.0)),
    "fast_log": (torch.log, 1e-6, (1e-3, 1e6)),
    "fast_log2": (torch.log2, 1e-6, (1e-3, 1e6)),
    "fast_reciprocal": (torch.reciprocal, 1.2e-7, (-1e3, 1e3)),
    "fast_rsqrt": (torch.rsqrt, 1.5e-7, (1e-3, 1e6)),
    "fast_tanh": (torch.tanh, 5e-4, (-9.0, 9.0)),
}
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e-45, 3e38, -3e38, 1e-30)


def unary(name: str) -> KernelSource:
    return kernel(
        f"i = block_x() * 128 + thread_x()\nstore(b, i, None, {name}(load(a, i, None, 1, 1, 1)), 1, 1, 1)",
        "*float32",
        "*float32",
    )


def inputs(low: float, high: float) -> torch.Tensor:
    return torch.cat([torch.tensor(SPECIAL), torch.linspace(low, high, 1024 - len(SPECIAL))])


@pytest.mark.parametrize("name", FAST)
def test_values(name: str, device: str) -> None:
    function, error, limits = FAST[name]
    x = inputs(*limits)
    y = torch.full_like(x, math.nan)
    run(unary(name), Geometry((8, 1, 1), (128, 1, 1)), (x, y), device)
    atol = 2.5e-7 if "log" in name else 2e-45  # subnormal results may be one unit off
    torch.testing.assert_close(y, function(x.double()).float(), rtol=error, atol=atol, equal_nan=True)


def test_erf(device: str) -> None:
    x = inputs(-6.0, 6.0)
    y = torch.full_like(x, math.nan)
    run(unary("fast_erf"), Geometry((8, 1, 1), (128, 1, 1)), (x, y), device)
    torch.testing.assert_close(y, torch.special.erf(x.double()).float(), rtol=0, atol=2e-7, equal_nan=True)


def test_error_of_the_erf_polynomial() -> None:
    x = torch.linspace(0.0, fast_math._ERF_LARGEST, 100_001, dtype=torch.float64)
    s = fast_math._ERF_P * x / (1 + fast_math._ERF_P * x)
    polynomial = torch.full_like(s, fast_math._ERF_C[-1])
    for coefficient in (*reversed(fast_math._ERF_C[:-1]), 1.0):
        polynomial = polynomial * s + coefficient
    error = (1 - torch.exp(-x * x) * polynomial - torch.special.erf(x)).abs().max().item()
    assert error < 2.5e-8


def test_divide(device: str) -> None:
    a, b = torch.meshgrid(
        torch.tensor((*SPECIAL, 1.0, -2.5, 7e20)), torch.tensor((*SPECIAL, 3.0, -1e-3)), indexing="ij"
    )
    a, b = (torch.cat([t.flatten(), torch.ones(256 - t.numel())]) for t in (a, b))
    y = torch.full_like(a, math.nan)
    body = """
i = block_x() * 128 + thread_x()
store(c, i, None, fast_divide(load(a, i, None, 1, 1, 1), load(b, i, None, 1, 1, 1)), 1, 1, 1)
"""
    run(kernel(body, "*float32", "*float32", "*float32"), Geometry((2, 1, 1), (128, 1, 1)), (a, b, y), device)
    torch.testing.assert_close(y, (a.double() / b.double()).float(), rtol=2.4e-7, atol=2e-45, equal_nan=True)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_instructions(arch: str) -> None:
    body = """
x = load(a, thread_x(), None, 1, 1, 1)
store(a, thread_x(), None, fast_erf(fast_divide(x, 3.0)), 1, 1, 1)
store(a, thread_x(), None, fast_divide(1.0, x), 1, 1, 1)
"""
    ptx = compiled(kernel(body, "*float32"), arch).ptx
    assert ptx.count("div.full.f32") == 2
    assert ptx.count("ex2.approx.ftz.f32") == ptx.count("rcp.approx.ftz.f32") == 1
    assert "call" not in ptx


def test_other_dtypes_are_refused() -> None:
    for call in ("fast_erf(load(a, 0, None, 1, 1, 1))", "fast_divide(load(a, 0, None, 1, 1, 1), 2.0)"):
        source = kernel(f"store(a, 0, None, {call}, 1, 1, 1)", "*float64")
        with pytest.raises(CompilationError, match="take float32, not float64"):
            compile_kernel(source, "sm_80")
        with pytest.raises(TileMismatch, match="float64 tiles have no fast_"):
            run(source, Geometry((1, 1, 1), (1, 1, 1)), (torch.ones(1, dtype=torch.float64),), "cpu")


def softmax(dtype: str, first: str, second: str) -> KernelSource:
    """A row of 64 elements a thread, held as 16-bit floats over two block-wide reductions."""
    body = f"""
first = thread_x() * 8
x = load_stream(a, block_x() * 8192 + first, None, 8, 1024, 8)
tops = shared(float32, 4)
totals = shared(float32, 4)
top = warp_max(tile_max(cast(x, float32)), 32)
if lane() == 0:
    shared_store(tops, warp(), top)
barrier()
top = tile_max(shared_load(tops, 0, 4))
total = warp_sum(tile_sum(fast_exp({first} - top)), 32)
if lane() == 0:
    shared_store(totals, warp(), total)
barrier()
scale = 1.0 / tile_sum(shared_load(totals, 0, 4))
store_stream(b, block_x() * 8192 + first, None, cast(fast_exp({second} - top) * scale, DTYPE), 8, 1024, 8)
"""
    return kernel(body, f"*{dtype}", f"*{dtype}", constants=f"DTYPE = {dtype}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_recast_frees_registers(arch: str, dtype: str) -> None:
    """With 72 registers: the tile takes 32, its float32 values would take 64 more."""
    plain = softmax(dtype, "cast(x, float32)", "cast(x, float32)")
    again = softmax(dtype, "recast(x, float32, top)", "recast(x, float32, scale)")
    assert compile_kernel(attrs.evolve(plain, max_registers=72), arch).spill_bytes > 0
    assert compiled(attrs.evolve(again, max_registers=72), arch).registers <= 72


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_recast_in_a_softmax(dtype: torch.dtype, device: str) -> None:
    x = torch.randn(2, 8192).to(dtype)
    y = torch.full_like(x, math.nan)
    source = softmax(str(dtype).removeprefix("torch."), "recast(x, float32, top)", "recast(x, float32, scale)")
    run(source, Geometry((2, 1, 1), (128, 1, 1)), (x, y), device)
    torch.testing.assert_close(y, x.double().softmax(-1).to(dtype), rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_recast_is_exact(dtype: torch.dtype, n: int, device: str) -> None:
    """Every 16-bit pattern, in tiles of odd and even sizes."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    count = 2**16 // n
    y, z = (torch.full((2**16,), math.nan) for _ in range(2))
    body = """
i = (block_x() * 128 + thread_x()) * N
if i < LAST:
    t = load(a, i, None, N, 1, 1)
    store(b, i, None, recast(t, float32), N, 1, 1)
    store(c, i, None, recast(t, float32, full(1, 0.5, float32)), N, 1, 1)
"""
    constants = f"N = {n}\nLAST = {count * n}"
    name = str(dtype).removeprefix("torch.")
    source = kernel(body, f"*{name}", "*float32", "*float32", constants=constants)
    blocks = 4 if device == "cpu" else -(-count // 128)
    run(source, Geometry((blocks, 1, 1), (128, 1, 1)), (x, y, z), device)
    done = min(count, blocks * 128) * n
    for result in (y, z):
        torch.testing.assert_close(result[:done], x[:done].float(), rtol=0, atol=0, equal_nan=True)


WRONG_RECASTS = {
    "recast(load(a, 0, None, 2, 1, 1), float32)": "takes a tile of 16-bit floats",
    "recast(cast(load(a, 0, None, 2, 1, 1), float16), float64)": "takes a tile of 16-bit floats",
    "recast(cast(load(a, 0, None, 2, 1, 1), float16), float32, full(2, 0.0, float32))": "one-element tile",
}


@pytest.mark.parametrize("call", WRONG_RECASTS)
def test_wrong_recasts(call: str) -> None:
    source = kernel(f"x = {call}", "*float32")
    with pytest.raises(CompilationError, match=re.escape(WRONG_RECASTS[call])):
        compile_kernel(source, "sm_80")
    with pytest.raises(TileMismatch, match="recast"):
        run(source, Geometry((1, 1, 1), (1, 1, 1)), (torch.ones(4),), "cpu")


def test_linking_the_same_code_twice_gives_a_log() -> None:
    first = compile_kernel(kernel("store(a, 1, None, 2.0, 1, 1, 1)", "*float32", threads=64), "sm_90a")
    cubin, log = link(first.name, first.ltoir, first.link_options)
    assert cubin == first.cubin
    assert read_log(log).registers == first.registers > 0
