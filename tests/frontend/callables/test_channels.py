# SPDX-License-Identifier: Apache-2.0
"""Norms over channels, and similarities, against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.callables import OpError, lookup
from tests.frontend.callables.support import FLOATS, Runtime, build, check, plain
from tests.frontend.tracing import check as check_trace
from tests.frontend.tracing import traced

SHAPES = [(3, 8, 5, 4), (2, 8, 6), (1, 8, 1, 9), (2, 8, 3, 2, 2)]


def _parameters(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(plain(dtype, (8,), seed=k) for k in (1, 2, 3)) + (torch.linspace(0.1, 2, 8).to(dtype),)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_group_and_instance_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, (weight, bias, *_) = plain(dtype, shape), _parameters(dtype)
    for groups in (1, 2, 8):
        check(F.group_norm, x, groups, scale=4)
        check(F.group_norm, x, groups, weight, bias, Runtime(1e-3), scale=4)
        check(F.group_norm, x, groups, weight, scale=4)
    check(F.instance_norm, x, scale=4)
    check(F.instance_norm, x, weight=weight, bias=bias, eps=1e-3, scale=4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [*SHAPES, (6, 8)])
def test_batch_norm_with_given_statistics(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, (weight, bias, mean, variance) = plain(dtype, shape), _parameters(dtype)
    check(F.batch_norm, x, mean, variance, scale=4)
    check(F.batch_norm, x, mean, variance, weight, bias, scale=4)
    if len(shape) > 2:
        check(F.instance_norm, x, mean, variance, weight, bias, use_input_stats=False, scale=4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [*SHAPES, (6, 8)])
def test_batch_norm_with_statistics_of_the_batch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, (weight, bias, *_) = plain(dtype, shape), _parameters(dtype)
    check(F.batch_norm, x, None, None, training=True, scale=4)
    check(F.batch_norm, x, None, None, weight, bias, True, eps=Runtime(1e-3), scale=4)
    check(torch.batch_norm, x, weight, bias, None, None, True, 0.1, 1e-3, False, scale=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [*SHAPES, (6, 8)])
@pytest.mark.parametrize("momentum", [0.25, 1.0])
def test_running_statistics(shape: tuple[int, ...], dtype: torch.dtype, momentum: float) -> None:
    (_, _, mean, variance), x = _parameters(dtype), plain(dtype, shape)

    def batch(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean, variance, training=True, momentum=momentum)

    def instance(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return F.instance_norm(x, mean, variance, momentum=momentum)

    assert len(check_trace(batch, x, mean.clone(), variance.clone()).updates) == 2
    assert all(node.op != "opaque" for node in traced(batch, x, mean, variance).graph)
    if len(shape) > 2:
        check_trace(instance, x, mean.clone(), variance.clone())


def test_one_running_statistic() -> None:
    def norm(x: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, variance, training=True)

    x, variance = plain(torch.float32, (6, 8)), torch.linspace(0.1, 2, 8)
    (update,) = traced(norm, x, variance).updates
    assert update.input == 1


def test_wrong_calls() -> None:
    x, weight = plain(torch.float32, (2, 8, 3)), plain(torch.float32, (8,))
    with pytest.raises(OpError, match="8 channels do not split into 3 groups"):
        build(lookup(F.group_norm), x, 3)
    with pytest.raises(OpError, match="weight has shape"):
        build(lookup(F.group_norm), x, 2, weight[:4])
    with pytest.raises(OpError, match="needs running_mean"):
        build(lookup(F.batch_norm), x, None, None)
    with pytest.raises(OpError, match="more than one element"):
        build(lookup(F.instance_norm), x[..., :1])
    with pytest.raises(OpError, match="Expected more than 1 value per channel when training, got input size \\(1, 8"):
        build(lookup(F.batch_norm), x[:1, :, :1], None, None, training=True)
    with pytest.raises(OpError, match="momentum=None"):
        build(lookup(F.batch_norm), x, None, None, training=True, momentum=None)
    with pytest.raises(OpError, match="running_var has shape"):
        build(lookup(F.batch_norm), x, weight, weight[:4], training=True)
    with pytest.raises(OpError, match="floating"):
        build(lookup(F.group_norm), x.long(), 2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_similarities(dtype: torch.dtype) -> None:
    x, y = plain(dtype, (3, 8, 5)), plain(dtype, (3, 8, 5), seed=9)
    for dim in (0, 1, -1):
        check(F.cosine_similarity, x, y, dim, scale=4)
    check(F.cosine_similarity, x, y[:, :1], dim=-1, scale=4)
    check(F.cosine_similarity, x * 0, y, eps=Runtime(1e-4))
    for order in (1.0, 2.0, 3.0):
        check(F.pairwise_distance, x, y, order, scale=4)
    check(F.pairwise_distance, x, y, keepdim=True, scale=4)
    check(F.normalize, x, scale=4)
