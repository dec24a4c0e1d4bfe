# SPDX-License-Identifier: Apache-2.0
"""The calls whose host time is measured; times need a GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import host


@pytest.mark.parametrize("case", host.RECORDED, ids=lambda case: case[0].__name__)
def test_recorded_calls_record_a_gradient(case) -> None:  # type: ignore[no-untyped-def]
    function, shapes = case
    calls = host.make_calls(function, shapes, "cpu", True)
    assert list(calls) == ["fusedsl", "eager", "compile"]
    result, expected = calls["fusedsl"](), calls["eager"]()
    assert result.grad_fn is not None
    torch.testing.assert_close(result, expected)
    with torch.no_grad():
        assert calls["fusedsl"]().grad_fn is None
