# SPDX-License-Identifier: Apache-2.0
"""A small transformer block trained with fused pieces and without: the losses agree at every step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl

WIDTH, TOKENS, CLASSES = 16, 6, 11


@fusedsl.fuse
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


@fusedsl.fuse
def attention_weights(scores: Tensor, scale: float) -> Tensor:
    return F.softmax(scores * scale, -1)


@fusedsl.fuse
def add_and_norm(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + update
    return total, F.layer_norm(total, (total.shape[-1],), weight, bias)


@fusedsl.fuse
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


@fusedsl.fuse
def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


class Block(torch.nn.Module):
    """Attention with one head, an MLP, a classifier; the matrix products are torch's."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.embedding = torch.nn.Parameter(torch.randn(CLASSES, WIDTH))
        self.projections = torch.nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH**0.5)
        self.up = torch.nn.Parameter(torch.randn(WIDTH, 2 * WIDTH) / WIDTH**0.5)
        self.down = torch.nn.Parameter(torch.randn(2 * WIDTH, WIDTH) / WIDTH**0.5)
        self.head = torch.nn.Parameter(torch.randn(WIDTH, CLASSES) / WIDTH**0.5)
        self.bias = torch.nn.Parameter(torch.zeros(2 * WIDTH))
        self.norms = torch.nn.ParameterList(torch.nn.Parameter(f(WIDTH)) for f in (torch.ones, torch.zeros) * 2)

    def piece(self, fn: Any, *args: Any) -> Any:
        return (fn if self.fused else fn.reference)(*args)

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        x = self.embedding[tokens]
        normed = self.piece(layer_norm, x, self.norms[0], self.norms[1])
        query, key, value = normed @ self.projections.unsqueeze(1)
        weights = self.piece(attention_weights, query @ key.transpose(-1, -2), WIDTH**-0.5)
        x, normed = self.piece(add_and_norm, x, weights @ value, self.norms[2], self.norms[3])
        x = x + self.piece(bias_gelu, normed @ self.up, self.bias) @ self.down
        loss: Tensor = self.piece(loss_of, (x @ self.head).flatten(0, 1), target.flatten())
        return loss


def train(fused: bool, device: str, steps: int) -> list[float]:
    torch.manual_seed(1)
    block = Block(fused).to(device)
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.02)
    tokens = torch.randint(CLASSES, (2, TOKENS)).to(device)
    target = (tokens * 3 + 1) % CLASSES
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = block(tokens, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_agree_at_every_step(device: str) -> None:
    fused, plain = train(True, device, 20), train(False, device, 20)
    torch.testing.assert_close(torch.tensor(fused), torch.tensor(plain), rtol=1e-4, atol=1e-5)
    assert fused[-1] < 0.5 * fused[0]
