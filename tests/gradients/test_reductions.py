# SPDX-License-Identifier: Apache-2.0
"""Derivatives of reductions, over any dims, with ties, zeros, NaN and empty dims."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.gradients.helpers import check, check_call, leaf

DIMS = [None, 0, -1, (0, 2), (1,), (0, 1, 2)]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("name", "sum mean var std var_mean std_mean logsumexp nansum nanmean".split())
def test_over_dims(name: str, dims: Any, keepdim: bool) -> None:
    if name == "logsumexp" and dims is None:
        dims = (0, 1, 2)
    check_call(getattr(torch, name), leaf(3, 4, 5), dim=dims, keepdim=keepdim)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [(), 0, -1, (0, 2), (1,)], ids=str)
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extrema_share_among_ties(name: str, dims: Any, keepdim: bool) -> None:
    values = torch.randint(0, 3, (3, 4, 5)).double().requires_grad_()
    check_call(getattr(torch, name), values, dim=dims, keepdim=keepdim)


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extrema_of_nan_and_infinities(name: str) -> None:
    inf, nan = float("inf"), float("nan")
    values = torch.tensor([[1.0, nan, 2.0], [inf, 1.0, inf], [-inf, -inf, 0.0]], dtype=torch.float64)
    check_call(getattr(torch, name), values.requires_grad_(), dim=1)


def test_indices_carry_no_gradient() -> None:
    made = check_call(torch.max, leaf(3, 5), dim=1)
    assert made.differentiable == (True, False)


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_prod(zeros: int) -> None:
    values = torch.randn(4, 5, dtype=torch.float64)
    values[0, :zeros] = 0.0
    check_call(torch.prod, values.clone().requires_grad_(), dim=1)
    check_call(torch.prod, values.clone().requires_grad_(), dim=0, keepdim=True)
    check_call(torch.prod, values.clone().requires_grad_())


@pytest.mark.parametrize("order", [1, 2, 3, 2.5, float("inf"), -float("inf")])
def test_norms(order: float) -> None:
    check_call(torch.linalg.vector_norm, leaf(3, 5), order, dim=1)
    check_call(torch.linalg.vector_norm, leaf(3, 4, 5), order, dim=(0, 2), keepdim=True)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_norm_of_zeros(order: float) -> None:
    values = torch.randn(3, 5, dtype=torch.float64)
    values[1] = 0.0
    check_call(torch.linalg.vector_norm, values.requires_grad_(), order, dim=1)


def test_std_of_equal_values() -> None:
    values = torch.randn(3, 5, dtype=torch.float64)
    values[1] = 2.0
    check_call(torch.std, values.requires_grad_(), dim=1)


def test_normalize() -> None:
    check_call(F.normalize, leaf(4, 6), dim=1)


@pytest.mark.parametrize("correction", [0, 1, 2])
def test_correction(correction: int) -> None:
    check_call(torch.var, leaf(4, 6), dim=1, correction=correction)


def test_empty() -> None:
    check_call(torch.sum, leaf(5, 0), dim=1)
    check_call(torch.sum, leaf(0, 5), dim=1)
    check_call(torch.mean, leaf(0, 5), dim=1)


def test_of_one_element() -> None:
    check_call(torch.sum, leaf())
    check_call(torch.var, leaf(1, 1, 6), dim=(0, 2))
    check_call(torch.amax, leaf(1, 6), dim=0)


def test_nan_is_left_out() -> None:
    values = torch.tensor([[1.0, float("nan"), 2.0], [float("nan")] * 3], dtype=torch.float64, requires_grad=True)
    check_call(torch.nansum, values, dim=1)


def test_several_reductions_of_one_tensor() -> None:
    def several(x, w):
        return (x * w).sum(0), (x * x).mean(), x.amax(1) - x.sum(1), (x.sum(0) * w).exp()

    check(several, leaf(4, 6), leaf(6))


def test_logsumexp_of_infinities() -> None:
    inf = float("inf")
    values = torch.tensor([[-inf, 0.0, 1.0], [inf, 0.0, 1.0], [-inf, 3.0, -inf]], dtype=torch.float64)
    check_call(torch.logsumexp, values[2:].clone().requires_grad_(), dim=1)
    check_call(torch.logsumexp, values[:1].clone().requires_grad_(), dim=1)
