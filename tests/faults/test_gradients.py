# SPDX-License-Identifier: Apache-2.0
"""Faults of autograd that users of such libraries met: each with a case to try and the right result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl


@fusedsl.fuse
def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],))


@fusedsl.fuse
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


@fusedsl.fuse
def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


@fusedsl.fuse
def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


@fusedsl.fuse
def log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, -1)


@fusedsl.fuse
def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def leaf(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("rows", [65535, 65536, 65537])
@pytest.mark.gpu
def test_more_rows_than_a_grid_axis(rows: int, nan_memory: Any) -> None:
    """B04"""
    x = leaf(rows, 8, device="cuda")
    seed = torch.randn(rows, 8, device="cuda")
    nan_memory()
    (found,) = torch.autograd.grad(layer_norm(x), x, seed)
    torch.testing.assert_close(found, torch.autograd.grad(layer_norm.reference(x), x, seed)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", [softmax, layer_norm, gelu, log_softmax])
def test_an_expanded_incoming_gradient(device: str, fn: Any) -> None:
    """B08"""
    x = leaf(7, 33, device=device)
    y = fn(x)
    (expanded,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (dense,) = torch.autograd.grad(y, x, torch.ones_like(y))
    torch.testing.assert_close(expanded, dense, rtol=1e-6, atol=1e-6)
    if fn is softmax:
        assert float(expanded.abs().max()) < 1e-6


def test_empty_reductions(device: str) -> None:
    """B14"""

    @fusedsl.fuse
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * y).sum(1), (x + y).sum(0)

    x, y = leaf(5, 0, device=device), leaf(5, 0, device=device)
    rows, columns = both(x, y)
    assert torch.equal(rows, torch.zeros(5, device=device)) and columns.shape == (0,)
    found = torch.autograd.grad(rows.sum() + columns.sum(), (x, y))
    assert [g.shape for g in found] == [(5, 0), (5, 0)]


def test_all_targets_ignored(device: str) -> None:
    """B28: the loss is NaN, its gradient 0."""
    logits = leaf(3, 5, device=device)
    loss = cross_entropy(logits, torch.full((3,), -100, device=device))
    assert torch.isnan(loss)
    assert torch.equal(torch.autograd.grad(loss, logits)[0], torch.zeros(3, 5, device=device))


@pytest.mark.parametrize("rows", [128, 2048])
def test_weight_gradients_are_summed_in_float32(device: str, rows: int) -> None:
    """B32"""
    x = (1 + torch.randn(rows, 16, device=device) * 1e-2).bfloat16().requires_grad_()
    weight = torch.ones(16, device=device, dtype=torch.bfloat16, requires_grad=True)
    seed = torch.ones(rows, 16, device=device, dtype=torch.bfloat16)
    (found,) = torch.autograd.grad(rms_norm(x, weight), weight, seed)
    wide = weight.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(rms_norm.reference(x.detach().double(), wide), wide, seed.double())
    assert float(((found.double() - expected) / expected).abs().max()) < 2**-8


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_bfloat16(device: str, approximate: str) -> None:
    """B35: at most one step of bfloat16 from float64, and exact far out."""

    @fusedsl.fuse
    def call(x: Tensor) -> Tensor:
        return F.gelu(x, approximate=approximate)

    x = torch.linspace(-6, 6, 1000, device=device).bfloat16()
    x = torch.cat([x, torch.tensor([-1e4, -200.0, 200.0, 1e4], device=device).bfloat16()]).requires_grad_()
    (found,) = torch.autograd.grad(call(x), x, torch.ones_like(x))
    wide = x.detach().double().cpu().requires_grad_()
    (expected,) = torch.autograd.grad(F.gelu(wide, approximate=approximate).sum(), wide)
    rounded = expected.bfloat16()
    step = (found.cpu().double() - rounded.double()).abs() / torch.exp2(
        rounded.double().abs().clamp_min(2.0**-20).log2().floor() - 7
    )
    assert float(step.max()) <= 1.0
    assert found[-4:].tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("fill", [float("nan"), float("inf")])
def test_lanes_beyond_the_row(device: str, fill: float) -> None:
    """B41: log_softmax backward on a view into a buffer of NaN."""
    buffer = torch.full((1, 512), fill, device=device)
    buffer[:, :100] = torch.randn(1, 100, device=device)
    x = buffer[:, :100].requires_grad_()
    seed = torch.full((1, 512), fill, device=device)
    seed[:, :100] = torch.randn(1, 100, device=device)
    (found,) = torch.autograd.grad(log_softmax(x), x, seed[:, :100])
    expected = torch.autograd.grad(log_softmax.reference(x), x, seed[:, :100])
    torch.testing.assert_close((found,), expected)


def test_inputs_are_not_written(device: str) -> None:
    """B70"""
    logits = torch.tensor([[0.2, 0.5], [1.0, -1.0]], device=device, requires_grad=True)
    probabilities = torch.softmax(logits, -1)
    before = probabilities.detach().clone()
    loss = cross_entropy(probabilities, torch.tensor([0, 1], device=device))
    loss.backward()
    assert torch.equal(probabilities, before)
    expected = torch.tensor([[-0.1313, 0.1313], [0.0716, -0.0716]], device=device)
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("fn", [gelu, softmax, layer_norm])
def test_double_backward(device: str, fn: Any) -> None:
    """B71"""
    x = torch.tensor([[0.3, -1.0, 2.0]], device=device, dtype=torch.float64, requires_grad=True)
    seed = torch.tensor([[1.0, 2.0, -1.0]], device=device, dtype=torch.float64)

    def second(call: Any) -> Tensor:
        (first,) = torch.autograd.grad((call(x) * seed).sum(), x, create_graph=True)
        return torch.autograd.grad((first * first).sum(), x)[0]

    torch.testing.assert_close(second(fn), second(fn.reference))


def test_second_derivative_of_gelu(device: str) -> None:
    """B71: the number."""
    x = torch.tensor(0.3, device=device, requires_grad=True)
    (first,) = torch.autograd.grad(gelu(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert float(second) == pytest.approx(0.7285, abs=1e-4)


def test_frozen_weights_cost_nothing(device: str) -> None:
    """B73"""
    x, weight = leaf(6, 16, device=device), torch.randn(16, device=device)
    (found,) = torch.autograd.grad(rms_norm(x, weight).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(rms_norm.reference(x, weight).sum(), x)[0])
    assert weight.grad is None
    explained = rms_norm.explain(x, weight, backward=True)
    assert explained.backward is not None
    assert [explained.backward.graph[i].name for i in explained.backward.graph.outputs] == ["grad_x"]
    trainable = rms_norm.explain(x, weight.clone().requires_grad_(), backward=True)
    assert trainable.backward is not None
    assert len(trainable.backward.graph.outputs) == 2
    assert len(trainable.backward.graph.nodes) > len(explained.backward.graph.nodes)


def test_gradients_of_broadcast_operands(device: str) -> None:
    """B74"""

    @fusedsl.fuse
    def once(x: Tensor, s: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return ((x * s + b) + c).sum()

    @fusedsl.fuse
    def twice(x: Tensor, s: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return ((x * s + b) + c + b).sum()

    x = torch.ones(3, 4, device=device)
    s = torch.tensor(2.0, device=device, requires_grad=True)
    b, c = leaf(1, 4, device=device), leaf(4, device=device)
    found = torch.autograd.grad(once(x, s, b, c), (s, b, c))
    assert [g.tolist() for g in found] == [12.0, [[3.0] * 4], [3.0] * 4]
    assert torch.autograd.grad(twice(x, s, b, c), b)[0].tolist() == [[6.0] * 4]
