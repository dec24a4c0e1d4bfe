# SPDX-License-Identifier: Apache-2.0
"""Softmax over the last dim, written out: one kernel that reads each row once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from examples.common import check, default_device, default_shape, time_against_eager


@fusedsl.fuse
def softmax(x: Tensor) -> Tensor:
    shifted = torch.exp(x - x.amax(-1, keepdim=True))
    return shifted / shifted.sum(-1, keepdim=True)


def eager(x: Tensor) -> Tensor:
    """What PyTorch offers for it."""
    return F.softmax(x, -1)


def make_arguments() -> tuple[Tensor]:
    """x: bf16[rows, columns]."""
    device = default_device()
    return (torch.randn(default_shape(device), device=device, dtype=torch.bfloat16),)


def main() -> None:
    """Check against PyTorch, then time."""
    arguments = make_arguments()
    check("softmax", softmax, eager, arguments)
    time_against_eager("softmax", softmax, eager, arguments)


if __name__ == "__main__":
    main()
