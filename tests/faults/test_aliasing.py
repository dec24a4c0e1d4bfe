# SPDX-License-Identifier: Apache-2.0
"""Results that share storage with arguments or with each other only where eager's do; in-place ops on arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl


def times_one(x: Tensor) -> Tensor:
    return x * 1


def plus_zero(x: Tensor) -> Tensor:
    return x + 0


def over_one(x: Tensor) -> Tensor:
    return x / 1


def cloned(x: Tensor) -> Tensor:
    return x.to(torch.float32).clone()


def no_dropout(x: Tensor) -> Tensor:
    return F.dropout(x, p=0.0, training=True) * 1.0


@pytest.mark.parametrize("function", [times_one, plus_zero, over_one, cloned, no_dropout])
def test_a_simplified_result_is_a_tensor_of_its_own(device: str, function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 5, device=device)
    kept = x.clone()
    y = fusedsl.fuse(function)(x)
    assert torch.equal(y, kept)
    y.add_(1)
    assert torch.equal(x, kept)


def test_the_identity_returns_its_argument(device: str) -> None:
    def identity(x: Tensor) -> Tensor:
        return x

    x = torch.randn(4, device=device)
    assert fusedsl.fuse(identity)(x) is x


def test_equal_outputs_do_not_share_storage(device: str) -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 2

    def once(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y

    x = torch.ones(4, device=device)
    one, two = fusedsl.fuse(twice)(x)
    one.add_(1)
    assert two.tolist() == [2.0] * 4
    one, two = fusedsl.fuse(once)(x)
    one.add_(1)
    assert two.tolist() == [3.0] * 4


def test_in_place_ops_on_overlapping_arguments(device: str) -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a.exp_() * b.tanh_()

    x = torch.zeros(2, 2, device=device)
    try:
        y = fusedsl.fuse(f)(x, x[0, 0])
    except fusedsl.FuseError as error:
        assert "exp_" in str(error)
        assert torch.equal(x, torch.zeros(2, 2, device=device))
        return
    torch.testing.assert_close(y.cpu(), torch.tensor([[0.58002, 0.76159], [0.76159, 0.76159]]), rtol=0, atol=1e-4)


def test_in_place_ops_on_intermediates_are_rebinding(device: str) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        y *= x
        return y.relu_()

    x = torch.randn(4, 5, device=device)
    kept = x.clone()
    torch.testing.assert_close(fusedsl.fuse(f)(x), f(x))
    assert torch.equal(x, kept)
