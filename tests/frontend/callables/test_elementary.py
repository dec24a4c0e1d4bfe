# SPDX-License-Identifier: Apache-2.0
"""Functions of one tensor, over every dtype, with NaN, infinities and zeros of both signs."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

from tests.frontend.callables.support import ALL, FLOATS, Runtime, check, check_method, special

UNARY = """
abs absolute acos acosh angle arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh bitwise_not
ceil clone conj conj_physical cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 fix floor frac isfinite
isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 logical_not logit nan_to_num neg negative
positive rad2deg reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc
""".split()
SPECIAL = "digamma entr erf erfc erfinv exp2 expit expm1 gammaln log1p logit ndtr psi round sinc".split()
FUNCTIONAL = """
celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu sigmoid
silu softplus softshrink softsign tanh tanhshrink
""".split()


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", UNARY)
def test_torch_function(name: str, dtype: torch.dtype) -> None:
    check(getattr(torch, name), special(dtype))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_function(name: str, dtype: torch.dtype) -> None:
    if name == "round" and not dtype.is_floating_point:
        pytest.skip("torch.round takes integers, torch.special.round does not")
    check(getattr(torch.special, name), special(dtype))


@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("isreal",)])
def test_method(name: str) -> None:
    check_method(name, special(torch.float32) if name != "bitwise_not" else special(torch.int32))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_activation(name: str, dtype: torch.dtype) -> None:
    x = special(dtype)
    if name in ("hardtanh", "relu6") and not dtype.is_floating_point:
        pytest.skip("left to eager torch")
    if name in ("gelu", "mish", "hardswish", "silu", "hardsigmoid", "softsign") and dtype.is_floating_point:
        x = torch.where(torch.isinf(x), torch.full_like(x, 7.0), x)  # vectorised CPU code differs at infinities
    check(getattr(F, name), x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_activation_options(dtype: torch.dtype) -> None:
    x = special(dtype)
    finite = torch.nan_to_num(x, posinf=30.0, neginf=-30.0)
    check(F.gelu, finite, approximate="tanh")
    check(F.elu, x, 0.7)
    check(F.celu, x, alpha=0.7)
    check(F.leaky_relu, x, 0.2)
    check(F.softplus, finite, beta=2.0, threshold=5.0)
    check(F.softplus, finite, Runtime(2.0))
    check(F.hardtanh, x, -0.5, 0.25)
    check(F.hardshrink, x, 0.25)
    check(F.softshrink, x, 0.25)
    check(F.threshold, x, 0.1, 20.0)
    check(F.rrelu, x, 0.1, 0.3)
    check(F.prelu, x, torch.tensor([0.25], dtype=dtype))
    check(F.prelu, x, torch.linspace(0.1, 0.9, 6).to(dtype))
    check(F.prelu, special(dtype, (2, 3, 4)), torch.linspace(0.1, 0.9, 3).to(dtype))


@pytest.mark.parametrize("decimals", [0, 2, -1])
def test_round_decimals(decimals: int) -> None:
    check(torch.round, torch.tensor([1.005, 2.5, 3.5, -27.5, 123.456, float("nan")]), decimals=decimals)


def test_logit_eps_and_nan_to_num_values() -> None:
    x = torch.linspace(-0.5, 1.5, 11)
    check(torch.logit, x, 0.1)
    check(torch.nan_to_num, special(torch.float32), nan=7.0, posinf=9.0, neginf=-9.0)
    check(torch.nan_to_num, special(torch.float16), 1.0)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_mvlgamma(p: int) -> None:
    check(torch.mvlgamma, torch.linspace(2.1, 9.0, 13), p)


def test_python_operators_of_one_operand() -> None:
    check(operator.neg, special(torch.float32))
    check(operator.pos, special(torch.float32))
    check(operator.invert, special(torch.int32))
    check(operator.invert, special(torch.bool))
    check(abs, special(torch.float64))


def test_relu_keeps_nan() -> None:
    built = check(F.relu, torch.tensor([float("nan"), -1.0, 2.0]))
    assert built is not None
    assert torch.isnan(built.run()[0][0])


def test_subnormals_survive() -> None:
    built = check(F.silu, torch.tensor([1e-40, -1e-40]))
    assert built is not None
    assert (built.run()[0] != 0).all()


def test_zero_dim_and_empty() -> None:
    check(torch.exp, torch.tensor(0.5))
    check(torch.exp, torch.tensor(2))
    check(F.gelu, torch.zeros(0, 3))
