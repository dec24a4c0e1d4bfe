# SPDX-License-Identifier: Apache-2.0
"""Calls outside the table: run by eager torch, with result types that hold for other sizes too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.errors import OperationFailed, UnsupportedOperation
from tests.frontend.tracing import assert_same, check, holds, run, traced


def x(*shape):
    return torch.randn(shape or (4, 6))


def linear(x, w, b):
    return F.relu(x @ w + b)


def concatenated(x, y):
    return torch.cat([x, y], dim=-1) * 2


def halves(x):
    a, b = x.chunk(2, -1)
    return a * F.silu(b)


def reshaped(x, heads):
    return x.view(x.shape[0], heads, -1).sum(-1)


def sorted_values(x):
    values, indices = torch.sort(x, dim=-1, descending=True)
    return values + 1, indices


def named_result(x):
    found = torch.topk(x, k=2)
    return found[0] * 2


def repeated(x, n):
    return x.repeat(n, 1) + 1


def einsum(x, y):
    return torch.einsum("ij,kj->ik", x, y).exp()


def convolution(x, w):
    return F.conv1d(x, w, padding=1) + 1


def rolled(x):
    return torch.roll(x, x.shape[0] // 2, dims=0) * 2


def listed(x):
    return torch.tensor([1.0, 2.0]) * x[0, 0]


@pytest.mark.parametrize(
    ("fn", "args", "others"),
    [
        (linear, [x(4, 6), x(6, 5), x(5)], [x(9, 7), x(7, 3), x(3)]),
        (concatenated, [x(4, 6), x(4, 3)], [x(5, 2), x(5, 8)]),
        (halves, [x(4, 6)], [x(5, 10)]),
        (reshaped, [x(4, 6), 2], [x(8, 12), 2]),
        (sorted_values, [x(4, 6)], [x(2, 9)]),
        (named_result, [x(4, 6)], [x(3, 8)]),
        (repeated, [x(4, 6), 3], [x(2, 5), 3]),
        (einsum, [x(4, 6), x(5, 6)], [x(3, 2), x(7, 2)]),
        (convolution, [x(2, 3, 8), x(5, 3, 3)], [x(4, 3, 11), x(5, 3, 3)]),
        (rolled, [x(4, 6)], [x(7, 3)]),
        (listed, [x(4, 6)], [x(7, 3)]),
    ],
)
def test_opaque_call(fn, args, others):
    found = check(fn, *args)
    assert any(node.op == "opaque" for node in found.graph)
    assert holds(found, fn, *others)
    assert_same(run(found, fn, *others), fn(*others))


def test_sizes_that_cannot_be_expressed_are_guarded():
    def f(x, y, z):
        return torch.cat([x, y], dim=-1) + z

    found = check(f, x(4, 6), x(4, 3), x(4, 9))
    assert not holds(found, f, x(4, 6), x(4, 4), x(4, 10))
    assert holds(found, f, x(4, 6), x(4, 3), x(4, 9))


def test_extent_that_is_one_now_is_guarded():
    def f(x, y):
        return x[:, ::4] + y

    found = check(f, x(3, 4), x(3, 5))
    assert not holds(found, f, x(3, 8), x(3, 2))


def test_integer_argument_is_guarded():
    found = traced(repeated, x(), 3)
    assert not holds(found, repeated, x(), 4)


def complex_result(x):
    return torch.fft.fft(x)


def data_dependent(x):
    return torch.unique(x)


def seeds(x):
    torch.manual_seed(0)
    return x


def with_out(x):
    torch.cumsum(x, 0, out=x)
    return x


def random_state(x):
    return x + torch.initial_seed()


@pytest.mark.parametrize("fn", [complex_result, data_dependent, seeds, random_state])
def test_refused(fn):
    with pytest.raises(UnsupportedOperation):
        traced(fn, x())


def test_out_is_refused():
    from fusedsl.graph.span import FuseError

    with pytest.raises(FuseError, match="out="):
        traced(with_out, x())


def test_torchs_own_complaint_is_shown_at_the_users_line():
    def f(x, y):
        return x @ y

    with pytest.raises(OperationFailed) as caught:
        traced(f, x(4, 6), x(4, 6))
    assert caught.value.span.text.strip() == "return x @ y"
    assert "a and b must have same reduction dim" in str(caught.value) or "cannot be multiplied" in str(caught.value)
