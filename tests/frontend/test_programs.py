# SPDX-License-Identifier: Apache-2.0
"""Right programs: whatever Python a function uses, its graph computes what eager torch computes."""
# ruff: noqa: PIE800, PIE804, RET504, RUF015

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections import namedtuple
from functools import partial

import pytest
import torch
import torch as T
import torch.nn.functional as F
from torch import nn
from torch.nn import functional as FF

from tests.frontend.tracing import check

SCALE = 3.0
CONFIG = {"scale": 2.0, "layers": [1, 2]}
ACTIVATIONS = {"relu": F.relu, "double": lambda v: v * 2}
Pair = namedtuple("Pair", ["first", "second"])


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (4, 6))


def layer_norm(x, weight, bias, eps=1e-5):
    """A docstring."""
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


def helper(v, by: float = 2.0, *, plus=1):
    return v * by + plus


def recursive(v, n):
    if n == 0:
        return v
    return recursive(v, n - 1) * 2


def uses_helpers(x):
    return helper(x) + helper(x, 3.0, plus=2) + helper(by=0.5, v=x)


def uses_recursion(x):
    return recursive(x, 3)


def exp(v):
    return v + 100


def own_exp(x):
    return exp(x)


def parameter_shadows_global(x, SCALE):
    return x * SCALE


def local_shadows_global(x):
    SCALE = 5.0
    return x * SCALE


def loop_variable_shadows(x):
    total = x
    for SCALE in range(3):
        total = total + SCALE
    return total * SCALE


def comprehension_has_own_scope(x):
    v = 7
    parts = [v * x for v in (1, 2, 3)]
    return parts[0] + parts[1] + parts[2] + v


def module_aliases(x):
    return T.exp(x) + FF.silu(x) + F.relu(x)


def global_values(x):
    return x * SCALE + CONFIG["scale"] * CONFIG["layers"][1]


def calls_through_dict(x, name="relu"):
    return ACTIVATIONS[name](x) + ACTIVATIONS["double"](x)


def static_if(x, mode="a", flag=True, other=None):
    if mode == "a" and flag:
        y = x + 1
    elif mode == "b":
        y = x + 2
    else:
        y = x + 3
    if other is not None:
        return y * other
    return y


def early_return(x, n=3):
    for i in range(n):
        x = x * 1.5
        if i == 1:
            return x
    return x - 1


def loops(x):
    total = torch.zeros_like(x)
    for i, (a, b) in enumerate(zip([1, 2, 3], (4.0, 5.0, 6.0), strict=True)):
        if i == 1:
            continue
        total = total + x * a + b
    else:
        total = total + 0.5
    n = 0
    while n < 3:
        total = total * 1.1
        n += 1
        if n == 2:
            break
    else:
        total = total * 100
    return total


def comprehensions(x):
    parts = [x + i for i in range(4) if i % 2 == 0]
    table = {f"k{i}": x * i for i in range(2)}
    return sum(parts) + table["k1"], [p * 2 for p in parts], tuple(v for v in table.values())


def conditional_expression(x, flag=False):
    return (x if flag else x * 2) + (1 if x.dim() == 2 else 0)


def chained(x):
    if 1 < x.ndim <= 3 < 5:
        return x + 1
    return x


def walrus(x):
    if (n := x.shape[-1]) > 2:
        return x * n
    return x


def shapes(x):
    b, *rest = x.shape
    n = x.size(-1)
    return x / n + b * math.sqrt(n) + len(x) + rest[0] // 2 + x.numel() % 7 + x.shape[:1][0]


def several_outputs(x):
    y = x * 2
    return {"y": y, "both": (y, y + 1), "list": [y, 3, None, "s"]}


def named_tuple(x):
    p = Pair(x + 1, second=x * 2)
    return Pair(p.second, p.first)


def unpacking(x):
    (a, b), c = (x + 1, x + 2), x + 3
    first, *middle, last = [a, b, c, a * b]
    d = {**{"p": first}, "q": last}
    args = [d["p"], d["q"]]
    return torch.add(*args, **{"alpha": 2}) + middle[0]


def no_grad(x):
    with torch.no_grad(), contextlib.nullcontext():
        y = x + 1
    return y


def annotations(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    y: torch.Tensor = x + eps
    z: torch.Tensor
    z = y * 2
    return z


def nested(x):
    scale = 2.0

    def inner(v, by=scale):
        return v * by + offset

    offset = 1.0
    twice = lambda v: inner(v) * 2  # noqa: E731
    return twice(x) + (lambda v: v - 1)(x)


def nested_state(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return count

    bump()
    return x * bump() + count


def builtins_on_values(x):
    values = [3, 1, 2]
    pairs = list(zip(sorted(values), reversed(values), strict=True))
    best = max(x.shape[0], 2) + min(values) + abs(-3) + round(2.6) + int(3.7) + sum(values)
    ok = isinstance(x, torch.Tensor) and not isinstance(best, str) and all(v > 0 for v in values) and any(values)
    return x * best + pairs[0][1] if ok else x


def functional_tools(x):
    add = partial(operator.add, x)
    total = functools.reduce(lambda a, b: a + b, [x, x, x])
    return add(total) + list(map(torch.exp, [x]))[0] + torch.stack(list(filter(None, [0, 1])) * 0 + [x])[0]


def strings(x, kind="sum"):
    name = f"{kind}_{x.ndim}d".upper().lower()
    if name.startswith("sum") and "2d" in name and name in ("sum_2d", "other"):
        return x.sum(-1)
    raise ValueError(f"unknown {kind}")


def asserted(x, w):
    assert x.shape[-1] == w.shape[0], f"sizes {x.shape[-1]} and {w.shape[0]} differ"
    assert x.dtype in (torch.float32, torch.float64)
    assert x.is_floating_point() and x.device.type in ("cpu", "cuda", "meta") and not x.is_sparse
    return x * w


def compares_shapes(x, y):
    if x.shape == y.shape and x.shape != (3, 6) and x.shape[:1] == (4,) and x.size()[1:] == y.shape[1:]:
        return x + len(f"{x.shape[0]:>4}{[y.shape[1]]}")
    return y


def sized(x):
    b, n = x.shape
    return x.reshape(b, n // 2, 2).sum(-1), x.view(-1), x.new_zeros(x.shape) + torch.full((b, 1), 2.0)


def tensor_comparison(x):
    return (x > 0) & ~(x > 1) | (x == 0.5)


def variadic(*xs, scale=1.0, **named):
    total = xs[0]
    for v in xs[1:]:
        total = total + v
    return total * scale + named["bias"]


def containers(pair, table):
    a, b = pair
    return a * table["w"] + b * table["n"]


def imports(x):
    import math as m

    from torch import rsqrt as inverse_root

    return inverse_root(x.abs() + m.pi)


def matrix_product(x):
    y = x @ x.t()
    return F.relu(y) + y.sum()


def split(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def sliced(x):
    return x[:, 1:] - x[:, :-1], x[0], x[..., None]


def scalar_math(x, eps, n):
    return x * (math.exp(eps) + n**2 - n // 2) / max(n, 3) + (eps if n > 2 else -eps)


def int_as_dim(x, dim=-1):
    return x.sum(dim) if dim < 0 else x.mean(dim=dim, keepdim=True)


def returns_argument(x):
    return x, x + 1


def print_free(x):
    """Nothing is returned on purpose."""
    x + 1


def underscore(x):
    _, y = x.max(-1)
    m, i = torch.max(x, dim=0)
    return y, m, i


PROGRAMS = [
    (uses_helpers, [x()]),
    (uses_recursion, [x()]),
    (own_exp, [x()]),
    (parameter_shadows_global, [x(), 0.5]),
    (local_shadows_global, [x()]),
    (loop_variable_shadows, [x()]),
    (comprehension_has_own_scope, [x()]),
    (module_aliases, [x()]),
    (global_values, [x()]),
    (calls_through_dict, [x()]),
    (static_if, [x()]),
    (static_if, [x(), "b"]),
    (static_if, [x(), "a", False, x()]),
    (early_return, [x()]),
    (early_return, [x(), 1]),
    (loops, [x()]),
    (comprehensions, [x()]),
    (conditional_expression, [x()]),
    (conditional_expression, [x(), True]),
    (chained, [x()]),
    (walrus, [x()]),
    (shapes, [x()]),
    (several_outputs, [x()]),
    (named_tuple, [x()]),
    (unpacking, [x()]),
    (no_grad, [x()]),
    (annotations, [x()]),
    (nested, [x()]),
    (nested_state, [x()]),
    (builtins_on_values, [x()]),
    (functional_tools, [x()]),
    (strings, [x()]),
    (asserted, [x(), x(6)]),
    (tensor_comparison, [x()]),
    (compares_shapes, [x(), x()]),
    (sized, [x()]),
    (containers, [(x(), x()), {"w": x(6), "n": 3}]),
    (imports, [x()]),
    (matrix_product, [x()]),
    (split, [x()]),
    (sliced, [x()]),
    (scalar_math, [x(), 0.1, 5]),
    (int_as_dim, [x()]),
    (int_as_dim, [x(), 0]),
    (returns_argument, [x()]),
    (print_free, [x()]),
    (underscore, [x()]),
]


@pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=[fn.__name__ for fn, _ in PROGRAMS])
def test_program_computes_what_eager_computes(fn, args):
    check(fn, *args)


def test_layer_norm():
    check(layer_norm, x(5, 7), x(7), x(7))
    check(layer_norm, x(5, 7), x(7), x(7), eps=0.1)


def test_variadic_arguments():
    check(variadic, x(), x(), x(), scale=2.0, bias=x(6))


class Scaled:
    def __init__(self, weight, eps):
        self.weight = weight
        self.eps = eps
        self.nothing = None

    @property
    def doubled(self):
        return self.weight * 2

    @staticmethod
    def square(v):
        return v * v

    @classmethod
    def zero(cls):
        return 0.0

    def forward(self, x, bias=1.0):
        y = self.helper(x) * self.doubled + self.square(x) + self.zero()
        return y if self.nothing is None and hasattr(self, "eps") else x

    def helper(self, x):
        return x / (getattr(self, "eps", 1.0) + getattr(self, "missing", 1.0))


class Child(Scaled):
    def helper(self, x):
        return super().helper(x) + 1


@pytest.mark.parametrize("cls", [Scaled, Child])
def test_method(cls):
    check(cls.forward, cls(x(6), 0.5), x())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.layers = nn.ModuleList([nn.SiLU(), nn.Softmax(-1)])
        self.gain = nn.Parameter(torch.randn(6))
        self.stack = nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Tanh())

    def forward(self, x):
        y = self.norm(x)
        for layer in self.layers:
            y = layer(y)
        return self.stack(y) * self.gain if not self.training else y


def test_module():
    with torch.no_grad():
        check(Block.forward, Block().eval(), x())


def test_closure():
    weight, factor = x(6), 2.5

    def inside(v):
        return scaled(v) + weight

    def scaled(v):
        return v * factor

    check(inside, x())


@pytest.mark.parametrize("device", ["meta"])
def test_meta_arguments_give_the_graph_of_real_ones(device):
    from tests.frontend.tracing import traced

    real = traced(layer_norm, x(5, 7), x(7), x(7))
    meta = traced(layer_norm, *(torch.empty(s, device=device) for s in ((5, 7), (7,), (7,))))
    assert real.graph == meta.graph
