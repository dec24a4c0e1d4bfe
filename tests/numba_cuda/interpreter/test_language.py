# SPDX-License-Identifier: Apache-2.0
"""Every name of the kernel language gives torch's values on the CPU."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch

from fusedsl.numba_cuda.dtypes import DTYPES
from fusedsl.numba_cuda.interpreter.names import NAMES
from tests.numba_cuda.interpreter.support import evaluate, run_body

INF, NAN = math.inf, math.nan
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.75, 1e-30, 87.0, -120.0, 1e-42, INF, -INF, NAN]
DOMAIN = {
    "acosh": [1.0, 1.5, 3.0, 1e10, INF, NAN],
    "lgamma": [0.5, 1.0, 2.5, -0.5, 30.0, 0.0, -1.0, INF, NAN],
    "digamma": [0.5, 1.0, 2.5, -0.5, 30.0, -1.5, -1.0, NAN],
}
TORCH_NAME = {
    "abs_": "abs",
    "round_": "round",
    "erf": "special.erf",
    "erfc": "special.erfc",
    "erfinv": "special.erfinv",
}
UNARY = (
    "abs_ sign floor ceil trunc round_ sqrt rsqrt reciprocal exp exp2 expm1 log "
    "log2 log10 log1p sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma"
).split()
PREDICATES = "isnan isinf isfinite signbit".split()
BINARY = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "pow_": torch.pow,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
}
INT_DTYPES = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


def torch_function(name: str) -> Callable[..., torch.Tensor]:
    found = torch
    for part in TORCH_NAME.get(name, name).split("."):
        found = getattr(found, part)
    return found  # type: ignore[return-value]


def pairs(values: list[float], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of values."""
    a = torch.tensor(values, dtype=dtype)
    grid = torch.cartesian_prod(a, a)
    return grid[:, 0].contiguous(), grid[:, 1].contiguous()


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Bit for bit, any NaN alike."""
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    if got.is_floating_point():
        zeros = want == 0
        assert torch.equal(torch.signbit(got[zeros]), torch.signbit(want[zeros]))


def test_names_are_those_of_the_gpu_language() -> None:
    from fusedsl.numba_cuda.language import NAMES as gpu_names

    assert set(NAMES) == set(gpu_names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(DOMAIN.get(name, FLOATS), dtype=dtype)
    got = evaluate(f"{name}(a)", x)
    want = torch_function(name)(x.double())
    if dtype == torch.float32:
        assert_same(got, want.float())
    else:
        torch.testing.assert_close(got, want, rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "name",
    ["fast_exp", "fast_exp2", "fast_log", "fast_log2", "fast_reciprocal", "fast_rsqrt", "fast_tanh", "fast_erf"],
)
def test_fast_forms(name: str) -> None:
    x = torch.tensor([0.25, 1.0, 3.5, 80.0])
    assert_same(evaluate(f"{name}(a)", x), torch_function(name[5:])(x.double()).float())


@pytest.mark.parametrize("name", PREDICATES)
def test_predicates(name: str) -> None:
    x = torch.tensor(FLOATS)
    assert torch.equal(evaluate(f"{name}(a)", x, result=torch.bool), torch_function(name)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: torch.dtype) -> None:
    a, b = pairs([v for v in FLOATS if abs(v) not in (1e-30, 1e-42)], dtype)
    got, want = evaluate(f"{name}(a, b)", a, b), BINARY[name](a, b)
    torch.testing.assert_close(got, want, rtol=2e-7 if dtype == torch.float32 else 1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", INT_DTYPES)
def test_integer_functions(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    a, b = pairs([0, 1, 2, 3, 7, info.max, info.min, -1 if info.min else 5], dtype)
    for name in ("maximum", "minimum", "fmax", "fmin"):
        assert_same(evaluate(f"{name}(a, b)", a, b), BINARY[name](a, b))
    nonzero = (b != 0) & ~((b == -1) & (a == info.min))
    for name in ("fmod", "remainder"):
        assert_same(evaluate(f"{name}(a, b)", a[nonzero], b[nonzero]), BINARY[name](a[nonzero], b[nonzero]))
    assert_same(evaluate("a // b", a[nonzero], b[nonzero]), a[nonzero] // b[nonzero])
    assert_same(evaluate("a % b", a[nonzero], b[nonzero]), a[nonzero] % b[nonzero])
    small = (b >= 0) & (b < 8)
    assert_same(evaluate("pow_(a, b)", a[small], b[small]), a[small] ** b[small])
    assert_same(evaluate("abs_(a)", a), a.abs())
    assert_same(evaluate("sign(a)", a), a.sign())
    assert_same(evaluate("-a", a), -a)
    assert_same(evaluate("~a", a), ~a)


def test_integer_power_with_a_negative_exponent() -> None:
    a = torch.tensor([2, 1, -1, -1, 0, -3])
    b = torch.tensor([-1, -5, -3, -4, -2, -1])
    assert evaluate("a ** b", a, b).tolist() == [0, 1, -1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *INT_DTYPES])
@pytest.mark.parametrize("symbol", ["+", "-", "*", "==", "!=", "<", "<=", ">", ">="])
def test_arithmetic_and_comparison(symbol: str, dtype: torch.dtype) -> None:
    function = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }[symbol]
    values = FLOATS if dtype.is_floating_point else [0, 1, 5, 100, torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    a, b = pairs(values, dtype)
    want = function(a, b)
    assert_same(evaluate(f"a {symbol} b", a, b, result=want.dtype), want)
    assert_same(evaluate(f"a {symbol} 3", a, result=want.dtype), function(a, 3))
    assert_same(evaluate(f"3 {symbol} a", a, result=want.dtype), function(torch.tensor(3, dtype=dtype), a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_division(dtype: torch.dtype) -> None:
    a, b = pairs([0.0, -0.0, 1.0, -1.5, 7.25, 0.1, INF, -INF, NAN], dtype)
    assert_same(evaluate("a / b", a, b), a / b)
    assert_same(evaluate("a // b", a, b), torch.floor_divide(a, b))
    assert_same(evaluate("a % b", a, b), torch.remainder(a, b))
    assert_same(evaluate("1.0 / a", a), 1.0 / a)
    assert_same(evaluate("-a", a), -a)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8])
def test_bitwise(dtype: torch.dtype) -> None:
    a, b = pairs([0, 1] if dtype == torch.bool else [0, 1, 6, 9], dtype)
    assert_same(evaluate("a & b", a, b), a & b)
    assert_same(evaluate("a | b", a, b), a | b)
    assert_same(evaluate("a ^ b", a, b), a ^ b)
    assert_same(evaluate("~a", a), ~a)
    if dtype != torch.bool:
        assert_same(evaluate("a << b", a, b), a << b)
        assert_same(evaluate("a >> b", a, b), a >> b)
        assert_same(evaluate("a << 40", a), torch.zeros_like(a))


def test_scalars_take_the_tile_dtype() -> None:
    a = torch.tensor([1.0, 2.0])
    assert_same(evaluate("a + 0.1", a), a + torch.tensor(0.1))
    i = torch.tensor([1, 2], dtype=torch.int32)
    assert_same(evaluate("a + 1", i), i + 1)
    assert evaluate("a + 2.9", i).tolist() == [3, 4]
    assert evaluate("a + 4294967297", i).tolist() == [2, 3]


def test_one_element_tiles_broadcast_and_are_conditions_and_ints() -> None:
    a = torch.tensor([1.0, 2.0, 3.0])
    assert_same(evaluate("a * full(1, 2.0, float32)", a), a * 2)
    assert_same(evaluate("a if tile_any(a > 2.0) else -a", a), a)
    assert_same(evaluate("-a if full(1, 0, int32) else a", a), a)
    assert_same(evaluate("a + float(int(full(1, 7, int64)))", a), a + 7)


def test_fma_rounds_once() -> None:
    for dtype, tiny in ((torch.float32, 2.0**-23), (torch.float64, 2.0**-52)):
        a = torch.tensor([1 + tiny, 3.0, INF, 1e20], dtype=dtype)
        b = torch.tensor([1 - tiny, 0.5, 1.0, -1e20], dtype=dtype)
        c = torch.tensor([-1.0, 2.0, -INF, INF], dtype=dtype)
        assert_same(evaluate("fma(a, b, c)", a, b, c), torch.tensor([-(tiny**2), 3.5, NAN, INF], dtype=dtype))
    # The float64 sum is a tie between two float32 values, which only the discarded part decides.
    a, b, c = torch.tensor([1.0 + 2**-12]), torch.tensor([1.0 + 2**-12]), torch.tensor([2.0**-60])
    assert_same(evaluate("fma(a, b, c)", a, b, c), torch.tensor([1 + 2**-11 + 2**-23]))
    assert_same(evaluate("fma(a, b, c)", a, b, -c), torch.tensor([1 + 2**-11]))


CAST_VALUES = [0.0, -0.0, 0.5, -0.5, 1.9, -1.9, 100.7, -100.2, 1.0, 1.00390625, 1.01171875, 65504.0, 7e4, 3.4e38]


@pytest.mark.parametrize("target", list(DTYPES))
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_cast_of_floats(source: str, target: str) -> None:
    values = CAST_VALUES if DTYPES[target].is_float or target == "boolean" else [v for v in CAST_VALUES if 0 <= v < 128]
    x = torch.tensor(values, dtype=torch.float64).to(DTYPES[source].torch)
    assert_same(evaluate(f"cast(a, {target})", x, result=DTYPES[target].torch), x.to(DTYPES[target].torch))


@pytest.mark.parametrize("target", list(DTYPES))
@pytest.mark.parametrize("source", ["boolean", "int8", "uint8", "int32", "int64"])
def test_cast_of_integers(source: str, target: str) -> None:
    x = torch.tensor([0, 1, 2, 127, 200, -1, -128, 300, 2**24 + 1, 2**40 + 1]).to(DTYPES[source].torch)
    assert_same(evaluate(f"cast(a, {target})", x, result=DTYPES[target].torch), x.to(DTYPES[target].torch))


def test_cast_saturates_words_and_wraps_narrow_integers() -> None:
    x = torch.tensor([NAN, INF, -INF, 1e20, -1e20, 300.0])
    top, bottom = 2**31 - 1, -(2**31)
    assert evaluate("cast(a, int32)", x, result=torch.int32).tolist() == [0, top, bottom, top, bottom, 300]
    assert evaluate("cast(a, int8)", x[5:], result=torch.int8).tolist() == [44]
    assert evaluate("cast(a, int64)", x[:3], result=torch.int64).tolist() == [0, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_16_bits_is_to_nearest_even(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**31), 2**31, (4096,), generator=generator).to(torch.int32).view(torch.float32)
    assert_same(evaluate(f"cast(a, {str(dtype)[6:]})", x, result=dtype), x.to(dtype))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "int32"),
        ("bfloat16", "int16"),
        ("int16", "bfloat16"),
        ("float64", "int64"),
        ("float16", "uint16"),
        ("uint8", "int8"),
    ],
)
def test_bitcast(source: str, target: str) -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 100.0]).to(DTYPES[source].torch)
    got = evaluate(f"bitcast(a, {target})", x, result=DTYPES[target].torch)
    assert torch.equal(got.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_where_full_load_and_store_of_every_dtype(dtype: str) -> None:
    torch_dtype = DTYPES[dtype].torch
    mask = torch.tensor([True, False, True, False])
    a, b = torch.tensor([0, 1, 2, 3]).to(torch_dtype), torch.tensor([1, 0, 5, 9]).to(torch_dtype)
    mixed = torch.tensor([0, 0, 2, 9]).to(torch_dtype)
    assert torch.equal(evaluate("where(a, b, c)", mask, a, b, result=torch_dtype), mixed)
    assert torch.equal(evaluate(f"full(4, 1, {dtype})", a), torch.tensor([1] * 4).to(torch_dtype))
    assert torch.equal(
        evaluate("where(a > 1, a, 1)" if not DTYPES[dtype].is_half else "a", a).to(torch.int32)[2:],
        a[2:].to(torch.int32),
    )


def test_iota_load_limit_and_fill() -> None:
    x = torch.arange(16, dtype=torch.float32)
    out = torch.zeros(8)
    run_body("store(out, 0, None, load(x, 2, 5, 4, 2, 2, -1.0), 8, 1, 1)", {"x": x, "out": out})
    assert out.tolist() == [2, 3, 4, 5, 6, 7, -1, -1]
    run_body("store(out, 0, None, load_stream(x, 0, 0, 4, 2, 2, 9.0), 8, 1, 1)", {"x": x, "out": out})
    assert out.tolist() == [9] * 8
    run_body("store(out, 0, None, cast(iota(2, 100, 4, int32), float32), 8, 1, 1)", {"out": out})
    assert out.tolist() == [0, 1, 2, 3, 100, 101, 102, 103]


def test_store_limit_stride_and_spread() -> None:
    out = torch.zeros(12)
    run_body("store(out, 0, 5, full(8, 2.0, float32), 4, 4, 2)", {"out": out})
    assert out.tolist() == [2, 2, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0]
    run_body("store_stream(out, 0, None, 7.0, 2, 4, 2)", {"out": out})
    assert out.tolist() == [7, 7, 0, 0, 7, 7, 0, 0, 0, 0, 0, 0]


def test_strided_load_and_store() -> None:
    x = torch.arange(60, dtype=torch.float32)
    out = torch.zeros(6)
    run_body("store(out, 0, None, load_strided(x, 1, 2, 3, 1, 20, 2, 3, -1.0), 6, 1, 1)", {"x": x, "out": out})
    assert out.tolist() == [1, 4, 21, 24, -1, -1]
    run_body("store(out, 0, None, load_strided_stream(x, 59, None, 3, 1, -20, 2, -3), 6, 1, 1)", {"x": x, "out": out})
    assert out.tolist() == [59, 56, 39, 36, 19, 16]
    run_body("store_strided(x, 2, 7, 9.0, 3, 3, 20, 2, n)", {"x": x, "n": 0})
    assert x[[2, 3, 22, 42]].tolist() == [9, 3, 9, 9]
    run_body("store_strided_stream(x, 0, None, load(x, 4, None, 4, 1, 1), 2, 1, 30, 2, 5)", {"x": x})
    assert x[[0, 5, 30, 35]].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("offset", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64])
def test_load_across(dtype: torch.dtype, offset: int) -> None:
    x = torch.arange(36).to(dtype)
    out = torch.zeros(24, dtype=dtype)
    run_body("store(out, 0, None, load_across(x, n, 9, 3, 8, 8, 1), 24, 1, 1)", {"x": x, "out": out, "n": offset})
    assert out.tolist() == [*range(offset, offset + 16), *[1] * 8]


def test_join_and_take() -> None:
    a, b = torch.arange(4.0), torch.arange(4.0, 6.0)
    assert evaluate("join(b, a)", a, b, torch.zeros(6)).tolist() == [4, 5, 0, 1, 2, 3]
    assert evaluate("join(take(join(a, b), 3, 2), take(a, 0, 2))", a, b).tolist() == [3, 4, 0, 1]


def test_gather_and_scatter() -> None:
    x = torch.arange(10).bfloat16()
    out = torch.zeros(4, dtype=torch.bfloat16)
    body = """
        index = iota(4, 3, 1, int32)
        t = gather(x, index, index < 7, -2.0)
        scatter(out, iota(4, 1, 1, int64), cast(t, float32) != 3.0, t)
        """
    run_body(body, {"x": x, "out": out})
    assert out.tolist() == [0, 0, 6, -2]


def test_atomic_add_gives_the_old_value() -> None:
    counter, out = torch.zeros(1, dtype=torch.int32), torch.zeros(6, dtype=torch.int64)
    body = """
        old = atomic_add(counter, 0, 1)
        fence_gpu()
        store(out, old, None, full(1, block_x(), int64), 1, 1, 1)
        """
    run_body(body, {"counter": counter, "out": out}, grid=(6, 1, 1), order="reversed")
    assert counter.item() == 6
    assert out.tolist() == [5, 4, 3, 2, 1, 0]


def test_indices() -> None:
    out = torch.zeros(2 * 3 * 12, 8, dtype=torch.int64)
    body = """
        b = block_x() + block_y() * grid_x() + block_z() * grid_x() * grid_y()
        t = thread_x() + thread_y() * 2 + thread_z() * 6
        row = (b * 12 + t) * 8
        store(out, row, None, full(1, thread_x(), int64), 1, 1, 1)
        store(out, row + 1, None, full(1, thread_y(), int64), 1, 1, 1)
        store(out, row + 2, None, full(1, thread_z(), int64), 1, 1, 1)
        store(out, row + 3, None, full(1, lane(), int64), 1, 1, 1)
        store(out, row + 4, None, full(1, warp(), int64), 1, 1, 1)
        store(out, row + 5, None, full(1, block_y() * 100 + block_z(), int64), 1, 1, 1)
        store(out, row + 6, None, full(1, grid_y() * 100 + grid_z(), int64), 1, 1, 1)
        store(out, row + 7, None, full(1, block_x(), int64), 1, 1, 1)
        """
    run_body(body, {"out": out}, threads=(2, 3, 2), grid=(2, 1, 3))
    assert out[0].tolist() == [0, 0, 0, 0, 0, 0, 103, 0]
    assert out[2 * 12 + 7].tolist() == [1, 0, 1, 7, 0, 1, 103, 0]
    assert out[5 * 12 + 11].tolist() == [1, 2, 1, 11, 0, 2, 103, 1]


def test_lane_and_warp_count_all_dims() -> None:
    out = torch.zeros(96, dtype=torch.int64)
    body = "t = thread_x() + 8 * thread_y()\nstore(out, t, None, full(1, warp() * 100 + lane(), int64), 1, 1, 1)"
    run_body(body, {"out": out}, threads=(8, 12, 1))
    assert out.tolist() == [t // 32 * 100 + t % 32 for t in range(96)]


def test_unsigned_index_arithmetic() -> None:
    out = torch.zeros(6, dtype=torch.int64)
    body = """
        values = (udiv(n, 7), umod(n, 7), udiv32(100, 7), umod32(100, 7), udiv(-1, 2), umod(-1, 10))
        for i in range(6):
            store(out, i, None, full(1, values[i], int64), 1, 1, 1)
        """
    run_body(body, {"out": out, "n": 2**40})
    assert out.tolist() == [2**40 // 7, 2**40 % 7, 14, 2, (2**64 - 1) // 2, (2**64 - 1) % 10]
    a = torch.tensor([7, -1], dtype=torch.int32)
    assert evaluate("udiv(a, 2)", a).tolist() == [3, 2**31 - 1]
    assert evaluate("umod32(a, 10)", a).tolist() == [7, 5]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_tile_reductions(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=generator)

    def reduce(expression: str, values: torch.Tensor, result: torch.dtype | None = None) -> torch.Tensor:
        return evaluate(expression, values, result=result)[0]

    torch.testing.assert_close(reduce("tile_sum(a)", x), x.sum())
    torch.testing.assert_close(reduce("tile_prod(a)", x), x.prod())
    assert reduce("tile_max(a)", x) == x.max()
    assert reduce("tile_min(a)", x) == x.min()
    assert reduce("tile_any(a)", x > 0) == (x > 0).any()
    assert reduce("tile_all(a)", x > 0) == (x > 0).all()
    assert reduce(f"tile_argmax(a, iota({n}, 1, 1, int32))[1]", x, torch.int32) == x.argmax()
    assert reduce(f"tile_argmin(a, iota({n}, 1, 1, int64))[1]", x, torch.int64) == x.argmin()
    assert reduce(f"tile_argmin(a, iota({n}, 1, 1, int64))[0]", x) == x.min()
    x[n // 2] = NAN
    assert torch.isnan(reduce("tile_max(a)", x))
    assert torch.isnan(reduce("tile_min(a)", x))
    assert reduce(f"tile_argmin(a, iota({n}, 1, 1, int64))[1]", x, torch.int64) == n // 2


def fold(expression: str, x: torch.Tensor, result: torch.dtype) -> torch.Tensor:
    """A kernel expression over the tile a = x, of 4 elements."""
    out = torch.zeros(4, dtype=result)
    body = f"a = load(x, 0, None, {x.numel()}, 1, 1)\nstore(out, 0, None, {expression}, 4, 1, 1)"
    run_body(body, {"x": x, "out": out})
    return out


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_folds(batch: int) -> None:
    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 4, generator=generator)
    torch.testing.assert_close(fold("fold_sum(a, 4)", x, x.dtype), x.sum(0))
    torch.testing.assert_close(fold("add_rows(take(a, 0, 4), a)", x, x.dtype), x[0] + x.sum(0))
    torch.testing.assert_close(fold("fold_prod(a, 4)", x, x.dtype), x.prod(0))
    assert torch.equal(fold("fold_max(a, 4)", x, x.dtype), x.amax(0))
    assert torch.equal(fold("fold_min(a, 4)", x, x.dtype), x.amin(0))
    assert torch.equal(fold("fold_any(a > 0.5, 4)", x, torch.bool), (x > 0.5).any(0))
    assert torch.equal(fold("fold_all(a < 0.5, 4)", x, torch.bool), (x < 0.5).all(0))
    rows = f"spread(iota({batch}, 1, 1, int64), 4)"
    assert torch.equal(fold(f"fold_argmax(a, {rows}, 4)[1]", x, torch.int64), x.argmax(0))
    assert torch.equal(fold(f"fold_argmin(a, {rows}, 4)[1]", x, torch.int64), x.argmin(0))
    assert torch.equal(fold(f"fold_argmin(a, {rows}, 4)[0]", x, x.dtype), x.amin(0))


def test_repeat_spread_and_chunk_mask() -> None:
    x = torch.arange(6, dtype=torch.float32)
    a = torch.tensor([4.0, 5.0])
    assert torch.equal(evaluate("a + repeat(b, 3)", x, a), x + a.repeat(3))
    assert torch.equal(evaluate("a + spread(b, 3)", x, a), x + a.repeat_interleave(3))
    got = evaluate("chunk_mask(5, 3, 4, 2)", x, result=torch.bool)
    assert got.tolist() == [True, True, True, True, False, False]


def test_tile_sum_adds_adjacent_pairs() -> None:
    x = torch.tensor([1e8, 1.0, -1e8, 1.0, 3.0])
    by_pairs = ((x[0] + x[1]) + (x[2] + x[3])) + x[4]
    assert evaluate("tile_sum(a)", x)[0] == by_pairs


def test_ties_give_the_smaller_index() -> None:
    x = torch.tensor([1.0, 3.0, 3.0, NAN, NAN])
    assert evaluate("tile_argmax(a, 9 - iota(5, 1, 1, int32))[1]", x, result=torch.int32)[0] == 5
    assert evaluate("tile_argmax(a, 9 - iota(3, 1, 1, int32))[1]", x[:3], result=torch.int32)[0] == 7
    assert evaluate("tile_argmin(a, 9 - iota(3, 1, 1, int32))[0]", x[:3])[0] == 1.0


@pytest.mark.parametrize("width", [1, 2, 8, 32])
@pytest.mark.parametrize("order", ["forward", "reversed", 7])
def test_warp_reductions(width: int, order: str | int) -> None:
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(64, 2, generator=generator)
    names = ["warp_sum", "warp_prod", "warp_max", "warp_min"]
    out = torch.zeros(len(names), 64, 2)
    flags = torch.zeros(2, 64, 2, dtype=torch.bool)
    best, where = torch.zeros(2, 64, 2), torch.zeros(2, 64, 2, dtype=torch.int32)
    lines = ["i = thread_x() * 2", "t = load(x, i, None, 1, 2, 2)"]
    lines += [f"store(out, {128 * k} + i, None, {name}(t, {width}), 1, 2, 2)" for k, name in enumerate(names)]
    lines += [
        f"store(flags, i, None, warp_any(t > 1.0, {width}), 1, 2, 2)",
        f"store(flags, 128 + i, None, warp_all(t > -1.0, {width}), 1, 2, 2)",
        f"v, j = warp_argmax(t, full(2, thread_x(), int32), {width})",
        "store(best, i, None, v, 1, 2, 2)\nstore(where_, i, None, j, 1, 2, 2)",
        f"v, j = warp_argmin(t, full(2, thread_x(), int32), {width})",
        "store(best, 128 + i, None, v, 1, 2, 2)\nstore(where_, 128 + i, None, j, 1, 2, 2)",
    ]
    arguments = {"x": x, "out": out, "flags": flags, "best": best, "where_": where}
    run_body("\n".join(lines), arguments, threads=64, order=order)
    groups = x.view(64 // width, width, 2)

    def spread(values: torch.Tensor) -> torch.Tensor:
        return values[:, None].expand_as(groups).reshape(64, 2)

    torch.testing.assert_close(out[0], spread(groups.sum(1)))
    torch.testing.assert_close(out[1], spread(groups.prod(1)))
    assert torch.equal(out[2], spread(groups.amax(1)))
    assert torch.equal(out[3], spread(groups.amin(1)))
    assert torch.equal(flags[0], spread((groups > 1).any(1)))
    assert torch.equal(flags[1], spread((groups > -1).all(1)))
    starts = torch.arange(0, 64, width)[:, None]
    assert torch.equal(best[0], spread(groups.amax(1)))
    assert torch.equal(where[0].long(), spread(groups.argmax(1) + starts))
    assert torch.equal(best[1], spread(groups.amin(1)))
    assert torch.equal(where[1].long(), spread(groups.argmin(1) + starts))


def test_warp_sum_is_the_butterfly_of_shuffles() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(32, generator=generator) * 10.0 ** torch.randint(-6, 6, (32,), generator=generator)
    out = torch.zeros(2, 32)
    body = """
        t = load(x, lane(), None, 1, 1, 1)
        store(out, lane(), None, warp_sum(t, 32), 1, 1, 1)
        for offset in (16, 8, 4, 2, 1):
            t = t + shuffle_xor(t, offset)
        store(out, 32 + lane(), None, t, 1, 1, 1)
        """
    run_body(body, {"x": x, "out": out}, threads=32)
    assert torch.equal(out[0], out[1])


def test_shuffles_move_every_dtype() -> None:
    for name in ("float32", "bfloat16", "int64", "boolean"):
        x = (torch.arange(32) % 5).to(DTYPES[name].torch)
        out = torch.zeros(3, 32, dtype=x.dtype)
        body = """
            t = load(x, lane(), None, 1, 1, 1)
            store(out, lane(), None, shuffle_xor(t, 5), 1, 1, 1)
            store(out, 32 + lane(), None, shuffle_down(t, 3), 1, 1, 1)
            store(out, 64 + lane(), None, shuffle_index(t, 9), 1, 1, 1)
            """
        run_body(body, {"x": x, "out": out}, threads=32)
        lanes = torch.arange(32)
        assert torch.equal(out[0], x[lanes ^ 5])
        assert torch.equal(out[1], x[torch.where(lanes + 3 < 32, lanes + 3, lanes)])
        assert torch.equal(out[2], x[[9] * 32])


def test_shared_arrays_are_one_a_call_site() -> None:
    out = torch.zeros(64, dtype=torch.int32)
    body = """
        for turn in range(3):
            a, b = shared(int32, 64), shared(int32, 64)
            shared_store(a, thread_x(), full(1, thread_x() + turn, int32))
            shared_store(b, thread_x(), full(1, 1000 * turn, int32))
            barrier()
            total = shared_load(a, 63 - thread_x(), 1) + shared_load(b, thread_x() ^ 1, 1)
            barrier()
        store(out, thread_x(), None, total, 1, 1, 1)
        """
    for order in ("forward", "reversed", 1):
        run_body(body, {"out": out.zero_()}, threads=64, order=order)
        assert out.tolist() == [63 - t + 2 + 2000 for t in range(64)]


def test_shared_holds_16_bit_floats_in_vectors() -> None:
    x = torch.randn(64, 8).bfloat16()
    out = torch.zeros_like(x)
    body = """
        s = shared(bfloat16, 512)
        shared_store(s, thread_x() * 8, load(x, thread_x() * 8, None, 1, 8, 8))
        barrier()
        store(out, thread_x() * 8, None, shared_load(s, (63 - thread_x()) * 8, 8), 1, 8, 8)
        """
    run_body(body, {"x": x, "out": out}, threads=64)
    assert torch.equal(out, x.flip(0))


def test_dynamic_shared_views_one_memory() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    body = """
        shared_store(dynamic_shared(float32), 4, full(4, 1.0, float32))
        store(out, 0, None, shared_load(dynamic_shared(int32), 4, 4), 1, 4, 4)
        """
    run_body(body, {"out": out}, dynamic_smem_bytes=32)
    assert out.tolist() == [0x3F800000] * 4


def test_scalar_arguments() -> None:
    out = torch.zeros(3, dtype=torch.float64)
    body = """
        if flag:
            store(out, 0, None, full(1, scale * 2.0, float64), 1, 1, 1)
        store(out, 1, None, cast(n + 1, float64), 1, 1, 1)
        store(out, 2, None, True, 1, 1, 1)
        """
    run_body(body, {"out": out, "flag": True, "scale": 0.1, "n": 2**40})
    assert out.tolist() == [0.2, 2.0**40 + 1, 1.0]


def test_cooperative_blocks_are_live_together() -> None:
    out = torch.zeros(4)
    body = "barrier()\nstore(out, block_x() * 2 + thread_x(), None, 1.0, 1, 1, 1)"
    run_body(body, {"out": out}, threads=2, grid=(2, 1, 1), cooperative=True)
    assert out.tolist() == [1.0] * 4
