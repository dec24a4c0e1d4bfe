# SPDX-License-Identifier: Apache-2.0
"""Functions that change their arguments in place, run: the caller's tensors, version counters, autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusedsl
from fusedsl.gradients.errors import InPlaceGradient


def tensors(device: str, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape, device=device).to(dtype) for shape in shapes]


def twins(items: Any) -> Any:
    return [copy.deepcopy(item) if isinstance(item, nn.Module) else twin(item) for item in items]


def twin(item: Any) -> Any:
    """A tensor of the same layout and values."""
    if not isinstance(item, Tensor):
        return item
    with torch.no_grad():
        made = torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=item.device).copy_(item)
    return made.requires_grad_(item.requires_grad)


def assert_changes_alike(function: Callable[..., Any], *args: Any, calls: int = 3, rtol: float = 1e-5) -> Any:
    """Fused and eager calls on equal arguments leave equal arguments and results; the fused function's last result."""
    fused = fusedsl.fuse(function)
    copies = twins(args)
    for _ in range(calls):
        found, expected = fused(*args), function(*copies)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol)
        for one, other in zip(args, copies, strict=True):
            if isinstance(one, Tensor):
                torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)
    return found


# optimisers ----------------------------------------------------------------------------------------------------------


def sgd(p: Tensor, g: Tensor, buf: Tensor, lr: float, momentum: float = 0.9, decay: float = 0.01) -> None:
    d = g + decay * p
    buf.mul_(momentum).add_(d)
    p -= lr * buf


def adam(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor, lr: float, b1: float = 0.9, b2: float = 0.99
) -> None:
    step += 1
    m.lerp_(g, 1 - b1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)
    denom = (v / (1 - b2**step)).sqrt_().add_(1e-8)
    p.addcdiv_(m * (1 / (1 - b1**step)), denom, value=-lr)


def clipped(ps: list[Tensor], gs: list[Tensor], limit: float) -> Tensor:
    norm = sum((g.float() ** 2).sum() for g in gs).sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p, g in zip(ps, gs, strict=True):
        p.add_(g * scale, alpha=-0.1)
    return norm


@pytest.mark.parametrize("shape", [(7,), (33, 5), (4, 8, 8)])
def test_sgd(device: str, shape: tuple[int, ...]) -> None:
    assert_changes_alike(sgd, *tensors(device, shape, shape, shape), 0.05)


def test_adam(device: str) -> None:
    p, g, m, v = tensors(device, *[(33, 5)] * 4)
    assert_changes_alike(adam, p, g, m, v.abs(), torch.zeros((), device=device), 1e-2)


def test_sgd_of_16_bits(device: str) -> None:
    p, g, buf = tensors(device, *[(9, 16)] * 3, dtype=torch.bfloat16)
    assert_changes_alike(sgd, p, g, buf, 0.05, calls=1, rtol=2e-2)


def test_lists_of_parameters(device: str) -> None:
    ps, gs = tensors(device, (5, 4), (7,)), tensors(device, (5, 4), (7,))
    copies = [p.clone() for p in ps]
    fused = fusedsl.fuse(clipped)
    for _ in range(2):
        torch.testing.assert_close(fused(ps, gs, 0.5), clipped(copies, gs, 0.5))
        torch.testing.assert_close(ps, copies)


def test_a_step_over_modules_parameters(device: str) -> None:
    def step(module: nn.Module, lr: float) -> None:
        with torch.no_grad():
            module.weight.sub_(lr * module.weight)
            module.bias.zero_()

    layer = nn.Linear(5, 3, device=device)
    expected = layer.weight.detach() * 0.9
    fusedsl.fuse(step)(layer, 0.1)
    torch.testing.assert_close(layer.weight.detach(), expected)
    assert layer.bias.tolist() == [0.0] * 3


# what the caller sees ------------------------------------------------------------------------------------------------


def shifted(p: Tensor, g: Tensor) -> Tensor:
    p.add_(g)
    return p


def row_norm(h: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h.add_(x)
    return F.rms_norm(h, h.shape[-1:], w), h


@pytest.mark.parametrize("width", [5, 64, 300])
def test_rows_that_are_kept(device: str, width: int) -> None:
    h, x, w = tensors(device, (6, width), (6, width), (width,))
    _, returned = assert_changes_alike(row_norm, h, x, w)
    assert returned is h
    assert fusedsl.fuse(row_norm).explain(h, x, w).writes[0].direct


def test_the_result_is_the_argument(device: str) -> None:
    p, g = tensors(device, (4, 5), (4, 5))
    address, version = p.data_ptr(), p._version
    for count in range(1, 4):
        assert fusedsl.fuse(shifted)(p, g) is p
        assert p.data_ptr() == address and p._version >= version + count
    assert g._version == 0


@pytest.mark.parametrize(
    "view", [lambda x: x.t(), lambda x: x[::2], lambda x: x[:, 1:4], lambda x: x[:, ::2], lambda x: x[:1]]
)
def test_strided_arguments(device: str, view: Callable[[Tensor], Tensor]) -> None:
    """Only the elements of the argument change, not those between them."""
    base, grad = tensors(device, (6, 8), (6, 8))
    other = base.clone()
    fusedsl.fuse(shifted)(view(base), view(grad).clone())
    view(other).add_(view(grad))
    torch.testing.assert_close(base, other)


def test_channels_last(device: str) -> None:
    p, g = tensors(device, (2, 3, 4, 5), (2, 3, 4, 5))
    assert_changes_alike(shifted, p.to(memory_format=torch.channels_last), g)


def test_empty_and_single(device: str) -> None:
    for shape in ((), (1,), (0, 3), (1, 1)):
        assert_changes_alike(shifted, *tensors(device, shape, shape))


def test_other_dtypes(device: str) -> None:
    def changes(flags: Tensor, count: Tensor, total: Tensor) -> None:
        count += flags.sum()
        flags.logical_not_()
        total.mul_(2)

    flags = torch.tensor([True, False, True], device=device)
    count, total = torch.tensor(7, device=device), torch.arange(5, dtype=torch.float64, device=device)
    assert_changes_alike(changes, flags, count, total)


def swap(a: Tensor, b: Tensor) -> None:
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)


def by_other_elements(a: Tensor, b: Tensor) -> Tensor:
    old = a.exp()
    a.add_(b.flip(0))
    b.sub_(b.mean(0))
    return old * a.sum(0)


def after_eager(a: Tensor, b: Tensor) -> Tensor:
    first = a.chunk(2)[0] * 2
    a.copy_(b.cumsum(0))
    return first + a[:2].sum()


def as_halves(a: Tensor, b: Tensor) -> None:
    a.t().mul_(b.t() + 1)
    b.unsqueeze(0).sub_(a)


@pytest.mark.parametrize("function", [swap, by_other_elements, after_eager, as_halves])
def test_old_values_are_read_first(device: str, function: Callable[..., Any]) -> None:
    assert_changes_alike(function, *tensors(device, (4, 5), (4, 5)), calls=1)


def test_looking_inside_changes_nothing(device: str) -> None:
    p, g = tensors(device, (4, 5), (4, 5))
    kept, fused = p.clone(), fusedsl.fuse(shifted)
    fused.graph(p, g), fused.source(p, g), fused.explain(p, g), fused.compile(p, g, arch="sm_80")
    assert torch.equal(p, kept) and p._version == 0
    assert fused.reference(p, g) is p
    assert torch.equal(p, kept + g)


# memory that arguments share -----------------------------------------------------------------------------------------


def order_matters(a: Tensor, b: Tensor) -> Tensor:
    a += 1
    b *= 2
    return a * b


@pytest.mark.parametrize("apart_first", [True, False])
def test_arguments_that_share_memory(device: str, apart_first: bool) -> None:
    """A call that is known runs as it is when the next arguments of these shapes share memory."""
    fused = fusedsl.fuse(order_matters)
    if apart_first:
        for _ in range(2):
            fused(*tensors(device, (4, 3), (4, 3)))
    x, y = tensors(device, (6, 3)), tensors(device, (6, 3))
    y[0].copy_(x[0])
    for first, second in ((slice(0, 4), slice(2, 6)), (slice(0, 4), slice(0, 4)), (slice(0, 3), slice(3, 6))):
        found = fused(x[0][first], x[0][second])
        expected = order_matters(y[0][first], y[0][second])
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(x, y)


def test_captured_tensor_that_is_an_argument(device: str) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(3, device=device))

        def forward(self, x: Tensor) -> Tensor:
            self.state.mul_(2)
            return x + self.state

    fused, module = fusedsl.fuse(Holder.forward), Holder()
    assert fused(module, torch.ones(3, device=device)).tolist() == [3.0] * 3
    assert fused(module, module.state).tolist() == [8.0] * 3
    assert fused(module, torch.ones(3, device=device)).tolist() == [9.0] * 3


def test_negative_bit_and_inference_tensors(device: str) -> None:
    p = torch.randn(3, dtype=torch.complex64, device=device).conj().imag
    assert p.is_neg()
    expected = p.clone() + 1
    fusedsl.fuse(shifted)(p, torch.ones(3, device=device))
    torch.testing.assert_close(p.resolve_neg(), expected.resolve_neg())
    with torch.inference_mode():
        made = torch.zeros(3, device=device)
        fusedsl.fuse(shifted)(made, torch.ones(3, device=device))
        assert made.tolist() == [1.0] * 3
    with pytest.raises(RuntimeError, match="inference"):
        fusedsl.fuse(shifted)(made, torch.ones(3, device=device))


def test_expanded_argument_is_refused(device: str) -> None:
    p = torch.zeros(1, 3, device=device).expand(4, 3)
    with pytest.raises(fusedsl.FuseError, match="more than one element of it is one memory location") as error:
        fusedsl.fuse(shifted)(p, torch.ones(4, 3, device=device))
    assert "p.add_(g)" in str(error.value)
    assert not p.any()


def test_threads_may_share_a_function(device: str) -> None:
    """Distinct arguments of one layout through one ready call."""
    fused = fusedsl.fuse(shifted)
    pairs = [tensors(device, (5,), (5,)) for _ in range(4)]
    expected = [p + 3 * g for p, g in pairs]
    for _ in range(3):
        for p, g in pairs:
            fused(p, g)
    torch.testing.assert_close([p for p, _ in pairs], expected)


# autograd ------------------------------------------------------------------------------------------------------------


def scaled_by(x: Tensor, buf: Tensor) -> Tensor:
    buf.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
    return x * buf


def test_buffers_beside_gradients(device: str) -> None:
    (x, buf), (y, other) = tensors(device, (4, 3), (3,)), (None, None)
    y, other = x.clone().requires_grad_(), buf.clone()
    x.requires_grad_()
    fused = fusedsl.fuse(scaled_by)
    for _ in range(2):
        found, expected = fused(x, buf), scaled_by(y, other)
        torch.testing.assert_close((found, buf), (expected, other))
        found.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert not buf.requires_grad
    result = fused(x, buf)
    buf.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_second_derivatives_beside_an_update(device: str) -> None:
    def powers(x: Tensor, buf: Tensor) -> Tensor:
        with torch.no_grad():
            buf.copy_(x.mean(0))
        return (x**3 * buf).sum()

    x, buf = tensors(device, (4, 3), (3,))
    x.requires_grad_()
    for function in (fusedsl.fuse(powers), powers):
        (first,) = torch.autograd.grad(function(x, buf), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 6 * x * x.mean(0))


def test_old_value_that_a_gradient_needs_is_kept(device: str) -> None:
    def scaled_by_old(x: Tensor, buf: Tensor) -> Tensor:
        y = x * buf
        buf.zero_()
        return y

    x, buf = tensors(device, (4, 3), (3,))
    x.requires_grad_()
    kept = buf.clone()
    fusedsl.fuse(scaled_by_old)(x, buf).sum().backward()
    torch.testing.assert_close(x.grad, kept.expand(4, 3))
    assert not buf.any()


def test_parameters_change_without_grad(device: str) -> None:
    def decayed(p: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            p.mul_(0.5)
        return (x * 2).sum()

    p, x = tensors(device, (3,), (4, 3))
    p.requires_grad_()
    x.requires_grad_()
    expected = p.detach() * 0.5
    fusedsl.fuse(decayed)(p, x).backward()
    torch.testing.assert_close(p.detach(), expected)
    assert p.is_leaf and p.requires_grad and p.grad is None and x.grad is not None
    with torch.no_grad():
        assert fusedsl.fuse(shifted)(p, torch.ones(3, device=device)) is p
    torch.testing.assert_close(p.detach(), expected + 1)


def gives_gradient(buf: Tensor, x: Tensor) -> None:
    buf.add_(x)


def read_after(p: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        p.mul_(0.5)
    return p * x


def read_before(p: Tensor, x: Tensor) -> Tensor:
    y = p * x
    with torch.no_grad():
        p.mul_(0.5)
    return y


@pytest.mark.parametrize(
    ("function", "wanted", "message"),
    [
        (shifted, (0,), "a leaf Variable that requires grad is being used in an in-place operation: '.add_'"),
        (gives_gradient, (1,), "in-place '.add_' would give 'buf' a gradient"),
        (read_after, (0,), "'p' is read after in-place '.mul_', and its gradient is wanted"),
        (read_before, (0, 1), "a gradient needs the value that 'p' has before in-place '.mul_'"),
    ],
)
def test_what_autograd_would_get_wrong_is_refused(
    function: Callable[..., Any], wanted: tuple[int, ...], message: str
) -> None:
    args = [x.requires_grad_(i in wanted) for i, x in enumerate(tensors("cpu", (3,), (3,)))]
    kept = args[0].detach().clone()
    with pytest.raises(InPlaceGradient) as error:
        fusedsl.fuse(function)(*args)
    assert message in str(error.value) and "test_inplace.py" in str(error.value)
    assert torch.equal(args[0].detach(), kept)


def test_a_value_that_is_not_differentiated_may_be_read_after() -> None:
    p, x = tensors("cpu", (3,), (3,))
    x.requires_grad_()
    expected = p * 0.5
    fusedsl.fuse(read_after)(p, x).sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_non_leaf() -> None:
    p = torch.ones(3, requires_grad=True) * 2
    with pytest.raises(InPlaceGradient, match="a tensor that requires grad is being used"):
        fusedsl.fuse(shifted)(p, torch.ones(3))


# batch norm ----------------------------------------------------------------------------------------------------------


def normalised(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, momentum: float = 0.1) -> Tensor:
    return F.batch_norm(x, mean, var, weight, bias, True, momentum)


@pytest.mark.parametrize("shape", [(4, 6, 5, 3), (8, 6), (3, 6, 7), (2, 6, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_batch_norm_in_training(device: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    (x,) = tensors(device, shape, dtype=dtype)
    of_channels = torch.float32 if dtype.itemsize == 2 else dtype
    mean, var, weight, bias = tensors(device, *[(6,)] * 4, dtype=of_channels)
    rtol = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}[dtype]
    y = assert_changes_alike(normalised, x, mean, var.abs(), weight, bias, 0.3, calls=2, rtol=rtol)
    assert y.dtype is dtype


def test_batch_norm_keeps_the_memory_format(device: str) -> None:
    (x,) = tensors(device, (2, 6, 3, 4))
    x = x.to(memory_format=torch.channels_last)
    y = assert_changes_alike(
        normalised, x, *tensors(device, (6,)), torch.ones(6, device=device), *tensors(device, (6,), (6,))
    )
    assert y.is_contiguous(memory_format=torch.channels_last)


class Block(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(x))


def test_batch_norm_module_trains(device: str) -> None:
    def run(block: Block, x: Tensor) -> Tensor:
        return block(x)

    block = Block(device)
    twin_block, fused = copy.deepcopy(block), fusedsl.fuse(run)
    for _ in range(2):
        x = torch.randn(4, 6, 3, 2, device=device, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        found, expected = fused(block, x), run(twin_block, y)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        found.pow(3).sum().backward()
        expected.pow(3).sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(block.norm.weight.grad, twin_block.norm.weight.grad, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(block.state_dict(), twin_block.state_dict())
    assert block.norm.num_batches_tracked.item() == 2
    block.eval(), twin_block.eval()
    torch.testing.assert_close(fused(block, x), run(twin_block, x), rtol=1e-5, atol=1e-5)
    assert block.norm.num_batches_tracked.item() == 2


def test_instance_norm_updates_running_statistics(device: str) -> None:
    def instance(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return F.instance_norm(x, mean, var, use_input_stats=True, momentum=0.2)

    x, mean, var = tensors(device, (3, 6, 4, 2), (6,), (6,))
    assert_changes_alike(instance, x, mean, var.abs(), calls=2)


def test_compiled_callers_see_the_change() -> None:
    fused = fusedsl.fuse(shifted)

    def twice(p: Tensor, g: Tensor) -> Tensor:
        return fused(p, g) * 2

    p, g = tensors("cpu", (3,), (3,))
    expected = p + g
    found = torch.compile(twice, backend="eager", fullgraph=True)(p, g)
    torch.testing.assert_close((p, found), (expected, expected * 2))
