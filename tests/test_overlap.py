# SPDX-License-Identifier: Apache-2.0
"""Which tensors may be changed in place: those whose memory, from first to last element, is their own."""

from __future__ import annotations

import pytest
import torch

from fusedsl.overlap import Apart, are_apart, span_bytes

BASE = torch.zeros(6, 8)
OTHER = torch.zeros(6, 8)


@pytest.mark.parametrize(
    ("tensors", "changed", "expected"),
    [
        ((BASE, OTHER), (0,), True),
        ((BASE, BASE), (0,), False),
        ((BASE, OTHER, BASE[2, 3]), (0,), False),
        ((BASE, OTHER, BASE[2, 3]), (1,), True),
        ((BASE[2, 3], BASE), (0,), False),
        ((BASE[:3], BASE[3:]), (0, 1), True),
        ((BASE[:3], BASE[2:]), (1,), False),
        ((BASE[:, :4], BASE[:, 4:]), (0,), False),  # they are apart, but not their spans
        ((BASE[:0], BASE), (1,), True),
        ((BASE.t(), OTHER), (0,), True),
        ((OTHER[0], BASE, OTHER), (1,), True),
    ],
)
def test_are_apart(tensors: tuple[torch.Tensor, ...], changed: tuple[int, ...], expected: bool) -> None:
    assert are_apart(tensors, changed) is expected


def test_span() -> None:
    assert span_bytes(BASE) == 6 * 8 * 4
    assert span_bytes(BASE[:, 2]) == (5 * 8 + 1) * 4
    assert span_bytes(BASE[:0]) == 0
    assert span_bytes(torch.zeros(1).expand(5)) == 4


def test_the_answer_is_for_the_addresses_of_the_call() -> None:
    apart = Apart((0,))
    assert apart((BASE[:3], BASE[3:]))
    assert apart((BASE[:3], BASE[3:]))
    assert not apart((BASE[:3], BASE[:3]))
    assert apart((BASE[:3], BASE[3:]))


def test_inference_tensors_change_in_inference_mode_only() -> None:
    with torch.inference_mode():
        made = torch.zeros(3)
        assert Apart((0,))((made,))
    assert not Apart((0,))((made,))
