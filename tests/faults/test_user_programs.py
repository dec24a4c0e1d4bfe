# SPDX-License-Identifier: Apache-2.0
"""Small functions as people who train models write them: values, dtypes, strides and kinds of results as in eager."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusedsl

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Scaling:
    """Class-level settings and functions."""

    factor = 2.0

    @staticmethod
    def double(x: Tensor) -> Tensor:
        return x * 2

    @classmethod
    def scale(cls, x: Tensor) -> Tensor:
        return x * cls.factor


class Act(enum.Enum):
    SILU = "silu"
    GELU = "gelu"


class Pair(NamedTuple):
    """A result with a method."""

    value: Tensor
    bias: Tensor

    def total(self) -> Tensor:
        return self.value.sum(-1) + self.bias


def rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def add_dropout_norm(x: Tensor, residual: Tensor, weight: Tensor, p: float = 0.0) -> Any:
    h = residual + F.dropout(x, p=p)
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, h


def causal_attention_weights(scores: Tensor) -> Tensor:
    length = scores.shape[-1]
    mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    return (30 * torch.tanh(scores / 30)).masked_fill(mask, float("-inf")).softmax(-1)


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: int, lr: float = 1e-3) -> Any:
    m, v = torch.lerp(m, g, 0.1), 0.999 * v + 0.001 * g * g
    return p - lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8), m, v


def quantise(x: Tensor) -> Any:
    scale = x.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-8) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8), scale


def normalise_image(x: Tensor) -> Tensor:
    return (x - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD, device=x.device)[:, None, None]


def factories(x: Tensor) -> Any:
    return x * torch.linspace(0, 1, 4), x[:, :3] @ torch.tensor([[1.0], [2.0], [3.0]]), torch.logspace(0, 1, 3)


def numpy_names(x: Tensor) -> Any:
    return x.sum(axis=1, keepdims=True), torch.mean(x, axis=-1), x.std(axis=0)  # type: ignore[call-overload]


def moves(x: Tensor, y: Tensor) -> Any:
    return x.to(y.device), y.to(device=x.device, dtype=torch.float16), x.to(x.device, torch.float64, non_blocking=True)


def named_results(x: Tensor) -> Any:
    best = torch.topk(x, 2, dim=-1)
    return best.values * 2, best.indices, torch.sort(x, dim=0), x.max(-1), x.min(0, keepdim=True), x.aminmax(dim=1)


def classes(x: Tensor) -> Tensor:
    return Scaling.double(x) + Scaling.scale(x) + Scaling.factor


def switch(x: Tensor, act: Act) -> Tensor:
    return F.silu(x) if act is Act.SILU else F.gelu(x)


def tuple_method(x: Tensor, bias: Tensor) -> Any:
    pair = Pair(x * 2, bias)
    return pair, pair._replace(bias=bias + 1).total()


def module_dicts(layers: nn.ModuleDict, weights: nn.ParameterDict, x: Tensor) -> Any:
    return layers["act"](x) * weights["scale"] + layers["norm"](x)


def _modules() -> tuple[nn.Module, nn.Module]:
    layers = nn.ModuleDict({"act": nn.GELU(), "norm": nn.LayerNorm(4)})
    return layers, nn.ParameterDict({"scale": torch.linspace(1, 2, 4)})


_PROGRAMS: list[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (rotary, lambda: (torch.randn(2, 3, 4, 8), torch.randn(2, 1, 4, 8), torch.randn(4, 8), torch.randn(4, 8))),
    (swiglu, lambda: (torch.randn(3, 16),)),
    (add_dropout_norm, lambda: (torch.randn(3, 16), torch.randn(3, 16), torch.randn(16))),
    (causal_attention_weights, lambda: (torch.randn(2, 5, 5),)),
    (adam, lambda: (torch.randn(5), torch.randn(5), torch.randn(5), torch.rand(5), 3)),
    (quantise, lambda: (torch.randn(4, 9),)),
    (normalise_image, lambda: (torch.rand(2, 3, 4, 4),)),
    (normalise_image, lambda: (torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),)),
    (factories, lambda: (torch.randn(3, 4),)),
    (numpy_names, lambda: (torch.randn(3, 4),)),
    (moves, lambda: (torch.randn(3, 4), torch.randn(3, 4))),
    (named_results, lambda: (torch.randn(3, 4),)),
    (classes, lambda: (torch.randn(3, 4),)),
    (switch, lambda: (torch.randn(3, 4), Act.GELU)),
    (tuple_method, lambda: (torch.randn(3, 4), torch.randn(3))),
    (module_dicts, lambda: (*_modules(), torch.randn(3, 4))),
]


@pytest.mark.parametrize(("program", "make"), _PROGRAMS, ids=lambda x: getattr(x, "__name__", None))
def test_as_in_eager(program: types.FunctionType, make: Callable[[], tuple[Any, ...]]) -> None:
    torch.manual_seed(0)
    arguments = make()
    _same(fusedsl.fuse(program)(*arguments), program(*arguments))


def _same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, Tensor):
        torch.testing.assert_close(got, expected, check_stride=True)
        assert got.requires_grad == expected.requires_grad
    elif isinstance(expected, tuple):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            _same(one, other)
    else:
        assert got == expected


def test_a_class_attribute_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, x = fusedsl.fuse(classes), torch.ones(3)
    torch.testing.assert_close(fused(x), classes(x))
    monkeypatch.setattr(Scaling, "factor", 5.0)
    torch.testing.assert_close(fused(x), classes(x))
    monkeypatch.setattr(Scaling, "double", staticmethod(lambda x: x - 7))
    torch.testing.assert_close(fused(x), classes(x))


def test_a_move_to_another_device_says_so() -> None:
    @fusedsl.fuse
    def moved(x: Tensor) -> Tensor:
        return x.to("cuda:0") * 2

    with pytest.raises(fusedsl.FuseError, match="moves a tensor from cpu to cuda:0"):
        moved(torch.ones(3))


def test_one_kernel_where_one_is_possible() -> None:
    x = torch.randn(3, 16)
    for program, arguments in (
        (add_dropout_norm, (x, x, x[0])),
        (causal_attention_weights, (torch.randn(2, 5, 5),)),
        (adam, (x, x, x, x.abs(), 3)),
        (quantise, (x,)),
    ):
        assert len(fusedsl.fuse(program).explain(*arguments).segments) == 1, program.__name__
