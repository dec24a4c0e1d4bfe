# SPDX-License-Identifier: Apache-2.0
"""Fused functions inside ``torch.compile``: custom ops without graph breaks, or the plain function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from fusedsl.compiled import PULLBACKS, SITES, UnknownSite


@fusedsl.fuse
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


@fusedsl.fuse
def several(items: list[Tensor], power: int, *, scale: float, flip: bool = False) -> Any:
    first, second = items
    grown = first * power + second
    return {"grown": -grown if flip else grown, "rest": (second.exp() * scale, first), "label": "kept"}


@fusedsl.fuse
def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


@fusedsl.fuse
def mixed(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(torch.tanh(x) @ w)


@fusedsl.fuse
def discrete(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(x * w), x.argmax(-1)


@fusedsl.fuse
def flattened(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp().flatten() * 2, x.reshape(-1)


@fusedsl.fuse
def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), x * 2


@fusedsl.fuse
def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, True)


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6))

    @fusedsl.fuse
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (6,), self.weight, 1e-6)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def ops_of(function: Callable[..., Any], *args: Any) -> list[str]:
    """The fused ops in the graph that Dynamo makes of a function."""
    found: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.extend(str(node.target) for node in module.graph.nodes if "fusedsl" in str(node.target) and node.users)
        return module.forward

    torch.compile(function, backend=backend, fullgraph=True)(*args)
    return found


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_values_and_gradients(device: str, backend: str, dynamic: bool | None) -> None:
    def outer(x: Tensor, w: Tensor, b: Tensor, power: int) -> Tensor:
        result = several([layer_norm(x, w, b), softmax(x)], power, scale=2.5, flip=True)
        assert result["label"] == "kept"
        return (result["grown"] + result["rest"][0]) * result["rest"][1]

    def plain(x: Tensor, w: Tensor, b: Tensor, power: int) -> Tensor:
        items = [layer_norm.reference(x, w, b), softmax.reference(x)]
        result = several.reference(items, power, scale=2.5, flip=True)
        return (result["grown"] + result["rest"][0]) * result["rest"][1]

    compiled = torch.compile(outer, backend=backend, fullgraph=True, dynamic=dynamic)
    w, b = torch.randn(6, device=device), torch.randn(6, device=device)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 6, device=device)
        before = fusedsl.stats()
        found = compiled(x, w, b, rows)
        after = fusedsl.stats()
        assert after.interpreted + after.launches >= before.interpreted + before.launches + 3
        torch.testing.assert_close(found, plain(x, w, b, rows), rtol=1e-5, atol=1e-5)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    seed = torch.randn(5, 6, device=device)
    for _ in range(2):
        found = torch.autograd.grad(compiled(*leaves, 2), leaves, seed)
        torch.testing.assert_close(found, torch.autograd.grad(plain(*leaves, 2), leaves, seed), rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(compiled(leaves[0], w, b, 2), leaves[0], seed)
    expected = torch.autograd.grad(plain(leaves[0], w, b, 2), leaves[0], seed)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_inductor(device: str) -> None:
    def outer(x: Tensor) -> Tensor:
        return softmax(x * 2).sin()

    x = torch.randn(3, 7, device=device, requires_grad=True)
    seed = torch.randn(3, 7, device=device)
    compiled = torch.compile(outer, fullgraph=True)
    found = torch.autograd.grad(compiled(x), x, seed)
    expected = torch.autograd.grad(F.softmax(x * 2, -1).sin(), x, seed)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_discrete_results(device: str) -> None:
    x, w = torch.randn(3, 4, device=device, requires_grad=True), torch.randn(4, device=device, requires_grad=True)
    compiled = torch.compile(discrete, backend="aot_eager", fullgraph=True)
    (found, places), (expected, right) = compiled(x, w), discrete.reference(x, w)
    assert torch.equal(places, right)
    seed = torch.randn(3, 4, device=device)
    torch.testing.assert_close(torch.autograd.grad(found, (x, w), seed), torch.autograd.grad(expected, (x, w), seed))


def test_eager_calls_inside(device: str) -> None:
    x, w = torch.randn(3, 4, device=device, requires_grad=True), torch.randn(4, 5, device=device, requires_grad=True)
    compiled = torch.compile(mixed, backend="aot_eager", fullgraph=True)
    seed = torch.randn(3, 5, device=device)
    found, expected = compiled(x, w), mixed.reference(x, w)
    torch.testing.assert_close(torch.autograd.grad(found, (x, w), seed), torch.autograd.grad(expected, (x, w), seed))


def test_what_becomes_an_op() -> None:
    x, w = torch.randn(3, 6), torch.randn(6)
    assert ops_of(lambda x, w: layer_norm(x, w, w), x, w) == ["fusedsl.call"]
    assert ops_of(lambda x: several([x, x], 2, scale=1.0)["rest"], x) == ["fusedsl.call"]
    factor = 3.0

    @fusedsl.fuse
    def closure(x: Tensor) -> Tensor:
        return x * factor

    norm = Norm()
    for function in (closure, turned, dropped, norm.forward, norm):
        assert ops_of(lambda x, function=function: function(x), x) == []
    assert ops_of(mixed, torch.randn(2, 3), torch.randn(3, 2)) == []
    compiled = torch.compile(turned, backend="eager", fullgraph=True)
    assert compiled(x)[0].data_ptr() == x.data_ptr()
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), norm.forward.reference(x))
    (gradient,) = torch.autograd.grad(compiled(x).sum(), norm.weight)
    torch.testing.assert_close(gradient, torch.autograd.grad(norm.forward.reference(x).sum(), norm.weight)[0])


def site_of(function: Any, *args: Any) -> str:
    """The name of the function in a compiled graph, which is made now."""
    torch.compile(lambda *a: function(*a), backend="eager", fullgraph=True)(*args)
    return next(name for name in reversed(SITES) if f".{function.__name__}:" in name)


@pytest.mark.parametrize("wanted", [[], [0], [0, 1, 2]])
def test_opcheck(device: str, wanted: list[int]) -> None:
    tensors = [torch.randn(shape, device=device) for shape in ((4, 6), (6,), (6,))]
    site = site_of(layer_norm, *tensors)
    leaves = [t.requires_grad_(place in wanted) for place, t in enumerate(tensors)]
    torch.library.opcheck(torch.ops.fusedsl.call, (site, leaves, [], [1e-5], wanted))
    if wanted:
        name = next(name for name in PULLBACKS if name.startswith(site))
        site_, _, derivative = PULLBACKS[name]
        assert SITES[site] is site_
        graph = derivative.made.backward
        sizes = {"x.0": 4, "x.1": 6}
        shapes = [[sizes.get(str(e), e) for e in graph[i].tensor.shape] for i in graph.inputs]
        arguments = [torch.randn(shape, device=device) for shape in shapes]  # type: ignore[arg-type]
        torch.library.opcheck(torch.ops.fusedsl.pull_back, (name, arguments, [], [1e-5]))


def test_opcheck_of_a_view(device: str) -> None:
    """What torch returns as a view of an argument is copied: ops may not return views."""
    x = torch.randn(3, 6, device=device)
    site = site_of(flattened, x)
    for found in (torch.ops.fusedsl.call(site, [x], [], [], []), flattened(x)):
        torch.testing.assert_close(tuple(found), flattened.reference(x))
    torch.library.opcheck(torch.ops.fusedsl.call, (site, [x.requires_grad_()], [], [], [0]))


def test_a_graph_of_another_process() -> None:
    with pytest.raises(UnknownSite, match="nowhere is not known in this process"):
        torch.ops.fusedsl.call("nowhere", [torch.ones(2)], [], [], [])
    with pytest.raises(UnknownSite, match="nothing is not known in this process"):
        torch.ops.fusedsl.pull_back("nothing", [torch.ones(2)], [], [])
