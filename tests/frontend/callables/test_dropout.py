# SPDX-License-Identifier: Apache-2.0
"""Dropout and its kin: what is kept, how it is scaled, what shares a number. Draws are ints that stand for seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.callables import OpError, lookup
from tests.frontend.callables.support import FLOATS, build, plain


def _run(function: Callable[..., Any], x: torch.Tensor, *args: Any, seed: int = 5, **kwargs: Any) -> torch.Tensor:
    built = build(lookup(function), x, *args, **kwargs)
    built.scalars = [seed] * len(built.graph.scalars)
    (found,) = built.run()
    assert found.dtype is x.dtype and found.shape == x.shape
    return found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_and_scales(dtype: torch.dtype, p: float) -> None:
    x = torch.ones(64, 250, dtype=dtype)
    found = _run(F.dropout, x, p)
    kept = found != 0
    assert abs(float(kept.double().mean()) - (1 - p)) < 0.02
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 1 / (1 - p)))
    assert not torch.equal(kept, _run(F.dropout, x, p, seed=6) != 0)
    for a, b in ((kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1])):
        assert abs(float((a == b).double().mean()) - (p * p + (1 - p) ** 2)) < 0.03


def test_nothing_is_dropped() -> None:
    x = plain(torch.float32)
    for function in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout):
        for arguments in ((x, 0.5, False), (x, 0.0, True)):
            assert build(lookup(function), *arguments).outputs.id == 0
    assert build(lookup(F.dropout), torch.ones(3, dtype=torch.int32), 0.5, False).outputs.id == 0


def test_everything_is_dropped() -> None:
    x = torch.tensor([1.0, -2.0, math.inf])
    for function in (F.dropout, F.alpha_dropout):
        found = _run(function, x, 1.0, True)
        torch.testing.assert_close(found, function(x, 1.0, True), equal_nan=True)


def test_infinity_is_not_hidden() -> None:
    found = _run(F.dropout, torch.full((1000,), math.inf), 0.5)
    assert 400 < int(found.isnan().sum()) < 600 and bool((found.isnan() | found.isinf()).all())


@pytest.mark.parametrize(
    ("function", "shape", "shared"),
    [
        (F.dropout1d, (40, 50, 6), (2,)),
        (F.dropout1d, (400, 6), (1,)),
        (F.dropout2d, (40, 50, 2, 3), (2, 3)),
        (F.dropout3d, (40, 50, 2, 1, 3), (2, 3, 4)),
        (F.dropout3d, (400, 2, 1, 3), (1, 2, 3)),
    ],
)
def test_whole_channels_are_dropped(function, shape, shared) -> None:
    kept = _run(function, torch.ones(shape), 0.3) != 0
    assert torch.equal(kept.all(dim=shared), kept.any(dim=shared))
    assert abs(float(kept.double().mean()) - 0.7) < 0.1


@pytest.mark.parametrize("function", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_keeps_mean_and_variance(function) -> None:
    x = plain(torch.float64, (200, 300, 4) if function is F.feature_alpha_dropout else (200, 1200))
    found = _run(function, x, 0.3, True)
    assert abs(float(found.mean())) < 0.02 and abs(float(found.var()) - 1) < 0.02
    low = -1.7580993408473766 / math.sqrt((1.7580993408473766**2 * 0.3 + 1) * 0.7) * 0.7
    dropped = (found - low).abs() < 1e-6
    assert abs(float(dropped.double().mean()) - 0.3) < 0.02
    # torch sets its dropped elements to the same value
    values = function(x, 0.3, True)
    assert abs(float(((values - low).abs() < 1e-6).double().mean()) - 0.3) < 0.05


def test_wrong_calls() -> None:
    handler = lookup(F.dropout)
    with pytest.raises(OpError, match=r"p=1\.5 is not between 0 and 1"):
        build(handler, torch.ones(3), 1.5)
    with pytest.raises(OpError, match="floating"):
        build(handler, torch.ones(3, dtype=torch.int32))
    with pytest.raises(OpError, match="at least 2 dims"):
        build(lookup(F.dropout2d), torch.ones(3))
