# SPDX-License-Identifier: Apache-2.0
"""The tour: three fused functions, what fusedsl makes of them, and the proof that they compute what PyTorch computes.

``make demo``, or ``python -m examples.demo``: on the GPU where there is one, otherwise in the interpreter.
"""

from __future__ import annotations

import torch

from examples import layer_norm, rms_norm, softmax
from examples.common import default_device


def main() -> None:
    """Explain layer norm and show its kernel, then check (and on a GPU time) all three examples."""
    device = default_device()
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU: the interpreter runs every thread on the CPU"
    print(f"fusedsl on {device} ({name})\n")
    arguments = layer_norm.make_arguments()
    print(layer_norm.layer_norm.explain(*arguments))
    print("\n--- the kernel that layer_norm became ---\n")
    print(layer_norm.layer_norm.source(*arguments))
    print("\n--- checks ---\n")
    layer_norm.main()
    rms_norm.main()
    softmax.main()
    print("\nall results agree with PyTorch")


if __name__ == "__main__":
    main()
