# SPDX-License-Identifier: Apache-2.0
"""In-place operations: all names of a value see the new one; what torch would let others see is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.errors import InPlaceOnArgument, InPlaceOnView, InPlaceResult, UnsupportedOperation
from tests.frontend.tracing import check, traced


def x(*shape):
    return torch.randn(shape or (4, 3))


def augmented(x):
    y = x * 2
    y += 1
    y -= x
    y *= 3
    y /= 2
    return y


def every_name(x):
    y = x + 1
    z = y
    kept = [y, {"y": y}]
    y.mul_(2)
    return y, z, kept[0] + kept[1]["y"]


def equal_values_are_not_one(x):
    a = x * 2
    b = x * 2
    a.add_(1)
    return a, b


def chained(x):
    return (x * 2).exp_().clamp_(max=5).neg_()


def fills(x):
    a, b, c = x + 1, x + 2, x + 3
    a.zero_()
    b.fill_(3)
    c.copy_(x[0])
    return a, b, c


def keyword(x):
    y = x - 1
    F.relu(y, inplace=True)
    torch.sigmoid_(y)
    return y


def keeps_dtype(x):
    y = x.to(torch.bfloat16)
    y += x
    return y


def view_that_died(x):
    y = x + 1
    z = y[None] * 2
    y += 1
    return y, z


def in_a_loop(x):
    total = torch.zeros_like(x)
    for i in range(3):
        total += x * i
    return total


def own_container(x):
    parts = [x * 1, x * 2]
    parts[0] += 1
    parts[1].mul_(2)
    parts.append(parts[0])
    parts += [x]
    return parts


@pytest.mark.parametrize(
    "fn",
    [
        augmented,
        every_name,
        equal_values_are_not_one,
        chained,
        fills,
        keyword,
        keeps_dtype,
        view_that_died,
        in_a_loop,
        own_container,
    ],
)
def test_in_place_computes_what_eager_computes(fn):
    check(fn, x())


def on_both(a, b):
    return a.exp_() * b.tanh_()


def on_item(pair):
    pair[0].add_(1)
    return pair[0]


def on_view_of_argument(x):
    x.unsqueeze(0).mul_(2)
    return x


def on_alias_of_argument(x):
    y = x.float()
    y += 1
    return y


def on_argument_through_helper(x):
    def change(v):
        v.relu_()

    change(x)
    return x


def keyword_on_argument(x):
    return F.relu(x, inplace=True)


def positional_on_argument(x):
    return F.relu(x, True)


def on_opaque_view_of_argument(x):
    first, second = x.chunk(2)
    first.add_(1)
    return second


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (on_both, [x(2, 2), x(2, 2)[0, 0]]),
        (on_item, [(x(), x())]),
        (on_view_of_argument, [x()]),
        (on_alias_of_argument, [x()]),
        (on_argument_through_helper, [x()]),
        (keyword_on_argument, [x()]),
        (on_opaque_view_of_argument, [x()]),
    ],
)
def test_argument_is_never_changed_silently(fn, args):
    with pytest.raises(InPlaceOnArgument):
        traced(fn, *args)


def test_positional_inplace_is_refused():
    from fusedsl.graph.span import FuseError

    with pytest.raises(FuseError, match="inplace"):
        traced(positional_on_argument, x())


def base_of_live_view(x):
    y = x + 1
    z = y.t()
    y += 1
    return z


def view_of_live_base(x):
    y = x + 1
    y[None].add_(1)
    return y


def opaque_view(x):
    y = x + 1
    a, b = y.chunk(2)
    a.add_(1)
    return b


def expanded(x):
    return (x.sum(-1, keepdim=True)).expand(4, 3).add_(1)


@pytest.mark.parametrize("fn", [base_of_live_view, view_of_live_base, opaque_view, expanded])
def test_live_views_are_refused(fn):
    with pytest.raises(InPlaceOnView):
        traced(fn, x())


def wider_shape(x):
    y = x.sum(-1)
    y += x.t()
    return y


def wider_dtype(x):
    y = (x > 0).long()
    y *= x
    return y


@pytest.mark.parametrize("fn", [wider_shape, wider_dtype])
def test_result_that_does_not_fit_is_refused(fn):
    with pytest.raises(InPlaceResult):
        traced(fn, x())


def random_fill(x):
    y = x + 1
    return y.normal_()


def metadata(x):
    y = x + 1
    y.unsqueeze_(0)
    return y


@pytest.mark.parametrize("fn", [random_fill, metadata])
def test_in_place_without_an_out_of_place_form_is_refused(fn):
    with pytest.raises(UnsupportedOperation):
        traced(fn, x())
