# SPDX-License-Identifier: Apache-2.0
"""A sum that picks one element of a row is a load: the right element, in every form, and nothing outside the row."""

from __future__ import annotations

import pytest
import torch

import fusedsl
from fusedsl.schedulers import inner_persistent
from fusedsl.schedulers.picks import find_picks
from fusedsl.schedulers.row_params import RowParams
from fusedsl.schedulers.space import iteration_space
from tests.tolerance import assert_matches_eager


def log_loss(x, index):
    """Written out, so that no position is refused: 0 where the row has none."""
    positions = torch.arange(x.shape[-1], device=x.device)
    picked = torch.where(positions == index[:, None], x, 0).sum(-1)
    return torch.logsumexp(x, -1) - picked


def swapped(x, index):
    positions = torch.arange(x.shape[-1], device=x.device)
    return torch.where(index[:, None] == positions, x, 0.0).sum(-1) - torch.logsumexp(x, -1)


def scaled(x, index):
    """Not an element of an argument."""
    positions = torch.arange(x.shape[-1], device=x.device)
    return torch.logsumexp(x, -1) - torch.where(positions == index[:, None], 2 * x, 0).sum(-1)


def elsewhere(x, index):
    """Not 0 at the other positions."""
    positions = torch.arange(x.shape[-1], device=x.device)
    return torch.logsumexp(x, -1) - torch.where(positions == index[:, None], x, 1).sum(-1)


def kept(x, index):
    """The kernel writes rows."""
    positions = torch.arange(x.shape[-1], device=x.device)
    return torch.softmax(x, -1) - torch.where(positions == index[:, None], x, 0).sum(-1, keepdim=True)


FORMS = {
    "registers": RowParams(32, 2, 8, 1),
    "cluster": RowParams(32, 1, 8, 1, cluster=2),
    "shared memory": RowParams(32, 1, 8, 1, "shared"),
    "shared memory of a cluster": RowParams(32, 1, 8, 1, "shared", cluster=2),
    "streamed": RowParams(32, 1, 8, 1, "stream"),
}


def arguments(device, columns=200):
    index = torch.tensor([0, 7, columns - 1, -1, columns, 1 << 40, 100], device=device)
    return torch.randn(7, columns, device=device).bfloat16(), index


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form(device, form, monkeypatch):
    monkeypatch.setattr(inner_persistent, "compute_heuristics", lambda problem: FORMS[form])
    x, index = arguments(device)
    fused = fusedsl.fuse(log_loss)
    assert "gather(" in fused.source(x, index)
    assert_matches_eager(fused, x, index)


@pytest.mark.parametrize("columns", [1, 9, 257, 1000])
def test_lengths(device, columns):
    x, index = arguments(device, columns)
    for function in (log_loss, swapped):
        assert_matches_eager(fusedsl.fuse(function), x, index)
        assert_matches_eager(fusedsl.fuse(function), x.float(), index)
    assert_matches_eager(fusedsl.fuse(log_loss), x.t().contiguous().t(), index)


@pytest.mark.parametrize("function", [scaled, elsewhere, kept])
def test_what_is_summed_after_all(device, function):
    x, index = arguments(device)
    assert_matches_eager(fusedsl.fuse(function), x, index)
    assert "gather(" not in fusedsl.fuse(function).source(x, index)


def test_what_is_picked():
    x, index = (
        torch.empty(8, 256, dtype=torch.bfloat16, device="meta"),
        torch.empty(8, dtype=torch.int64, device="meta"),
    )
    for function, count in ((log_loss, 1), (swapped, 1), (scaled, 0), (elsewhere, 0), (kept, 0)):
        segments = fusedsl.fuse(function).explain(x, index, arch="H200").segments
        assert sum(len(find_picks(iteration_space(segment.problem))) for segment in segments) == count
