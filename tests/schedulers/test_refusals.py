# SPDX-License-Identifier: Apache-2.0
"""What each scheduler refuses, by code, and the limits from both sides; explain prints the reasons."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.schedulers import SCHEDULERS
from tests.schedulers.support import meta, refusal, whole


def double(x):
    return x * 2


def softmax(x):
    return F.softmax(x, -1)


def row_sum(x):
    return x.sum(-1)


def column_softmax(x):
    return F.softmax(x, 0)


def centred_rows(x):
    return x - x.sum(1, keepdim=True)


def centred_columns(x):
    return x - x.sum(0, keepdim=True)


def sum_beside_row(x):
    return x.sum(-1), x * 2


def sum_of_what_was_summed(x):
    return (x - x.sum(-1, keepdim=True)).sum(-1)


def weighted_by_place_twice(x):
    place = torch.arange(x.shape[1], device=x.device)
    return ((x * place).sum(-1, keepdim=True) * place).sum(-1)


def summed_over_an_expanded_sum(x):
    return (x.sum(-1, keepdim=True).expand(x.shape) * 1.5).sum(-1)


def both_sums(x):
    return x.sum(0), x.sum(1)


def two_shapes(x, y):
    return x * 2, y * 2


def row_and_weight(x, w):
    return x * w, w * 2


def sum_and_another(x, y):
    return x.sum(-1), y * 2


def plus_transposed(x):
    return x + x.t()


def sum_plus_transposed(x):
    return (x + x.t()).sum(-1)


def eager_op(x):
    return torch.special.i0(x) + 1


def eager_sum(x):
    return torch.special.i0(x).sum(-1)


def total_argmax(x):
    return x.argmax()


def empty(x):
    return x[:0] * 2


X = meta(64, 32)
SQUARE = meta(32, 32)


@pytest.mark.parametrize(
    ("name", "fn", "args", "code"),
    [
        ("no_op", double, [X], "concrete_output"),
        ("no_op", double, [meta(0, 32)], None),
        ("pointwise", double, [X], None),
        ("pointwise", row_sum, [X], "reduction"),
        ("pointwise", two_shapes, [X, meta(5, 7)], "uneven_outputs"),
        ("pointwise", row_and_weight, [X, meta(32)], "uneven_outputs"),
        ("pointwise", plus_transposed, [SQUARE], "self_mapping"),
        ("pointwise", eager_op, [X], "opaque"),
        ("reduction", row_sum, [X], None),
        ("reduction", double, [X], "no_reduction_op"),
        ("reduction", softmax, [X], "persistent_buffer"),
        ("reduction", column_softmax, [X], "persistent_buffer"),
        ("reduction", sum_of_what_was_summed, [X], "persistent_buffer"),
        ("reduction", sum_beside_row, [X], "row_output"),
        ("reduction", weighted_by_place_twice, [meta(64, 32, dtype=torch.int64)], "post_reduction_broadcast"),
        ("reduction", summed_over_an_expanded_sum, [X], "unmapped_multi_reduction"),
        ("reduction", both_sums, [X], "unmapped_multi_reduction"),
        ("reduction", sum_and_another, [X, meta(5, 7)], "output_dim_not_covered"),
        ("reduction", sum_plus_transposed, [SQUARE], "self_mapping"),
        ("reduction", eager_sum, [X], "opaque"),
        ("reduction", total_argmax, [X], None),
        ("reduction", total_argmax, [X.t()], "position_order"),
        ("inner_persistent", softmax, [X], None),
        ("inner_persistent", sum_beside_row, [X], None),
        ("inner_persistent", double, [X], "no_reduction_op"),
        ("inner_persistent", row_sum, [X], "no_persistent_buffer"),
        ("inner_persistent", column_softmax, [X], "type_mismatch"),
        ("inner_persistent", centred_rows, [X], None),
        ("inner_persistent", centred_rows, [X.t()], "type_mismatch"),
        ("inner_persistent", centred_columns, [X], "type_mismatch"),
        ("inner_persistent", centred_columns, [X.t()], None),
        ("inner_persistent", both_sums, [X], "unmapped_multi_reduction"),
        ("inner_persistent", eager_sum, [X], "opaque"),
    ],
)
def test_refusal_codes(name, fn, args, code):
    found = refusal(name, whole(fn, *args))
    assert (None if found is None else found.code) == code, found


@pytest.mark.parametrize(
    ("name", "fn", "args", "reason"),
    [
        ("reduction", both_sums, [X], "the reductions _sum and _sum_1 close different loops (x.0 and x.1)"),
        ("reduction", sum_and_another, [X, meta(5, 7)], "has the loop y.0, y.1, which no reduction sees"),
        ("reduction", softmax, [X], "is needed again for _sub, after a reduction of it"),
        (
            "pointwise",
            row_and_weight,
            [X, meta(32)],
            "does not vary over the loop x.0; all outputs must share the loops",
        ),
        ("inner_persistent", centred_columns, [X], "the innermost loop in memory is kept"),
    ],
)
def test_reasons_name_what_was_found(name, fn, args, reason):
    found = refusal(name, whole(fn, *args))
    assert found is not None
    assert reason in found.reason


def centred_channels(x):
    return x - x.mean((0, 2), keepdim=True)


@pytest.mark.parametrize(("arch", "few"), [("H200", 33), ("A100", 27)])
def test_few_rows_that_nothing_holds_are_not_streamed(arch, few):
    """Blocks that share rows of two pieces: from half the multiprocessors on it is worth it."""
    length = 4 << 20
    found = refusal("inner_persistent", whole(centred_channels, meta(2, few - 1, length), arch=arch))
    assert found is not None
    assert found.code == "not_enough_blocks"
    assert f"{few - 1} rows of {2 * length} elements" in found.reason
    assert refusal("inner_persistent", whole(centred_channels, meta(2, few, length), arch=arch)) is None
    assert refusal("inner_persistent", whole(softmax, meta(1, 4096), arch=arch)) is None
    assert refusal("inner_persistent", whole(softmax, meta(1, length), arch=arch)) is None


def test_every_scheduler_says_why():
    """A segment carries a reason for each scheduler but the one that took it, and explain prints them."""
    x = meta(64, 32)
    explanation = fusedsl.fuse(softmax).explain(x, arch="H200")
    (segment,) = explanation.segments
    names = [scheduler.NAME for scheduler in SCHEDULERS]
    assert sorted([*segment.rejections, segment.scheduler]) == sorted(names)
    for name, reason in segment.rejections.items():
        assert f"    {name}: {reason}\n" in str(explanation)
