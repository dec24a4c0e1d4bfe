# SPDX-License-Identifier: Apache-2.0
"""Wrong programs, one mistake each: their messages are in ``test_errors.py``. Line numbers matter in this file."""
# ruff: noqa: F821, F841

import os
import random

import torch
import torch.nn.functional as F

from tests.frontend import other_module

WEIGHT = torch.ones(3)
NAMES = ["a"]


def data_dependent_if(x):
    if x.max() > 1:
        return x * 2
    return x


def data_dependent_while(x):
    while x.sum() < 10:
        x = x * 2
    return x


def data_dependent_and(x):
    return x > 0 and x < 1


def data_dependent_not(x):
    return not x


def chained_comparison(x):
    return torch.where(0 < x < 1, x, 0)


def assert_on_values(x):
    assert (x > 0).all(), "positive"
    return x


def endless(x):
    while True:
        x = x + 1
    return x


def too_long(x):
    for _ in range(10**7):
        x = x + 1
    return x


def misspelled_name(x):
    scale = 2.0
    return x * scael


def misspelled_function(x):
    return torch.rsqr(x)


def misspelled_method(x):
    return x.unsqueze(0)


def read_before_assignment(x, flag=False):
    if flag:
        y = x
    return y + 1


def prints(x):
    y = x + 1
    print(y)
    return y


def item(x):
    return x / x.max().item()


def float_of_tensor(x):
    return x * float(x.mean())


def iterates(x):
    return sum([row * 2 for row in x])


def unpacks(x):
    a, b = x
    return a + b


def mismatch(x, y):
    # fmt: off
    return (
        x
        + x * 2
        + (x - y)
    )
    # fmt: on


def dim_out_of_range(x):
    return x.sum(2)


def wrong_keyword(x):
    return torch.softmax(x, axes=-1)


def helper(v, scale):
    return v * scale


def helper_arguments(x):
    return helper(x)


def endless_recursion(x):
    return endless_recursion(x + 1)


def adds_to_part_of_argument(x):
    x[0].add_(1)
    return x


def method_on_captured(x):
    WEIGHT[0].mul_(2)
    return x * WEIGHT


def in_place_under_view(x):
    y = x + 1
    z = y[0]
    y.add_(1)
    return z


def in_place_wider(x):
    y = (x > 0).to(torch.int32)
    y += 0.5
    return y


def item_assignment(x):
    y = x * 2
    y[0] = 1.0
    return y


def attribute_assignment(x):
    other_module.last = x
    return x


def changes_captured(x):
    NAMES.append("b")
    return x


def fourier(x):
    return torch.fft.fft(x)


def nonzero(x):
    return x.nonzero()


def boolean_mask(x):
    return x[x > 0]


def tries(x):
    try:
        return x.exp()
    except ValueError:
        return x


def system_call(x):
    return x * len(os.listdir("."))


def random_number(x):
    return x * random.random()


def numpy_call(x):
    return x.numpy()


def raises(x, mode="fast"):
    if mode not in ("exact", "quick"):
        raise ValueError(f"unknown mode {mode!r}")
    return x


def failed_assertion(x, w):
    assert x.shape[-1] == w.shape[0], f"x has {x.shape[-1]} columns, w has {w.shape[0]} rows"
    return x @ w


def static_index(x):
    return x * (1.0, 2.0)[x.ndim]


def returns_module(x):
    return x, torch


def autocast(x):
    with torch.autocast("cuda"):
        return x + 1


def non_ascii(x):
    # fmt: off
    größe = "äöü"; return x + grösse  # noqa: E702
    # fmt: on


def in_helper(x):
    return other_module.shifted(x, x.shape[0])


def pins_memory(x):
    return F.relu(x).data_ptr()
