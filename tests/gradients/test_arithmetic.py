# SPDX-License-Identifier: Apache-2.0
"""Derivatives of functions of several tensors: broadcasting, numbers, ties, special points."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.frontend.callables.support import Runtime
from tests.gradients.helpers import check_call, leaf

SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (3, 4)), ((2, 3, 4), (3, 1)), ((1,), (1, 1))]
SHAPES += [((0, 4), (4,)), ((5, 1), (5, 0))]
BINARY = """
add sub mul div pow atan2 hypot remainder fmod copysign maximum minimum fmax fmin logaddexp logaddexp2 xlogy float_power
""".split()
POWERS = [0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.5, 2.5, *map(Runtime, (0.0, 0, 2, 1.0, -1.5))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_two_tensors(name: str, shapes: Any) -> None:
    a, b = (leaf(*shape, low=0.3, high=3.0) for shape in shapes)
    check_call(getattr(torch, name), a, b)


@pytest.mark.parametrize("name", BINARY)
def test_one_wants_no_gradient(name: str) -> None:
    check_call(getattr(torch, name), leaf(3, 4, low=0.3, high=3.0), leaf(4, low=0.3, high=3.0).detach())
    check_call(getattr(torch, name), leaf(3, 4, low=0.3, high=3.0).detach(), leaf(4, low=0.3, high=3.0))


@pytest.mark.parametrize("number", [2, 2.5, Runtime(2.5), Runtime(3)], ids=["int", "float", "runtime", "runtime_int"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "remainder", "fmod", "copysign", "xlogy"])
def test_tensor_and_number(name: str, number: Any) -> None:
    check_call(getattr(torch, name), leaf(3, 4, low=0.3, high=3.0), number)


@pytest.mark.parametrize("number", [2, 2.5, Runtime(2.5), Runtime(3)], ids=["int", "float", "runtime", "runtime_int"])
@pytest.mark.parametrize("name", ["pow", "rsub", "xlogy"])
def test_number_and_tensor(name: str, number: Any) -> None:
    args = (leaf(3, 4, low=0.3, high=3.0), number) if name == "rsub" else (number, leaf(3, 4, low=0.3, high=3.0))
    check_call(getattr(torch, name), *args)


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "hypot", "copysign", "logaddexp", "nextafter"])
def test_ties_and_special_values(name: str) -> None:
    a = torch.tensor([1.0, 2.0, -1.0, 0.5, float("nan"), 3.0, 2.0, -0.5], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.0, 1.0, -1.0, 2.0, 3.0, float("nan"), 2.0, -1.5], dtype=torch.float64, requires_grad=True)
    check_call(getattr(torch, name), a, b)


def test_logaddexp_of_infinities() -> None:
    inf = float("inf")
    a = torch.tensor([-inf, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.0, -inf, 0.0], dtype=torch.float64, requires_grad=True)
    check_call(torch.logaddexp, a, b)


@pytest.mark.parametrize("exponent", POWERS)
def test_power_at_zero_and_elsewhere(exponent: Any) -> None:
    check_call(torch.pow, torch.tensor([0.0, 0.5, 2.0, 3.0], dtype=torch.float64, requires_grad=True), exponent)


def test_power_of_tensors_at_zero() -> None:
    base = torch.tensor([0.0, 0.0, 0.0, 2.0, 3.0, -2.0], dtype=torch.float64, requires_grad=True)
    exponent = torch.tensor([0.0, 1.0, 2.5, 0.0, -1.5, 2.0], dtype=torch.float64, requires_grad=True)
    check_call(torch.pow, base, exponent)
    check_call(torch.pow, Runtime(0.0), exponent.detach().requires_grad_())


def test_clamp() -> None:
    numbers = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, float("nan"), float("inf")]
    values = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    check_call(torch.clamp, values, -1.0, 1.0)
    check_call(torch.clamp, values, min=0.0)
    check_call(torch.clamp, values, max=Runtime(0.5))


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_modes(mode: str | None) -> None:
    check_call(torch.div, leaf(3, 4), leaf(4, low=0.5, high=2.0), rounding_mode=mode)


def test_three_tensors() -> None:
    mask = torch.tensor([[True], [False], [True]])
    check_call(torch.where, mask, leaf(3, 4), leaf(4))
    check_call(torch.where, mask, leaf(3, 4), 0.5)
    check_call(torch.where, mask, 0.5, leaf(1))
    check_call(torch.addcmul, leaf(3, 4), leaf(4), leaf(3, 1), value=0.5)
    check_call(torch.addcdiv, leaf(3, 4), leaf(4), leaf(3, 1, low=0.5, high=2.0), value=0.5)
    check_call(torch.lerp, leaf(3, 4), leaf(4), 0.25)
    check_call(torch.lerp, leaf(3, 4), leaf(3, 4), leaf(3, 4, low=0.0, high=1.0))
    check_call(torch.masked_fill, leaf(3, 4), mask, 7.0)


def test_integers_carry_no_gradient() -> None:
    check_call(torch.mul, leaf(3, 4), torch.arange(4))
    check_call(torch.ldexp, leaf(3, 4), torch.arange(4))
