# SPDX-License-Identifier: Apache-2.0
"""Trains transformer blocks with fused pieces and without, from the same seeds, and compares the losses.

A block is a layer norm, a matrix product, a bias with GELU, a second matrix product and a bias with the residual;
matrix products and the optimizer are PyTorch's. ``python -m examples.train_block``: in float32 the losses of every
step must agree; in bfloat16 the final losses of several seeds show how far runs lie apart anyway.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from examples.common import default_device

#: The largest relative difference of the float32 losses of a step.
ALLOWED = 1e-4


def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def residual(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    return x + (y + bias)


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), target)


@attrs.frozen
class Pieces:
    """What stands between the matrix products."""

    norm: Callable[[Tensor, Tensor, Tensor], Tensor] = norm
    gelu_bias: Callable[[Tensor, Tensor], Tensor] = gelu_bias
    residual: Callable[[Tensor, Tensor, Tensor], Tensor] = residual
    loss_of: Callable[[Tensor, Tensor], Tensor] = loss_of


PLAIN = Pieces()
FUSED = Pieces(*(fusedsl.fuse(piece, fallback="error") for piece in (norm, gelu_bias, residual, loss_of)))


@attrs.frozen
class Size:
    """Sizes of a training run.

    Attributes:
        batch: rows a step.
        width: elements of a row.
        hidden: elements of a row inside a block.
        classes: what is told apart.
        blocks: number of blocks.
        steps: of the optimizer.
    """

    batch: int
    width: int
    hidden: int
    classes: int
    blocks: int
    steps: int


def default_size(device: str) -> Size:
    """A real size on a GPU, a tiny one in the interpreter."""
    return Size(4096, 1024, 4096, 1000, 4, 200) if device == "cuda" else Size(4, 16, 32, 8, 1, 3)


def make_parameters(size: Size, generator: torch.Generator) -> list[list[Tensor]]:
    """float32; per block a norm's weight and bias, two matrices with biases; then the last norm and the classifier."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device) / math.sqrt(shape[0])

    def constant(value: float, count: int) -> Tensor:
        return torch.full((count,), value, device=generator.device)

    width, hidden = size.width, size.hidden
    groups = []
    for _ in range(size.blocks):
        group = [constant(1.0, width), constant(0.0, width), normal(width, hidden), constant(0.0, hidden)]
        groups.append([*group, normal(hidden, width), constant(0.0, width)])
    groups.append([constant(1.0, width), constant(0.0, width), normal(width, size.classes)])
    return [[one.requires_grad_() for one in group] for group in groups]


def forward(pieces: Pieces, groups: Sequence[Sequence[Tensor]], x: Tensor) -> Tensor:
    """The logits; computed in the dtype of ``x``."""
    *blocks, (weight, bias, classifier) = [[one.to(x.dtype) for one in group] for group in groups]
    for norm_weight, norm_bias, up, up_bias, down, down_bias in blocks:
        inner = pieces.gelu_bias(pieces.norm(x, norm_weight, norm_bias) @ up, up_bias)
        x = pieces.residual(x, inner @ down, down_bias)
    return pieces.norm(x, weight, bias) @ classifier


def train(pieces: Pieces, size: Size, dtype: torch.dtype, seed: int, device: str) -> list[float]:
    """The loss of every step: learning which of random directions a row lies along most. Parameters stay in float32."""
    generator = torch.Generator(device).manual_seed(seed)
    groups = make_parameters(size, generator)
    directions = torch.randn(size.width, size.classes, generator=generator, device=device)
    optimizer = torch.optim.SGD([one for group in groups for one in group], lr=0.05, momentum=0.9)
    losses = []
    for _ in range(size.steps):
        x = torch.randn(size.batch, size.width, generator=generator, device=device)
        loss = pieces.loss_of(forward(pieces, groups, x.to(dtype)), (x @ directions).argmax(-1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def largest_difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference of two runs' losses at one step."""
    return max(abs(one - other) / abs(other) for one, other in zip(losses, expected, strict=True))


def check_float32(size: Size, device: str) -> float:
    """Train both ways in float32 and print how far the losses lie apart.

    Raises:
        AssertionError: further than ``ALLOWED``.
    """
    fused, plain = (train(pieces, size, torch.float32, 0, device) for pieces in (FUSED, PLAIN))
    difference = largest_difference(fused, plain)
    print(
        f"float32, {size.steps} steps: loss {plain[0]:.4f} to {plain[-1]:.4f}, fused {fused[0]:.4f} to {fused[-1]:.4f}"
    )
    print(f"largest relative difference of a step's losses: {difference:.2e}, allowed {ALLOWED:.0e}")
    assert difference <= ALLOWED, f"losses differ by {difference:.2e}"
    return difference


def compare_bfloat16(size: Size, seeds: int, device: str) -> list[tuple[float, float]]:
    """Train both ways in bfloat16 from several seeds and print the final losses; (fused, plain) a seed."""
    pairs = []
    for seed in range(seeds):
        fused, plain = (train(pieces, size, torch.bfloat16, seed, device)[-1] for pieces in (FUSED, PLAIN))
        pairs.append((fused, plain))
        print(f"bfloat16, seed {seed}: final loss fused {fused:.4f}, plain {plain:.4f}")
    for name, losses in zip(("fused", "plain"), zip(*pairs, strict=True), strict=True):
        print(f"bfloat16, {name}: mean {sum(losses) / seeds:.4f}, seeds from {min(losses):.4f} to {max(losses):.4f}")
    return pairs


def main(argv: Sequence[str] | None = None) -> None:
    """Both comparisons; fewer steps or seeds on request."""
    device = default_device()
    parser = argparse.ArgumentParser(prog="python -m examples.train_block", description=__doc__)
    parser.add_argument("--steps", type=int, default=default_size(device).steps)
    parser.add_argument("--seeds", type=int, default=5 if device == "cuda" else 2)
    options = parser.parse_args(argv)
    size = attrs.evolve(default_size(device), steps=options.steps)
    print(f"{size} on {device}")
    check_float32(size, device)
    compare_bfloat16(size, options.seeds, device)


if __name__ == "__main__":
    main()
