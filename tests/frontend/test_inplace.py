# SPDX-License-Identifier: Apache-2.0
"""In-place operations: all names of a value see the new one, arguments and captured tensors change for the caller."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.errors import (
    InPlaceOnArgument,
    InPlaceOnView,
    InPlaceResult,
    UnsupportedOperation,
    UnsupportedResult,
)
from fusedsl.frontend.trace import OutputInput, OutputValue
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


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (on_both, [x(2, 2), x(2, 2)[0, 0]]),
        (on_item, [(x(), x())]),
        (on_view_of_argument, [x()]),
        (on_alias_of_argument, [x()]),
        (on_argument_through_helper, [x()]),
        (keyword_on_argument, [x()]),
    ],
)
def test_arguments_change_as_eager_changes_them(fn, args):
    assert check(fn, *args).updates


def on_part_of_argument(x):
    first, second = x.chunk(2)
    first.add_(1)
    return second


def on_row_of_argument(x):
    x[0].add_(1)
    return x


def on_expanded_argument(x):
    x.unsqueeze(0).expand(2, 4, 3).add_(1)
    return x


def on_what_may_be_argument(x):
    x.contiguous().add_(1)
    return x


@pytest.mark.parametrize("fn", [on_part_of_argument, on_row_of_argument, on_expanded_argument, on_what_may_be_argument])
def test_argument_is_never_changed_silently(fn):
    with pytest.raises(InPlaceOnArgument):
        traced(fn, x())


def reads_before_and_after(p, g):
    before = p * 2
    p += g
    after = p * 2
    p -= 1
    return before, after, p


def views_see_the_change(p, g):
    turned, wide = p.t(), p[None]
    turned.mul_(g.t())
    return turned * 1, wide + 0, p.sum(0)


def swapped(p, g):
    kept = p.clone()
    p.copy_(g)
    g.copy_(kept)


def filled(p, g):
    p.zero_()
    g.fill_(2.5)
    return p + g


def broadcast_into(p, g):
    p.copy_(g[:1] * 2)
    return p


def same_value_twice(p, g):
    p.copy_(g * 2)
    return g * 2, p


def clone_is_apart(p, g):
    copy = p.clone()
    p.add_(1)
    return copy, g.detach()


def computed_from_copy(p, g):
    y = g + 1
    y.copy_(p)
    y += 1
    return y


@pytest.mark.parametrize(
    "fn",
    [
        reads_before_and_after,
        views_see_the_change,
        swapped,
        filled,
        broadcast_into,
        same_value_twice,
        clone_is_apart,
        computed_from_copy,
    ],
)
def test_reads_see_what_eager_sees(fn):
    check(fn, x(), x())


def test_a_copied_value_is_not_its_source():
    def assigned(p):
        y = p + 1
        y.copy_(p)
        return y, p

    found = traced(assigned, x())
    assert found.outputs == (OutputValue(0), OutputInput(0))


def test_returned_argument_is_the_argument():
    def several(p, g):
        p.add_(g)
        q = p.float()
        return p, q, g

    found = traced(several, x(), x())
    assert found.outputs == (OutputInput(0), OutputInput(0), OutputInput(1))
    assert [(u.output, u.input, u.recorded) for u in found.updates] == [(0, 0, True)]


def test_returned_view_of_changed_argument_is_refused():
    def view(p):
        p.add_(1)
        return p.t()

    with pytest.raises(UnsupportedResult, match="a view of 'p', which the function changes in place"):
        traced(view, x())


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.count += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean


def test_buffers_of_modules_change():
    def called(module, x):
        return module(x)

    module, data = Counter(), x()
    found = check(called, module, data)
    assert {str(found.tensors[u.input]) for u in found.updates} == {"module.count", "module.mean"}
    assert module.count.item() == 4
    torch.testing.assert_close(module.mean, (data.mean(0) * 0.1))


def test_positional_inplace_is_refused():
    from fusedsl.graph.span import FuseError

    with pytest.raises(FuseError, match="inplace"):
        traced(positional_on_argument, x())


def base_of_view(x):
    y = x + 1
    z = y.t()
    y += 1
    return z


def view_of_base(x):
    y = x + 1
    y[None].add_(1)
    return y


def view_of_view(x):
    y = x + 1
    a, b = y.t()[None], y[:, None]
    a.mul_(y.t() + 2)
    return y, a + 0, b + 0


@pytest.mark.parametrize("fn", [base_of_view, view_of_base, view_of_view])
def test_views_that_permute_see_the_change(fn):
    check(fn, x())


def detached_view(x):
    y = x + 1
    y.detach().add_(1)
    return y


def contiguous_view(x):
    y = x + 1
    z = y.contiguous()
    y.add_(1)
    return z


def opaque_view(x):
    y = x + 1
    a, b = y.chunk(2)
    a.add_(1)
    return b


def expanded(x):
    return (x.sum(-1, keepdim=True)).expand(4, 3).add_(1)


@pytest.mark.parametrize("fn", [detached_view, contiguous_view, opaque_view, expanded])
def test_live_views_are_refused(fn):
    with pytest.raises(InPlaceOnView):
        traced(fn, x())


def wider_shape(x):
    y = x.sum(-1)
    y += x.t()
    return y


def int_argument(x):
    n = (x > 0).long()
    n += 0.5
    return n


def wider_dtype(x):
    y = (x > 0).long()
    y *= x
    return y


@pytest.mark.parametrize("fn", [wider_shape, wider_dtype, int_argument])
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
