# SPDX-License-Identifier: Apache-2.0
"""Pairs of reductions that share an exchange give what the two would give one after the other."""

from __future__ import annotations

import pytest
import torch

import fusedsl
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def squares_about(x, divisor):
    middle = x.sum(-1, keepdim=True) / divisor
    away = x - middle
    return (away * away).sum(-1, keepdim=True) + away, middle


@fusedsl.fuse
def exponentials(x):
    return torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True) + x


def squares(x):
    middle = x.sum(-1, keepdim=True) / x.shape[-1]
    away = x - middle
    return (away * away).sum(-1, keepdim=True) + away


@pytest.mark.parametrize("columns", [8, 64, 100, 512])
@pytest.mark.parametrize("part", [1.0, 0.5, 3.0])
def test_the_divisor_need_not_be_the_number_of_elements(device, columns, part):
    x = torch.randn(3, columns, device=device) + 1
    assert_matches_eager(squares_about, x, columns * part)


@pytest.mark.parametrize("columns", [8, 64, 100, 512])
def test_infinite_rows_give_what_eager_gives(device, columns):
    x = torch.randn(5, columns, device=device)
    x[0] = float("-inf")
    x[1, 3] = float("inf")
    x[2, 1:] = float("-inf")
    x[3, 5] = float("nan")
    assert_matches_eager(exponentials, x)


@pytest.mark.parametrize("columns", [64, 512])
def test_eager_numerics_round_between_the_two(device, columns):
    """The mean of numbers near 1000 is rounded to a multiple of 4, which the squares show."""
    x = (1000 + 4 * torch.randint(-3, 3, (8, columns), device=device)).bfloat16()
    rounded = fusedsl.fuse(squares, numerics="eager")(x)
    torch.testing.assert_close(rounded, squares(x), rtol=2**-8, atol=0)
    assert not torch.allclose(fusedsl.fuse(squares)(x), squares(x), rtol=2**-6, atol=0)
