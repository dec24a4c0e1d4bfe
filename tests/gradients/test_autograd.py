# SPDX-License-Identifier: Apache-2.0
"""Fused calls in PyTorch's autograd: what is recorded, saved, passed back and refused."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fusedsl
from benchmarks.timing import measure_host


def leaf(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype).requires_grad_()


def gradients(fn: Callable[..., Tensor], seed: Tensor | None, *leaves: Tensor, retain: bool = False) -> list[Any]:
    """The gradients that one backward call accumulates."""
    for x in leaves:
        x.grad = None
    fn(*leaves).backward(seed, retain_graph=retain)
    return [x.grad for x in leaves]


def assert_gradients_match(fn: Any, seed: Tensor | None, *leaves: Tensor, **tolerance: float) -> None:
    torch.testing.assert_close(
        gradients(fn, seed, *leaves), gradients(fn.reference, seed, *leaves), equal_nan=True, **tolerance
    )


@fusedsl.fuse
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


@fusedsl.fuse
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


@fusedsl.fuse
def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


@fusedsl.fuse
def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


@fusedsl.fuse
def several(x: Tensor, y: Tensor) -> Any:
    product = x * y
    return {"sin": product.sin(), "pair": (product.exp(), x.argmax(-1)), "same": x, "label": "kept", "total": y.sum()}


# what is recorded ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layer_norm(device: str, dtype: torch.dtype) -> None:
    leaves = [leaf(*shape, device=device, dtype=dtype) for shape in ((6, 33), (33,), (33,))]
    seed = torch.randn(6, 33, device=device, dtype=dtype)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    expected = gradients(layer_norm.reference, seed.double(), *wide)
    for _ in range(2):
        found = gradients(layer_norm, seed, *leaves)
        for got, want in zip(found, expected, strict=True):
            assert got.dtype is dtype
            tolerance = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[dtype]
            torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def test_nothing_is_recorded_where_nothing_asks(device: str) -> None:
    x = leaf(3, 5, device=device)
    assert softmax(x).requires_grad
    assert not softmax(x.detach()).requires_grad
    with torch.no_grad():
        assert not softmax(x).requires_grad
    with torch.inference_mode():
        assert softmax(x).is_inference()
        assert not softmax(x).requires_grad
    assert softmax(x).requires_grad
    torch.testing.assert_close(softmax(x), softmax.reference(x))


def test_results_that_carry_no_gradient(device: str) -> None:
    x, y = leaf(3, 5, device=device), torch.randn(3, 5, device=device)
    result = several(x, y)
    assert result["same"] is x
    assert result["label"] == "kept"
    assert result["sin"].requires_grad and result["pair"][0].requires_grad
    assert not result["pair"][1].requires_grad and not result["total"].requires_grad
    (gradient,) = torch.autograd.grad(result["sin"].sum() + result["pair"][0].sum(), x)
    torch.testing.assert_close(gradient, ((x * y).cos() + (x * y).exp()).detach() * y)


def test_only_discrete_results(device: str) -> None:
    @fusedsl.fuse
    def positions(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.argmax(-1), x > 0

    x = leaf(3, 5, device=device)
    assert all(not r.requires_grad for r in positions(x))
    torch.testing.assert_close(positions(x)[0], x.argmax(-1))


def test_steps_have_the_gradient_zero(device: str) -> None:
    @fusedsl.fuse
    def steps(x: Tensor, y: Tensor) -> Tensor:
        return x.floor() + (y > 0)

    x, y = leaf(3, 5, device=device), leaf(3, 5, device=device)
    found = gradients(steps, torch.ones(3, 5, device=device), x, y)
    assert torch.equal(found[0], torch.zeros(3, 5, device=device))
    assert found[1] is None


def test_captured_and_nested_tensors(device: str) -> None:
    scale = leaf(5, device=device)

    @fusedsl.fuse
    def nested(items: dict[str, list[Tensor]], power: float) -> Tensor:
        return (items["xs"][0] * scale + items["xs"][1]) * power

    x, y = leaf(3, 5, device=device), leaf(5, device=device)
    for power in (2.0, 3.0):
        found = torch.autograd.grad(nested({"xs": [x, y]}, power).sum(), (x, y, scale))
        expected = torch.autograd.grad(nested.reference({"xs": [x, y]}, power).sum(), (x, y, scale))
        torch.testing.assert_close(found, expected)
    scale = leaf(5, device=device)
    assert torch.autograd.grad(nested({"xs": [x, y]}, 2.0).sum(), scale)[0].shape == (5,)


def test_a_module(device: str) -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8))

        @fusedsl.fuse
        def forward(self, x: Tensor) -> Tensor:
            return F.rms_norm(x, (8,), self.weight, 1e-6)

    norm = Norm().to(device)
    x = torch.randn(4, 8, device=device)
    for _ in range(2):  # accumulates
        norm(x).square().sum().backward()
    (expected,) = torch.autograd.grad(norm.forward.reference(x).square().sum(), norm.weight)
    torch.testing.assert_close(norm.weight.grad, expected * 2)
    norm.weight.requires_grad_(False)
    assert not norm(x).requires_grad
    norm.weight.requires_grad_(True)
    assert norm(x).requires_grad


# gradients that come in ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [gelu, softmax, rms_norm, layer_norm])
def test_incoming_gradients_of_any_layout(device: str, fn: Any) -> None:
    shapes = [(6, 8), (8,), (8,)][: len(fn.__signature__.parameters) if hasattr(fn, "__signature__") else None]
    count = {gelu: 1, softmax: 1, rms_norm: 2, layer_norm: 3}[fn]
    leaves = [leaf(*shape, device=device) for shape in shapes[:count]]
    seeds = [
        torch.tensor(1.0, device=device).expand(6, 8),
        torch.randn(8, 6, device=device).t(),
        torch.randn(6, 16, device=device)[:, ::2],
        torch.randn(1, 8, device=device).expand(6, 8),
        torch.complex(torch.zeros(6, 8, device=device), torch.randn(6, 8, device=device)).conj().imag,
    ]
    for seed in seeds:
        assert_gradients_match(fn, seed, *leaves, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradients(fn, seed, *leaves), gradients(fn, seed.clone(), *leaves))


def test_outputs_that_nobody_used(device: str) -> None:
    x, y = leaf(3, 5, device=device), leaf(3, 5, device=device)
    for key in ("sin", "total"):
        found = torch.autograd.grad(several(x, y)[key].sum(), (x, y), allow_unused=True)
        expected = torch.autograd.grad(several.reference(x, y)[key].sum(), (x, y), allow_unused=True)
        for got, want in zip(found, expected, strict=True):
            # A gradient that torch leaves out may be zeros here: the function is one node.
            torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want)


def test_accumulation_and_hooks(device: str) -> None:
    x = leaf(3, 5, device=device)
    seen = []
    for factor in (1.0, 2.0):
        y = gelu(x)
        y.register_hook(seen.append)
        (y * factor).sum().backward()
    assert [s.unique().tolist() for s in seen] == [[1.0], [2.0]]
    (expected,) = torch.autograd.grad(F.gelu(x).sum() * 3, x)
    torch.testing.assert_close(x.grad, expected)


def test_a_call_used_twice_and_kept(device: str) -> None:
    x = leaf(3, 5, device=device)
    y = softmax(x)
    loss = (y * y).sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)
    second = torch.autograd.grad(loss, x)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, x)


def test_two_calls_in_a_chain_share_inputs(device: str) -> None:
    x, w = leaf(4, 8, device=device), leaf(8, device=device)

    def chain(norm: Any, act: Any) -> Tensor:
        return act(norm(x, w)) + norm(act(x), w)

    found = torch.autograd.grad(chain(rms_norm, gelu).sum(), (x, w))
    expected = torch.autograd.grad(chain(rms_norm.reference, gelu.reference).sum(), (x, w))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_an_addition_passes_the_gradient_on(device: str) -> None:
    @fusedsl.fuse
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    x, y, seed = leaf(3, 5, device=device), leaf(3, 5, device=device), torch.randn(3, 5, device=device)
    found = gradients(add, seed, x, y)
    assert torch.equal(found[0], seed) and torch.equal(found[1], seed)
    found[0].add_(1.0)
    assert torch.equal(found[1], seed), "leaves do not share their gradients"


def test_sizes_change_and_compile_nothing(device: str) -> None:
    w = leaf(16, device=device)
    for rows in (3, 5, 3, 1, 7):
        assert_gradients_match(rms_norm, torch.randn(rows, 16, device=device), leaf(rows, 16, device=device), w,
                               rtol=1e-5, atol=1e-5)  # fmt: skip


def test_empty_tensors(device: str) -> None:
    @fusedsl.fuse
    def sums(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum(1) + (x + y).sum()

    x, y = leaf(5, 0, device=device), leaf(5, 0, device=device)
    assert [g.shape for g in gradients(sums, torch.ones(5, device=device), x, y)] == [(5, 0), (5, 0)]


# what is saved ---------------------------------------------------------------------------------------------------


def test_changing_a_saved_tensor_is_noticed(device: str) -> None:
    x = leaf(3, 5, device=device)
    y = softmax(x)
    with torch.no_grad():
        y.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    other = torch.randn(3, 5, device=device)
    product = several(x, other)["sin"]
    other.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_what_is_not_read_is_not_held(device: str) -> None:
    """softmax keeps its result only, a sum nothing."""

    @fusedsl.fuse
    def total(x: Tensor) -> Tensor:
        return x.sum()

    for fn, held in ((softmax, False), (total, False), (gelu, True)):
        x = leaf(3, 5, device=device)
        inner = x * 1
        result = fn(inner)
        reference = weakref.ref(inner)
        del inner
        gc.collect()
        assert (reference() is not None) == held
        assert result.requires_grad


def test_the_graph_is_freed(device: str) -> None:
    x = leaf(3, 5, device=device)
    y = softmax(gelu(x))
    references = [weakref.ref(y), weakref.ref(y.grad_fn)]
    del y
    assert [r() for r in references] == [None, None]


def test_saved_tensor_hooks_and_checkpointing(device: str) -> None:
    x, w = leaf(4, 8, device=device), leaf(8, device=device)
    packed = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.shape)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = rms_norm(x, w)
    assert packed
    expected = torch.autograd.grad(rms_norm.reference(x, w).sum(), (x, w))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), (x, w)), expected)
    for reentrant in (False, True):
        x.grad = w.grad = None
        checkpoint(lambda x, w: gelu(rms_norm(x, w)), x, w, use_reentrant=reentrant).sum().backward()
        expected = torch.autograd.grad(F.gelu(rms_norm.reference(x, w)).sum(), (x, w))
        torch.testing.assert_close((x.grad, w.grad), expected)


# views, in-place, no_grad inside ------------------------------------------------------------------------------------


def test_results_that_are_views(device: str) -> None:
    @fusedsl.fuse
    def views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.t(), x * 2, y.expand(x.shape), x.detach(), x

    x, y = leaf(3, 5, device=device), leaf(5, device=device)
    for _ in range(2):
        turned, doubled, spread, stopped, same = views(x, y)
        assert turned.data_ptr() == x.data_ptr() == stopped.data_ptr()
        assert same is x and not stopped.requires_grad
        loss = turned.sin().sum() + doubled.sum() + (spread * x).sum() + stopped.sum()
        found = torch.autograd.grad(loss, (x, y))
        torch.testing.assert_close(found, (x.cos() + 2 + y, x.sum(0)))
    with torch.no_grad():
        assert torch.equal(views(x, y)[0], x.t())
    base = x * 1
    views(base, y)[0].mul_(2.0)
    assert torch.equal(base, x * 2)


def test_detach_and_no_grad_inside(device: str) -> None:
    @fusedsl.fuse
    def partly(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            scale = x.exp() + 1
            with torch.enable_grad():
                tracked = x * 5
        fixed = x.detach().unsqueeze(0).squeeze(0)
        return x * scale + x.sin() * fixed + tracked, scale

    x = leaf(3, 5, device=device)
    result, scale = partly(x)
    expected, expected_scale = partly.reference(x)
    assert scale.requires_grad == expected_scale.requires_grad
    torch.testing.assert_close((result, scale), (expected, expected_scale))
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x), torch.autograd.grad(expected.sum(), x))


def test_straight_through_estimator(device: str) -> None:
    @fusedsl.fuse
    def quantize(x: Tensor) -> Tensor:
        return x + (torch.round(x * 4) / 4 - x).detach()

    x = leaf(3, 5, device=device)
    (gradient,) = torch.autograd.grad(quantize(x), x, torch.ones(3, 5, device=device))
    assert torch.equal(gradient, torch.ones(3, 5, device=device))


def test_in_place_inside(device: str) -> None:
    @fusedsl.fuse
    def inplace(x: Tensor) -> Tensor:
        y = x * 2
        y.mul_(x)
        y += 1
        return y.exp_()

    assert_gradients_match(inplace, torch.randn(3, 5, device=device), leaf(3, 5, device=device), rtol=1e-5, atol=1e-5)


def test_in_place_inside_no_grad_is_refused() -> None:
    @fusedsl.fuse
    def hidden(x: Tensor) -> Tensor:
        y = x * 2
        with torch.no_grad():
            y.mul_(3.0)
        return y

    @fusedsl.fuse
    def own(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
            y.mul_(3.0)
            y.add_(1.0)
        return x * y

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(fusedsl.FuseError, match=r"made inside torch.no_grad\(\), the target is made outside"):
        hidden(x)
    assert torch.autograd.grad(own(x).sum(), x)[0].tolist() == [7.0] * 3


# second derivatives ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [gelu, softmax, rms_norm, layer_norm])
def test_double_backward(device: str, fn: Any) -> None:
    count = {gelu: 1, softmax: 1, rms_norm: 2, layer_norm: 3}[fn]
    leaves = [leaf(*s, device=device, dtype=torch.float64) for s in ((3, 5), (5,), (5,))[:count]]
    seed = leaf(3, 5, device=device, dtype=torch.float64)

    def penalty(call: Any) -> tuple[Tensor, ...]:
        found = torch.autograd.grad(call(*leaves), leaves, seed, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in found), [*leaves, seed], allow_unused=True)

    for got, want in zip(penalty(fn), penalty(fn.reference), strict=True):
        assert want is None or got is not None
        if got is not None:
            torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want, rtol=1e-9, atol=1e-10)


def test_second_derivative_from_saved_intermediates(device: str) -> None:
    """The sum of the three is saved instead of them."""

    @fusedsl.fuse
    def sine(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.sin(a + b + c)

    leaves = [leaf(4, device=device, dtype=torch.float64) for _ in range(3)]
    (first,) = torch.autograd.grad(sine(*leaves).sum(), leaves[0], create_graph=True)
    second = torch.autograd.grad(first.sum(), leaves)
    for gradient in second:
        torch.testing.assert_close(gradient, -torch.sin(sum(leaves)).detach())


def test_third_derivative(device: str) -> None:
    x = leaf(4, device=device, dtype=torch.float64)
    found, expected = gelu(x), F.gelu(x)
    for _ in range(3):
        (found,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        (expected,) = torch.autograd.grad(expected.sum(), x, create_graph=True)
        torch.testing.assert_close(found, expected)


def test_second_derivatives_of_16_bit_values(device: str) -> None:
    x = torch.linspace(-2, 2, 9, device=device).bfloat16().requires_grad_()
    (first,) = torch.autograd.grad(softmax(x), x, torch.arange(9.0, device=device).bfloat16(), create_graph=True)
    (found,) = torch.autograd.grad(first.float().square().sum(), x)
    wide = x.detach().double().requires_grad_()
    (first,) = torch.autograd.grad(
        F.softmax(wide, -1), wide, torch.arange(9.0, device=device).double(), create_graph=True
    )
    (expected,) = torch.autograd.grad(first.square().sum(), wide)
    torch.testing.assert_close(found.double(), expected, rtol=3e-2, atol=3e-2)


def test_what_has_no_second_derivative_says_so() -> None:
    @fusedsl.fuse
    def product(x: Tensor) -> Tensor:
        return x.prod(-1)

    x = torch.randn(3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(product(x).sum(), x)
    torch.testing.assert_close(first, torch.autograd.grad(x.prod(-1).sum(), x)[0])
    with pytest.raises(fusedsl.FuseError, match="the gradient of prod cannot be differentiated again"):
        torch.autograd.grad(product(x).sum(), x, create_graph=True)


def test_what_has_no_gradient_says_so() -> None:
    @fusedsl.fuse
    def noisy(x: Tensor) -> Tensor:
        return torch.bernoulli(torch.sigmoid(x)) * x

    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(fusedsl.FuseError, match="bernoulli"):
        noisy(x)
    with torch.no_grad():
        assert noisy(x).shape == (3, 4)


# modes of torch ----------------------------------------------------------------------------------------------------


def test_forward_mode_sees_the_plain_function() -> None:
    x, tangent = torch.randn(3, 5), torch.randn(3, 5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        _, found = torch.autograd.forward_ad.unpack_dual(softmax(dual))
        _, expected = torch.autograd.forward_ad.unpack_dual(F.softmax(dual, -1))
    assert expected is not None
    torch.testing.assert_close(found, expected)


def test_autocast_changes_nothing_inside(device: str) -> None:
    @fusedsl.fuse
    def project(x: Tensor, w: Tensor) -> Tensor:
        return F.softmax(torch.tanh(x) @ w, -1)

    x, w, seed = leaf(3, 5, device=device), leaf(5, 4, device=device), torch.randn(3, 4, device=device)
    expected = project.reference(x, w)
    for _ in range(2):
        with torch.autocast(device, dtype=torch.bfloat16):
            found = project(x, w)
            assert found.dtype is torch.float32
            gradients_found = torch.autograd.grad(found, (x, w), seed)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        wanted = torch.autograd.grad(expected, (x, w), seed, retain_graph=True)
        torch.testing.assert_close(gradients_found, wanted, rtol=1e-4, atol=1e-5)


def test_an_eager_call_that_is_not_recorded(device: str) -> None:
    @fusedsl.fuse
    def stopped(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cumsum(x, -1)

    x = leaf(3, 5, device=device)
    assert not stopped(x).requires_grad
    torch.testing.assert_close(stopped(x), torch.cumsum(x.detach(), -1))


# threads, devices ------------------------------------------------------------------------------------------------


def test_threads(device: str) -> None:
    """Backward calls from several threads, the first ones at once."""

    @fusedsl.fuse
    def cold(x: Tensor) -> Tensor:
        return x.sin() * x

    x = leaf(3, 5, device=device)
    (expected,) = torch.autograd.grad(cold.reference(x).sum(), x)
    found: list[Tensor] = []

    def work() -> None:
        found.append(torch.autograd.grad(cold(x).sum(), x)[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for gradient in found:
        torch.testing.assert_close(gradient, expected)


@pytest.mark.gpu
def test_backward_on_the_stream_of_the_forward_call() -> None:
    x = leaf(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        y = gelu(x)
    torch.cuda.current_stream().wait_stream(stream)
    y.sum().backward()
    other = x.detach().requires_grad_()
    torch.testing.assert_close(x.grad, torch.autograd.grad(F.gelu(other).sum(), other)[0])


@pytest.mark.multi_gpu
def test_backward_on_another_device_than_the_current_one() -> None:
    x = leaf(64, 64, device="cuda:1")
    assert_gradients_match(softmax, torch.randn(64, 64, device="cuda:1"), x)
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
def test_cuda_graph_of_forward_and_backward() -> None:
    x, w = leaf(64, 256, device="cuda"), leaf(256, device="cuda")
    seed = torch.randn(64, 256, device="cuda")

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(rms_norm(x, w), (x, w), seed)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.normal_()
    graph.replay()
    torch.testing.assert_close(captured, torch.autograd.grad(rms_norm.reference(x, w), (x, w), seed),
                               rtol=1e-4, atol=1e-4)  # fmt: skip


@pytest.mark.gpu
def test_backward_twice_gives_the_same_bits() -> None:
    x, w, b = leaf(1000, 512, device="cuda"), leaf(512, device="cuda"), leaf(512, device="cuda")
    seed = torch.randn(1000, 512, device="cuda")
    first = torch.autograd.grad(layer_norm(x, w, b), (x, w, b), seed)
    for _ in range(3):
        again = torch.autograd.grad(layer_norm(x, w, b), (x, w, b), seed)
        assert all(torch.equal(p, q) for p, q in zip(first, again, strict=True))


@pytest.mark.gpu
@pytest.mark.perf
def test_host_time_of_a_recorded_call() -> None:
    x, w = leaf(32, 64, device="cuda"), leaf(64, device="cuda")
    for _ in range(10):
        rms_norm(x, w)
    times = measure_host({"recorded": lambda: rms_norm(x, w)}, 1000, 9)
    assert times["recorded"].median_us <= 20.0


# looking inside ---------------------------------------------------------------------------------------------------


def test_backward_graph_and_explanation() -> None:
    x, w, b = torch.randn(4, 8), torch.randn(8), torch.randn(8)
    graph = layer_norm.backward_graph(x, w, b)
    assert [graph[i].name for i in graph.outputs] == ["grad_x", "grad_weight", "grad_bias"]
    assert graph[graph.inputs[0]].name == "grad_output"
    graph = layer_norm.backward_graph(x.requires_grad_(), w, b)
    assert [graph[i].name for i in graph.outputs] == ["grad_x"]
    explained = layer_norm.explain(x, w, b, backward=True)
    assert explained.backward is not None
    assert explained.backward.graph.outputs
    assert {choice.kind for choice in explained.choices} == {"input", "saved", "recomputed"}
    text = str(explained)
    assert "for the gradients:\n  input x: " in text
    assert "layer_norm_backward on H200" in text
    source = layer_norm.source(x, w, b, backward=True)
    assert layer_norm.source(x.detach(), w, b) not in source
    assert all(segment.source in source for segment in explained.backward.segments)
    assert layer_norm.explain(x, w, b).backward is None


def test_kernels_of_the_gradients_compile_without_a_gpu() -> None:
    kernels = gelu.compile(torch.empty(64, 128, device="meta"), backward=True)
    assert len(kernels) == 2
    assert all(kernel.spill_bytes == 0 for kernel in kernels)


def test_nothing_to_differentiate() -> None:
    @fusedsl.fuse
    def flags(x: Tensor) -> Tensor:
        return x > 0

    explained = flags.explain(torch.randn(3), backward=True)
    assert explained.backward is not None
    assert explained.backward.graph.outputs == ()
