# SPDX-License-Identifier: Apache-2.0
"""Derivatives of functions of one tensor against torch.autograd, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.gradients.helpers import check_call, leaf

ANYWHERE = """
sqrt:0.1:4 rsqrt:0.1:4 reciprocal:0.2:3 exp:-3:3 exp2:-3:3 expm1:-3:3 log:0.1:4 log2:0.1:4 log10:0.1:4
log1p:-0.9:4 sin:-4:4 cos:-4:4 tan:-1.4:1.4 asin:-0.95:0.95 acos:-0.95:0.95 atan:-4:4 sinh:-3:3 cosh:-3:3
tanh:-4:4 asinh:-4:4 acosh:1.1:5 atanh:-0.95:0.95 erf:-3:3 erfc:-3:3 erfinv:-0.95:0.95 lgamma:0.2:5
digamma:0.2:5 sigmoid:-5:5 abs:-2:2 neg:-2:2 square:-2:2 frac:-3:3 floor:-3:3 ceil:-3:3 trunc:-3:3 round:-3:3
sign:-3:3 clone:-2:2 deg2rad:-9:9 rad2deg:-9:9 sinc:-3:3 logit:0.05:0.95 nan_to_num:-3:3 positive:-2:2
relu:-2:2 angle:-2:2
""".split()
SPECIAL = "entr:0.1:3 ndtr:-3:3 expit:-4:4".split()
ACTIVATIONS = """
celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu sigmoid silu softplus
softshrink softsign tanh tanhshrink
""".split()


@pytest.mark.parametrize("case", ANYWHERE)
def test_function(case: str) -> None:
    name, low, high = case.split(":")
    check_call(getattr(torch, name), leaf(3, 17, low=float(low), high=float(high)))


@pytest.mark.parametrize("case", SPECIAL)
def test_special_function(case: str) -> None:
    name, low, high = case.split(":")
    check_call(getattr(torch.special, name), leaf(3, 17, low=float(low), high=float(high)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    # torch keeps the 1/6 of hardsigmoid in float32.
    check_call(getattr(F, name), leaf(3, 40, low=-8.0, high=8.0), rtol=1e-7 if name == "hardsigmoid" else 1e-9)


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n != "gelu"])
def test_activation_of_large_values(name: str) -> None:
    """No infinite intermediate leaves a NaN."""
    values = torch.tensor([-1e4, -800.0, -200.0, -50.0, -30.0, 30.0, 50.0, 200.0, 800.0, 1e4], dtype=torch.float64)
    check_call(getattr(F, name), values.requires_grad_(), atol=1e-9)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gelu_of_large_values_is_linear(approximate: str, dtype: torch.dtype) -> None:
    values = torch.tensor([-1e4, -200.0, 200.0, 1e4], dtype=dtype, requires_grad=True)
    check_call(F.gelu, values, approximate=approximate, rtol=0, atol=0)


SMOOTH = ["logsigmoid", "softplus", "elu", "celu", "selu", "silu", "mish", "gelu", "softsign", "tanhshrink"]


@pytest.mark.parametrize("name", SMOOTH)
def test_activation_at_zero(name: str) -> None:
    check_call(getattr(F, name), torch.zeros(3, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("name", ["abs", "sign", "sqrt", "rsqrt", "log", "reciprocal", "sinc", "frac", "nan_to_num"])
def test_special_points(name: str) -> None:
    values = torch.tensor([0.0, -0.0, float("inf"), 1.0, float("nan")], dtype=torch.float64)
    check_call(getattr(torch, name), values.requires_grad_())


def test_gelu_options() -> None:
    check_call(F.gelu, leaf(50, low=-6.0, high=6.0), approximate="tanh")
    check_call(F.softplus, leaf(50, low=-6.0, high=6.0), beta=2.0, threshold=5.0)
    check_call(F.elu, leaf(50, low=-6.0, high=6.0), 0.7)
    check_call(F.leaky_relu, leaf(50, low=-6.0, high=6.0), 0.2)
    check_call(F.threshold, leaf(50, low=-1.0, high=1.0), 0.1, 20.0)
    check_call(F.hardtanh, leaf(50, low=-1.0, high=1.0), -0.5, 0.25)
    check_call(F.prelu, leaf(2, 3, 4), leaf(3))
    check_call(F.prelu, leaf(2, 3, 4), leaf(1))


KINKS = {"relu": [0.0], "relu6": [0.0, 6.0], "hardtanh": [-1.0, 1.0], "hardsigmoid": [-3.0, 3.0]}
KINKS |= {"hardswish": [-3.0, 3.0], "leaky_relu": [0.0], "elu": [0.0], "softshrink": [-0.5, 0.5]}


@pytest.mark.parametrize("name", KINKS)
def test_activation_at_its_kinks(name: str) -> None:
    values = torch.tensor(KINKS[name], dtype=torch.float64, requires_grad=True)
    check_call(getattr(F, name), values, rtol=1e-7)


def test_clamp_passes_the_gradient_at_its_bounds() -> None:
    check_call(torch.clamp, torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64, requires_grad=True), 0.0, 1.0)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_zero_times_a_logarithm(name: str) -> None:
    x = torch.tensor([0.0, 0.0, 0.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([2.0, -2.0, 0.5, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    check_call(getattr(torch.special, name), x, y)
