# SPDX-License-Identifier: Apache-2.0
"""Gradients of normalisations land in one pass over the rows, and are eager's."""

from __future__ import annotations

import attrs
import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.schedulers import inner_outer_persistent, outer_sums
from tests.tolerance import assert_within


@fusedsl.fuse
def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


@fusedsl.fuse
def rms_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight)


@fusedsl.fuse
def centred(x, y):
    row = x - x.mean(-1, keepdim=True)
    return row, (row * y).sum(0)


@fusedsl.fuse
def not_only_leaving(x):
    return x / x.sum(-1, keepdim=True) - x.sum(0)


def gradients(function, arguments, grad):
    leaves = [a.clone().requires_grad_() for a in arguments]
    function(*leaves).backward(grad)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [2, 7, 40, 64, 100, 520])
@pytest.mark.parametrize("rows", [17, 40])
def test_gradients_of_norms(device, rows, columns, dtype):
    x, grad = torch.randn(2, rows, columns, device=device).to(dtype)
    weight, bias = torch.randn(2, columns, device=device).to(dtype)
    for function, arguments in ((layer_norm, (x, weight, bias)), (rms_norm, (x, weight))):
        wanted = [a.clone().requires_grad_() for a in arguments]
        segments = function.explain(*wanted, backward=True).backward.segments
        assert [s.scheduler for s in segments] == ["inner_outer_persistent"]
        found = gradients(function, arguments, grad)
        eager = gradients(function.reference, arguments, grad)
        truth = gradients(function.reference, [a.double() for a in arguments], grad.double())
        for one, its_eager, its_truth in zip(found, eager, truth, strict=True):
            assert_within(one, its_eager, its_truth)
        again = gradients(function, arguments, grad)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("columns", [24, 100, 520])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_walks_over_rows(device, dtype, columns, blocks, monkeypatch):
    """Each row is loaded while the one before is reduced; partial results lie in two places in turns."""
    chosen = inner_outer_persistent.compute_heuristics
    monkeypatch.setattr(
        inner_outer_persistent, "compute_heuristics", lambda problem: attrs.evolve(chosen(problem), blocks=blocks)
    )
    x, grad = torch.randn(2, 17, columns, device=device).to(dtype)
    weight, bias = torch.randn(2, columns, device=device).to(dtype)
    for plain, arguments in ((layer_norm, (x, weight, bias)), (rms_norm, (x, weight))):
        function = fusedsl.fuse(plain.__wrapped__)
        wanted = [a.clone().requires_grad_() for a in arguments]
        (segment,) = function.explain(*wanted, backward=True).backward.segments
        assert segment.plan.launches[0].geometry.grid[0] == blocks
        found = gradients(function, arguments, grad)
        eager = gradients(function.reference, arguments, grad)
        truth = gradients(function.reference, [a.double() for a in arguments], grad.double())
        for one, its_eager, its_truth in zip(found, eager, truth, strict=True):
            assert_within(one, its_eager, its_truth)


def test_leading_dims_are_rows(device):
    x, grad = torch.randn(2, 3, 7, 24, device=device)
    weight, bias = torch.randn(2, 24, device=device)
    found = gradients(layer_norm, (x, weight, bias), grad)
    for one, expected in zip(found, gradients(layer_norm.reference, (x, weight, bias), grad), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)


def test_outer_sums_beside_a_forward_reduction(device):
    x, y = torch.randn(2, 20, 33, device=device)
    assert [s.scheduler for s in centred.explain(x, y).segments] == ["inner_outer_persistent"]
    for one, expected in zip(centred(x, y), centred.reference(x, y), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)


def test_refusals(device):
    x = torch.randn(20, 33, device=device)
    for segment in not_only_leaving.explain(x).segments:
        assert segment.scheduler != "inner_outer_persistent"
    torch.testing.assert_close(not_only_leaving(x), not_only_leaving.reference(x))
    few = torch.randn(3, 33, device=device)
    assert "inner_outer_persistent" not in [s.scheduler for s in centred.explain(few, few).segments]
    for one, expected in zip(centred(few, few), centred.reference(few, few), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)


@fusedsl.fuse
def only_sums(x):
    row = x - x.sum(-1, keepdim=True)
    return row.sum(0), (row * row).sum(0)


def test_nothing_of_a_row_is_stored(device):
    x = torch.randn(18, 21, device=device)
    assert [s.scheduler for s in only_sums.explain(x).segments] == ["inner_outer_persistent"]
    for one, expected in zip(only_sums(x), only_sums.reference(x), strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)


def many_sums(x, y, z):
    row = x - x.mean(-1, keepdim=True)
    return row, row.sum(0), (row * y).sum(0), (row.double() * z).sum(0), y.sum(0) * 2.0


def test_one_launch_adds_sums_whose_loops_agree(device, monkeypatch):
    x, y = torch.randn(2, 20, 36, device=device)
    z = x.double()
    expected = many_sums(x, y, z)
    for most, launches in ((16, 2), (3, 3), (1, 5)):
        monkeypatch.setattr(outer_sums, "MAX_SUMS", most)
        fused = fusedsl.fuse(many_sums)
        (segment,) = fused.explain(x, y, z).segments
        assert segment.scheduler == "inner_outer_persistent" and len(segment.plan.launches) == launches
        for one, its_expected in zip(fused(x, y, z), expected, strict=True):
            torch.testing.assert_close(one, its_expected, rtol=1e-4, atol=1e-5)
