# SPDX-License-Identifier: Apache-2.0
"""Binary arithmetic over pairs of dtypes, numbers and host scalars; promotion; broadcasting."""

from __future__ import annotations

import itertools
import math
import operator

import pytest
import torch

from fusedsl.frontend.callables import OpError, lookup
from tests.frontend.callables.support import ALL, FLOATS, INTS, Runtime, build, check, plain, special

F32, F64, F16, BF16 = FLOATS
PAIRS = [*itertools.product(ALL, ALL)]
ARITHMETIC = "add sub mul div true_divide floor_divide remainder fmod maximum minimum fmax fmin".split()
COMPARISONS = "eq ne lt le gt ge not_equal less less_equal greater greater_equal".split()
LOGIC = "logical_and logical_or logical_xor".split()
BITS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
FLOATING = "atan2 arctan2 hypot copysign logaddexp logaddexp2 xlogy heaviside pow float_power".split()
SCALARS = [2, 3.5, True, -1, 0.1, float("inf"), float("nan")]


def _positive(x: torch.Tensor) -> torch.Tensor:
    """No zero: integer division by zero is undefined; small, so that shifts and powers are defined."""
    if x.dtype is torch.bool:
        return torch.ones_like(x)
    return torch.where(x <= 0, torch.ones_like(x), x) if not x.dtype.is_floating_point else x


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_pairs(a: torch.dtype, b: torch.dtype) -> None:
    x, y = special(a), _positive(special(b, seed=1))
    for name in (*ARITHMETIC, *COMPARISONS, *LOGIC, *FLOATING):
        if name == "float_power" and torch.bool in (a, b):
            continue
        check(getattr(torch, name), x, y, scale=4)


@pytest.mark.parametrize(("a", "b"), [*itertools.product((*INTS, torch.bool, F32), (*INTS, torch.bool))])
def test_bits(a: torch.dtype, b: torch.dtype) -> None:
    x, y = special(a), _positive(special(b, seed=1))
    for name in BITS:
        check(getattr(torch, name), x, y)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", "add sub mul truediv floordiv mod eq ne lt le gt ge".split())
def test_operator_with_number(name: str, dtype: torch.dtype) -> None:
    function = getattr(operator, name)
    for number in SCALARS:
        skipped = (torch.bool, F16, BF16) if name in ("floordiv", "mod") else ()
        if (dtype is torch.uint8 and number == -1) or dtype in skipped:
            continue  # a quotient near an integer falls to either side
        check(function, special(dtype), number, scale=2)
        if math.isfinite(number):
            check(function, special(dtype), Runtime(number), scale=2)
        if name not in ("floordiv", "mod"):
            check(function, number, special(dtype), scale=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_number_over_tensor(dtype: torch.dtype) -> None:
    for function in (operator.floordiv, operator.mod, operator.truediv):
        check(function, 3.5, plain(dtype), scale=2)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 5, -1, -2, 0.5, -0.5, 1.5, 2.0, True])
def test_power(dtype: torch.dtype, exponent: float) -> None:
    if dtype.is_floating_point or exponent not in (0.5, -0.5, 1.5):
        # The CPU's half code takes pow(-inf, 0.5) for inf, CUDA and float32 take the square root.
        x = plain(dtype) if dtype is F16 else special(dtype)
        check(torch.pow, x, exponent, scale=4)
        check(operator.pow, plain(dtype), exponent, scale=4)
    if exponent >= 0 and type(exponent) is not bool:
        check(torch.pow, plain(dtype).abs() if dtype is not torch.bool else plain(dtype), Runtime(exponent), scale=4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_power_of_number(dtype: torch.dtype) -> None:
    check(torch.pow, 2.5, plain(dtype), scale=4)
    check(operator.pow, 2, plain(dtype), scale=4)
    check(torch.ldexp, plain(dtype), torch.tensor([-1, 0, 1, 2, 3, 4]))


def test_square_is_a_product() -> None:
    built = build(lookup(torch.pow), torch.ones(3), 2)
    assert [n.op for n in built.graph] == ["input", "mul"]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_rounding_mode(dtype: torch.dtype, mode: str | None) -> None:
    y = _positive(special(dtype, seed=2))
    if dtype.is_signed and not dtype.is_floating_point:
        y[0] = -y[0]
    check(torch.div, special(dtype), y, rounding_mode=mode)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
def test_alpha(dtype: torch.dtype) -> None:
    check(torch.add, plain(dtype), plain(dtype, seed=1), alpha=3, scale=2)
    check(torch.sub, plain(dtype), plain(dtype, seed=1), alpha=3, scale=2)
    check(torch.rsub, plain(dtype), plain(dtype, seed=1), alpha=3, scale=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_several_operands(dtype: torch.dtype) -> None:
    x, a, b = plain(dtype), plain(dtype, seed=1), plain(dtype, seed=2)
    check(torch.lerp, x, a, 0.3)
    check(torch.lerp, x, a, 0.7)
    check(torch.lerp, x, a, Runtime(0.3))
    check(torch.lerp, x, a, b)
    check(torch.addcmul, x, a, b)
    check(torch.addcmul, x, a, b, value=0.3, scale=2)
    check(torch.addcdiv, x, a, b + 3, value=0.3, scale=2)
    check(torch.isclose, x, x + 1e-6)
    check(torch.isclose, special(dtype), special(dtype), equal_nan=True)
    check(torch.special.xlog1py, x, b.abs())


@pytest.mark.parametrize("dtype", ALL)
def test_isclose(dtype: torch.dtype) -> None:
    check(torch.isclose, special(dtype), special(dtype, seed=1))
    check(torch.isclose, special(dtype), special(dtype), rtol=0.5, atol=1.0, equal_nan=True)


def test_nextafter() -> None:
    check(torch.nextafter, special(F32), special(F32, seed=3))
    assert build(lookup(torch.nextafter), special(BF16), special(BF16)) is NotImplemented


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 1), (3,)), ((1, 3), (0, 3)), ((), (4,)), ((2, 1, 4), (3, 1)), ((2, 3), (2, 3)), ((5, 1), (1, 7)), ((), ())],
)
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(torch.add, plain(F32, a), plain(F32, b, seed=1))
    check(torch.where, plain(F32, a) > 0, plain(F32, b), plain(F32, ()))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(OpError, match=r"\(2, 3\) and \(2, 4\)"):
        build(lookup(torch.add), plain(F32, (2, 3)), plain(F32, (2, 4)))


def test_zero_dim_tensors_rank_below_tensors() -> None:
    for dtype, other in itertools.product(ALL, ALL):
        check(operator.add, plain(dtype), plain(other, ()), scale=2)
        check(operator.mul, plain(dtype, ()), plain(other), scale=2)


def test_product_with_one_is_a_new_tensor() -> None:
    built = build(lookup(operator.mul), plain(F32), 1)
    assert built.outputs.id not in built.graph.inputs


def test_comparison_rounds_the_number() -> None:
    x = torch.tensor([0.1, 0.2], dtype=BF16)
    check(operator.eq, x, 0.1)
    check(operator.eq, x, Runtime(0.1))


def test_out_is_refused() -> None:
    with pytest.raises(OpError, match="out="):
        build(lookup(torch.add), plain(F32), plain(F32), out=plain(F32))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(OpError, match="nonsense"):
        build(lookup(torch.add), plain(F32), plain(F32), nonsense=1)
    with pytest.raises(OpError, match="rounding_mode"):
        build(lookup(torch.div), plain(F32), plain(F32), rounding_mode="up")
    with pytest.raises(OpError, match="list"):
        build(lookup(torch.add), plain(F32), [1.0])
