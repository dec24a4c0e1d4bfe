# SPDX-License-Identifier: Apache-2.0
"""Gradients through calls that eager torch runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedsl.gradients import NotDifferentiable
from fusedsl.gradients.eager import PULLBACK
from tests.frontend.tracing import traced
from tests.gradients.helpers import check, derived, leaf


def test_matrix_product() -> None:
    def mlp(x, w, v, b):
        return F.gelu(x @ w + b) @ v + x

    made = check(mlp, leaf(4, 6), leaf(6, 5), leaf(5, 6), leaf(5))
    assert sum(n.op == "opaque" for n in made.backward) == 2, "products are saved, not repeated"


def test_several_results() -> None:
    def parts(x):
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b

    check(parts, leaf(4, 6))


def test_one_result_unused() -> None:
    def sorted_sum(x):
        values, places = x.sort(-1)
        return values * values, places

    check(sorted_sum, leaf(4, 6))


def test_indexing_and_concatenation() -> None:
    def mixed(x, y):
        return torch.cat([x[:, 1:3] * 2, y], dim=1).exp()

    check(mixed, leaf(4, 6), leaf(4, 2))


def test_partly_wanted() -> None:
    def product(x, w):
        return (x @ w).relu()

    made = check(product, leaf(4, 6), leaf(6, 5).detach())
    (node,) = [n for n in made.backward if n.op == "opaque"]
    assert node.attribute("function") == PULLBACK
    assert node.attribute("results") == 1


def test_reshapes_are_repeated_not_saved() -> None:
    def grouped(x):
        y = x.view(x.shape[0], 2, -1)
        return (F.softmax(y, -1) * y).flatten(1)

    made = check(grouped, leaf(4, 6))
    assert all("flatten" not in name and "opaque" not in name for name in made.saved)
    assert PULLBACK not in {n.attribute("function") for n in made.backward if n.op == "opaque"}


def test_reshape_of_a_computed_value() -> None:
    def summed(x):
        return x.exp().reshape(2, -1).sum(0)

    check(summed, leaf(4, 6))


def test_group_norm() -> None:
    def norm(x, weight, bias):
        return F.group_norm(x, 2, weight, bias)

    check(norm, leaf(3, 4, 5), leaf(4), leaf(4))


def test_not_connected() -> None:
    def places(x):
        return x.argsort(-1), x * 2

    check(places, leaf(4, 6))


def test_random_calls_are_refused() -> None:
    def noisy(x):
        return torch.bernoulli(x) * x

    x = leaf(4, 6, low=0.1)
    with pytest.raises(NotDifferentiable) as error:
        derived(traced(noisy, x).graph, [x])
    assert "draws random numbers" in str(error.value)
    assert "torch.bernoulli(x) * x" in str(error.value)
