# SPDX-License-Identifier: Apache-2.0
"""The text of one kernel of every form, to read: ``pytest --update-golden`` accepts a change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl


@fusedsl.fuse
def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


@fusedsl.fuse
def column_sum(x: Tensor) -> Tensor:
    return x.float().sum(0)


@fusedsl.fuse
def total(x: Tensor) -> Tensor:
    return (x * x).sum()


@fusedsl.fuse
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


@fusedsl.fuse
def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    return [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]


CASES = {
    "pointwise": (gelu_bias, tensors((4096, 1024), (1024,))),
    "outer_reduction": (column_sum, tensors((4096, 1000))),
    "full_reduction": (total, tensors((1 << 20,), dtype=torch.float32)),
    "row_in_registers": (rms_norm, tensors((4096, 1024), (1024,))),
    "short_rows": (softmax, tensors((4096, 100), dtype=torch.float32)),
    "long_rows": (softmax, tensors((64, 100000))),
    "very_long_rows": (softmax, tensors((4, 2000000), dtype=torch.float32)),
}


@pytest.mark.parametrize("case", list(CASES))
def test_kernel_text(case: str, golden: Callable[[str], None]) -> None:
    function, arguments = CASES[case]
    golden(function.source(*arguments, arch="H200"))


def test_explanation(golden: Callable[[str], None]) -> None:
    golden(str(column_sum.explain(*tensors((300, 17)), arch="A100")))
