# SPDX-License-Identifier: Apache-2.0
"""RMS norm over the last dim, written out: one kernel that reads each row once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from examples.common import check, default_device, default_shape, time_against_eager


@fusedsl.fuse
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def eager(x: Tensor, weight: Tensor) -> Tensor:
    """What PyTorch offers for it."""
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def make_arguments() -> tuple[Tensor, Tensor]:
    """x: bf16[rows, columns]; weight: bf16[columns]."""
    device = default_device()
    rows, columns = default_shape(device)
    x = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
    weight = torch.rand(columns, device=device, dtype=torch.bfloat16) + 0.5
    return x, weight


def main() -> None:
    """Check against PyTorch, then time."""
    arguments = make_arguments()
    check("rms_norm", rms_norm, eager, arguments)
    time_against_eager("rms_norm", rms_norm, eager, arguments)


if __name__ == "__main__":
    main()
