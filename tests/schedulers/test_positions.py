# SPDX-License-Identifier: Apache-2.0
"""Positions in kernels: rows, columns, split reductions, masks; lookups in a row; losses from end to end."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedsl
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def cross_entropy(x, target, weight=None, reduction="mean", label_smoothing=0.0):
    return F.cross_entropy(x, target, weight, reduction=reduction, label_smoothing=label_smoothing)


@fusedsl.fuse
def by_hand(x, target):
    return torch.logsumexp(x, -1) - x.gather(-1, target[:, None]).squeeze(-1)


@fusedsl.fuse
def causal_softmax(x):
    place = torch.arange(x.shape[-1], device=x.device)
    return torch.softmax(x.masked_fill(place[:, None] < place, float("-inf")), -1)


@fusedsl.fuse
def triangle(x):
    return torch.tril(x) * 2 + torch.triu(x, 1)


@fusedsl.fuse
def weighted_places(x):
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    columns = torch.arange(x.shape[1], device=x.device)
    return (x * rows).sum(0), (x * columns).sum(1)


@fusedsl.fuse
def weighted_total(x):
    return (x * torch.arange(x.shape[1], device=x.device)).sum((0, 1))


@fusedsl.fuse
def group_norm(x, weight, bias):
    return F.group_norm(x, 2, weight, bias)


def _targets(rows: int, classes: int, device: str) -> torch.Tensor:
    target = torch.randint(0, classes, (rows,), device=device)
    target[rows // 2] = -100
    return target


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 3, 8, 33, 100, 1000, 1024, 2056])
def test_cross_entropy(device, classes, dtype):
    x, target = torch.randn(5, classes, device=device).to(dtype), _targets(5, classes, device)
    for reduction in ("none", "mean", "sum"):
        assert_matches_eager(cross_entropy, x, target, reduction=reduction)
    weight = torch.rand(classes, device=device).to(dtype)
    assert_matches_eager(cross_entropy, x, target, weight, reduction="none", label_smoothing=0.1)
    assert_matches_eager(by_hand, x, target.clamp(0))


def test_cross_entropy_is_one_kernel_a_row(device):
    x, target = torch.randn(4, 64, device=device), _targets(4, 64, device)
    (segment,) = cross_entropy.explain(x, target, reduction="none").segments
    assert segment.scheduler == "inner_persistent"
    assert_matches_eager(cross_entropy, x, target, reduction="none")


def test_cross_entropy_over_a_middle_dim(device):
    x = torch.randn(2, 7, 3, 5, device=device)
    assert_matches_eager(cross_entropy, x, torch.randint(0, 7, (2, 3, 5), device=device))


@pytest.mark.parametrize("size", [2, 3, 8, 33, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_by_position(device, size, dtype):
    x = torch.randn(2, size, size, device=device).to(dtype)
    for program, name in ((causal_softmax, "inner_persistent"), (triangle, "pointwise")):
        (segment,) = program.explain(x).segments
        assert segment.scheduler == name
        assert_matches_eager(program, x)
    assert_matches_eager(triangle, x.transpose(0, 2).contiguous().transpose(0, 2))


@pytest.mark.parametrize("shape", [(3, 5), (64, 8), (300, 17), (2, 9000), (4000, 3), (1, 4), (4, 1)])
def test_positions_along_both_dims(device, shape):
    x = torch.randn(shape, device=device)
    assert_matches_eager(weighted_places, x)
    assert_matches_eager(weighted_total, x)
    assert_matches_eager(weighted_places, torch.randn(shape[::-1], device=device).t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 6, 5, 3), (1, 4, 16), (3, 8, 8, 8)])
def test_group_norm_is_one_kernel(device, shape, dtype):
    x = torch.randn(shape, device=device).to(dtype)
    weight, bias = torch.randn(2, shape[1], device=device).to(dtype)
    names = [segment.scheduler for segment in group_norm.explain(x, weight, bias).segments]
    assert [name for name in names if name != "eager"] == ["inner_persistent"]
    assert_matches_eager(group_norm, x, weight, bias)
