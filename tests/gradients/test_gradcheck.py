# SPDX-License-Identifier: Apache-2.0
"""``torch.autograd.gradcheck`` of fused functions in float64: kernels against finite differences of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from tests.gradients.helpers import leaf
from tests.gradients.test_elementary import ACTIVATIONS, ANYWHERE, SPECIAL


def unary(function: Callable[..., Tensor]) -> Any:
    @fusedsl.fuse
    def call(x: Tensor) -> Tensor:
        return function(x)

    return call


def binary(function: Callable[..., Tensor]) -> Any:
    @fusedsl.fuse
    def call(x: Tensor, y: Tensor) -> Tensor:
        return function(x, y)

    return call


def check(fn: Any, *args: Tensor) -> None:
    assert torch.autograd.gradcheck(fn, args)
    assert torch.autograd.gradgradcheck(fn, args, fast_mode=True)


@pytest.mark.parametrize("case", [c for c in ANYWHERE if not c.startswith(("angle", "round", "sign", "nan_to_num"))])
def test_function(case: str) -> None:
    """Steps (``floor``) have the gradient 0, which finite differences see too where no step is near."""
    name, low, high = case.split(":")
    check(unary(getattr(torch, name)), leaf(5, low=float(low), high=float(high)))


@pytest.mark.parametrize("case", SPECIAL)
def test_special_function(case: str) -> None:
    name, low, high = case.split(":")
    check(unary(getattr(torch.special, name)), leaf(5, low=float(low), high=float(high)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    check(unary(getattr(F, name)), leaf(5, low=-4.0, high=4.0))


BINARY = "add sub mul div pow fmod remainder atan2 hypot copysign maximum minimum fmax fmin logaddexp logaddexp2 xlogy"


@pytest.mark.parametrize("name", BINARY.split())
def test_function_of_two(name: str) -> None:
    check(binary(getattr(torch, name)), leaf(2, 3, low=0.2, high=2.0), leaf(3, low=0.5, high=1.5))


REDUCTIONS = "sum mean prod amax amin var std logsumexp softmax log_softmax norm"


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", REDUCTIONS.split())
def test_reduction(name: str, dim: int) -> None:
    function = getattr(torch, name)

    @fusedsl.fuse
    def call(x: Tensor) -> Tensor:
        return function(x, dim=dim)

    assert torch.autograd.gradcheck(call, leaf(3, 4, low=0.2, high=2.0))
    if name != "prod":  # which has first derivatives only
        assert torch.autograd.gradgradcheck(call, leaf(3, 4, low=0.2, high=2.0), fast_mode=True)


def test_losses() -> None:
    @fusedsl.fuse
    def losses(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            F.mse_loss(x, y),
            F.smooth_l1_loss(x, y),
            F.huber_loss(x, y, delta=0.7),
            F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
            F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
        )

    check(losses, leaf(2, 3), leaf(2, 3))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing: float) -> None:
    target = torch.tensor([0, 3, -100])

    @fusedsl.fuse
    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, label_smoothing=smoothing)

    check(loss, leaf(3, 4))


def test_norms() -> None:
    @fusedsl.fuse
    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), weight, bias)

    @fusedsl.fuse
    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)

    @fusedsl.fuse
    def column_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, 0, correction=0)
        return (x - mean) * torch.rsqrt(var + 1e-5) * weight + bias

    check(layer_norm, leaf(3, 4), leaf(4), leaf(4))
    check(rms_norm, leaf(3, 4), leaf(4))
    check(column_norm, leaf(4, 3), leaf(3), leaf(3))


@pytest.mark.parametrize("dims", [1, 0])
def test_similarities(dims: int) -> None:
    @fusedsl.fuse
    def cosine(x: Tensor, y: Tensor) -> Tensor:
        return F.cosine_similarity(x, y, dim=dims)

    @fusedsl.fuse
    def distance(x: Tensor, y: Tensor) -> Tensor:
        return F.pairwise_distance(x, y)

    @fusedsl.fuse
    def normalize(x: Tensor) -> Tensor:
        return F.normalize(x, dim=dims)

    check(cosine, leaf(3, 4), leaf(3, 4))
    check(distance, leaf(3, 4), leaf(3, 4))
    check(normalize, leaf(3, 4))


def test_views_and_broadcasts() -> None:
    @fusedsl.fuse
    def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.t() * y.expand(4, 3).sin(), x.sum(1).unsqueeze(0) + y, x.t(), y.expand(2, 3), y.expand(4, 3)

    check(views, leaf(3, 4), leaf(1, 3))


def test_an_eager_call_inside() -> None:
    @fusedsl.fuse
    def product(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(F.linear(x * 2, w) + b)

    check(product, leaf(3, 4), leaf(2, 4), leaf(2))


def test_branches() -> None:
    @fusedsl.fuse
    def branches(x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.log(x.abs() + 1), x * 3).clamp(-2.0, 1.0)

    check(branches, leaf(5))


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 2, 2)])
def test_batch_norm_in_training(shape: tuple[int, ...]) -> None:
    """The running statistics change with every call, the gradients do not depend on them."""
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    @fusedsl.fuse
    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.batch_norm(x, mean, var, weight, bias, training=True, momentum=0.3)

    check(norm, leaf(*shape), leaf(3, low=0.5, high=2.0), leaf(3))
    assert mean.any()


def test_instance_norm_with_running_statistics() -> None:
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    @fusedsl.fuse
    def norm(x: Tensor) -> Tensor:
        return F.instance_norm(x, mean, var)

    check(norm, leaf(2, 3, 4))
