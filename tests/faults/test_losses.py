# SPDX-License-Identifier: Apache-2.0
"""Targets that torch ignores, and targets that are no class."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl


@fusedsl.fuse
def losses(x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    mean = F.cross_entropy(x, target)
    return mean, F.cross_entropy(x, target, reduction="sum"), F.cross_entropy(x, target, reduction="none")


def test_every_target_ignored(device: str) -> None:
    x, target = torch.randn(3, 5, device=device), torch.full((3,), -100, device=device)
    mean, total, rows = losses(x, target)
    assert bool(mean.isnan()) and float(total) == 0 and rows.tolist() == [0, 0, 0]


@pytest.mark.parametrize("wrong", [5, -4, 2**31, 2**32, -(2**63), 2**63 - 1])
def test_a_target_outside_the_classes_is_never_a_finite_loss(device: str, wrong: int) -> None:
    x, target = torch.randn(3, 5, device=device), torch.tensor([0, wrong, 1], device=device)
    mean, total, rows = losses(x, target)
    assert rows.isnan().tolist() == [False, True, False]
    assert bool(mean.isnan()) and bool(total.isnan())
    right = F.cross_entropy(x, target.clamp(0, 4), reduction="none")
    torch.testing.assert_close(rows[::2], right[::2])


@pytest.mark.parametrize("ignored", [False, True])
def test_gradient_of_the_mean(device: str, ignored: bool) -> None:
    @fusedsl.fuse
    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target)

    x = torch.randn(3, 5, device=device, requires_grad=True)
    target = torch.tensor([-100, -100 if ignored else 4, -100], device=device)
    (found,) = torch.autograd.grad(loss(x, target), x)
    (wanted,) = torch.autograd.grad(F.cross_entropy(x, target), x)
    torch.testing.assert_close(found, wanted)
    assert bool((found == 0).all()) is ignored
