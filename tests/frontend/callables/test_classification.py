# SPDX-License-Identifier: Apache-2.0
"""cross_entropy and nll_loss: every option against torch, and targets that are no class."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.callables import OpError, lookup
from tests.frontend.callables.support import FLOATS, Runtime, build, check, plain

REDUCTIONS = ("none", "sum", "mean")
#: Shapes of the input, with the class dim first or second.
SHAPES = [(7,), (5, 7), (1, 2), (2, 7, 3), (2, 3, 4, 1)]


def _targets(shape: tuple[int, ...], ignore: int | None = None) -> torch.Tensor:
    classes = shape[min(1, len(shape) - 1)]
    rows = shape[:1] + shape[2:] if len(shape) > 1 else ()
    found = torch.randint(0, classes, rows, generator=torch.Generator().manual_seed(1))
    if ignore is not None and found.numel() > 1:
        found.view(-1)[1] = ignore
    return found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_class_indices(shape: tuple[int, ...], dtype: torch.dtype, weighted: bool) -> None:
    x = plain(dtype, shape)
    weight = torch.linspace(0.5, 1.5, x.shape[min(1, x.dim() - 1)]).to(dtype) if weighted else None
    for target in (_targets(shape), _targets(shape, -100)):
        for reduction in REDUCTIONS:
            check(F.cross_entropy, x, target, weight, reduction=reduction, scale=2)
            check(F.cross_entropy, x, target, weight, reduction=reduction, label_smoothing=0.2, scale=2)
            check(F.nll_loss, x, target, weight, reduction=reduction, scale=2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_class_probabilities(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    dim = min(1, len(shape) - 1)
    x, target = plain(dtype, shape), torch.softmax(plain(torch.float64, shape, seed=3), dim).to(dtype)
    weight = torch.linspace(0.5, 1.5, shape[dim]).to(dtype)
    for reduction in REDUCTIONS:
        check(F.cross_entropy, x, target, reduction=reduction, scale=2)
        check(F.cross_entropy, x, target, weight, reduction=reduction, label_smoothing=0.3, scale=2)


def test_ignore_index_and_smoothing_of_the_call() -> None:
    x, target = plain(torch.float32, (5, 7)), torch.tensor([0, 3, 3, 6, 2])
    check(F.cross_entropy, x, target, ignore_index=3)
    check(F.cross_entropy, x, target, ignore_index=Runtime(3), label_smoothing=Runtime(0.25))
    check(F.nll_loss, x, target, ignore_index=Runtime(2), reduction="sum")
    check(F.cross_entropy, x, target.byte())


def test_every_target_ignored() -> None:
    x, target = plain(torch.float32, (3, 5)), torch.full((3,), -100)
    for reduction in REDUCTIONS:
        check(F.cross_entropy, x, target, reduction=reduction)
        check(F.nll_loss, x, target, reduction=reduction)


@pytest.mark.parametrize("function", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("wrong", [5, -4, 2**32 + 1, -(2**63)])
def test_a_target_that_is_no_class_makes_its_row_nan(function, wrong: int) -> None:
    x, target = plain(torch.float32, (3, 5)), torch.tensor([0, wrong, 1])
    for options in ({}, {"label_smoothing": 0.1} if function is F.cross_entropy else {}):
        built = build(lookup(function), x, target, reduction="none", **options)
        (loss,) = built.run()
        assert loss.isnan().tolist() == [False, True, False]
        right = function(x, torch.tensor([0, 2, 1]), reduction="none", **options)
        torch.testing.assert_close(loss[::2], right[::2])


def test_infinite_logits() -> None:
    inf = float("inf")
    x = torch.tensor([[-inf, 0.0, 1.0], [inf, 0.0, 1.0], [-inf, -inf, -inf], [0.0, 1.0, 2.0]])
    for target in ([0, 0, 0, 2], [1, 1, 1, 1]):
        check(F.cross_entropy, x, torch.tensor(target), reduction="none")


def test_wrong_calls() -> None:
    x, target = plain(torch.float32, (5, 7)), torch.tensor([0, 3, 3, 6, 2])
    handler = lookup(F.cross_entropy)
    with pytest.raises(OpError, match="int64 targets, got int32"):
        build(handler, x, target.int())
    with pytest.raises(OpError, match="targets of shape"):
        build(handler, x, target[:4])
    with pytest.raises(OpError, match="there are 7 classes"):
        build(handler, x, target, torch.ones(6))
    with pytest.raises(OpError, match="reduction='average' is unknown"):
        build(handler, x, target, reduction="average")
    with pytest.raises(OpError, match="between 0 and 1"):
        build(handler, x, target, label_smoothing=2.0)
    assert build(handler, x, target, size_average=True) is NotImplemented
