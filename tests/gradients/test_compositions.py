# SPDX-License-Identifier: Apache-2.0
"""Gradients of functions as users write them, what they save, and which reductions they cost."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedsl.gradients import Backward, ForwardInput
from fusedsl.graph.ops import OPS, Kind
from tests.frontend.tracing import traced
from tests.gradients.helpers import check, derived, leaf, run_backward


def reductions(made: Backward) -> list[tuple[str, tuple[int, ...]]]:
    """Op and dims of the reductions of the backward graph."""
    return sorted((n.op, n.attribute("dims")) for n in made.backward if OPS[n.op].kind is Kind.REDUCTION)


def saved_shapes(made: Backward) -> list[tuple[int, ...]]:
    return [made.forward[i].tensor.shape for i in made.forward.outputs[made.results :]]


def layer_norm(x, weight, bias, eps=1e-5):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def written_layer_norm(x, weight, bias, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


def var_layer_norm(x, weight, bias, eps=1e-5):
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


def rms_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def softmax(x):
    return F.softmax(x, -1)


def written_softmax(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def log_softmax(x):
    return F.log_softmax(x, -1)


def cross_entropy(logits, target):
    return -(F.log_softmax(logits, -1) * target).sum(-1).mean()


def batch_norm(x, weight, bias):
    var, mean = torch.var_mean(x, 0, correction=0)
    return (x - mean) * torch.rsqrt(var + 1e-5) * weight + bias


@pytest.mark.parametrize("fn", [layer_norm, written_layer_norm, var_layer_norm])
def test_layer_norm(fn) -> None:
    made = check(fn, leaf(5, 7), leaf(7), leaf(7))
    rows = made.forward[made.forward.inputs[0]].tensor.shape[0]
    assert saved_shapes(made) == [(rows, 1), (rows, 1)], "the mean and the reciprocal standard deviation"
    assert [made.forward[i].op for i in made.forward.outputs[made.results :]] == ["div", "rsqrt"]
    assert reductions(made) == [("sum", (0,)), ("sum", (0,)), ("sum", (1,)), ("sum", (1,))]


def test_frozen_weights_cost_nothing() -> None:
    made = check(layer_norm, leaf(5, 7), leaf(7).detach(), leaf(7).detach())
    assert reductions(made) == [("sum", (1,)), ("sum", (1,))]
    made = check(rms_norm, leaf(5, 7), leaf(7).detach())
    assert reductions(made) == [("sum", (1,))]
    assert len(made.backward.outputs) == 1


def test_only_weights() -> None:
    made = check(layer_norm, leaf(5, 7).detach(), leaf(7), leaf(7))
    assert reductions(made) == [("sum", (0,)), ("sum", (0,))]


def test_rms_norm() -> None:
    made = check(rms_norm, leaf(5, 7), leaf(7))
    assert [made.forward[i].op for i in made.forward.outputs[made.results :]] == ["rsqrt"]
    assert reductions(made) == [("sum", (0,)), ("sum", (1,))]


@pytest.mark.parametrize("fn", [softmax, written_softmax])
def test_softmax_keeps_its_result_only(fn) -> None:
    made = check(fn, leaf(5, 7))
    assert made.saved == ()
    assert [type(s).__name__ for s in made.sources] == ["IncomingGradient", "ForwardOutput"]
    assert reductions(made) == [("sum", (1,))]
    assert made.backward.nodes[-1].op == "mul"


def test_softmax_of_16_bits_saves_row_scalars() -> None:
    """The stored result is rounded, so it cannot stand for the probabilities."""
    made = check(softmax, leaf(5, 7, dtype=torch.bfloat16), rtol=2e-2, atol=1e-2)
    rows = made.forward[made.forward.inputs[0]].tensor.shape[0]
    assert saved_shapes(made) == [(rows,), (rows,)]
    assert all(made.forward[i].tensor.dtype is torch.float32 for i in made.forward.outputs[made.results :])
    assert ForwardInput(0) in made.sources


def test_log_softmax_and_cross_entropy() -> None:
    assert reductions(check(log_softmax, leaf(5, 7))) == [("sum", (1,))]
    made = check(cross_entropy, leaf(5, 7), leaf(5, 7, low=0.0).detach())
    assert all(len(shape) < 2 or shape[1] == 1 for shape in saved_shapes(made))


def test_batch_norm() -> None:
    made = check(batch_norm, leaf(8, 5), leaf(5), leaf(5))
    assert {dims for _, dims in reductions(made)} == {(0,)}
    assert all(len(shape) == 1 or shape[0] == 1 for shape in saved_shapes(made))


def training_batch_norm(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, training=True)


@pytest.mark.parametrize("shape", [(8, 5), (3, 5, 2, 2)])
def test_batch_norm_in_training(shape) -> None:
    """Two sums over the batch are the gradients of the parameters, and serve that of the input as well."""
    made = check(training_batch_norm, leaf(*shape), leaf(5), leaf(5))
    dims = (0, *range(2, len(shape)))
    assert {d for _, d in reductions(made)} == {dims}
    assert all(len(saved) == 1 or saved.count(1) == len(shape) - 1 for saved in saved_shapes(made)), "numbers a channel"


def test_logsumexp_ignores_its_maximum() -> None:
    def both(x):
        return torch.logsumexp(x, 1), x.amax(1)

    assert "amax" not in {op for op, _ in reductions(check(both, leaf(5, 7)))}

    def shifted(x):
        top = x.amax(1, keepdim=True)
        return (x - top).exp().sum(1)

    assert any(n.op == "eq" for n in check(shifted, leaf(5, 7)).backward), "the maximum matters here"


def test_attention_like() -> None:
    def attention_weights(scores, bias, scale=0.125):
        return F.softmax(scores * scale + bias, dim=-1)

    check(attention_weights, leaf(2, 3, 5, 7), leaf(5, 7))


def test_residual_block() -> None:
    def block(x, y, weight, bias):
        z = x + F.gelu(y)
        return F.layer_norm(z, (z.shape[-1],), weight, bias), z

    check(block, leaf(4, 6), leaf(4, 6), leaf(6), leaf(6))


def test_broadcast_gradients_have_the_operands_shapes() -> None:
    def total(x, s, b, c):
        return ((x * s + b) + c).sum()

    def twice(x, s, b, c):
        return ((x * s + b) + c + b).sum()

    for fn in (total, twice):
        check(fn, leaf(3, 4), leaf(), leaf(1, 4), leaf(4))


def test_pointwise_reads_arguments_not_saved_values() -> None:
    def gelu_bias(x, bias):
        return F.gelu(x + bias)

    made = check(gelu_bias, leaf(5, 7), leaf(7))
    assert made.saved == ()
    assert {c.kind for c in made.choices} == {"input", "recomputed"}


def test_one_saved_value_instead_of_three_arguments() -> None:
    def sine(a, b, c):
        return torch.sin(a + b + c)

    made = check(sine, leaf(5, 7), leaf(5, 7), leaf(5, 7))
    assert len(made.saved) == 1


def test_a_sum_reads_only_the_shape() -> None:
    def total(x):
        return x.sum()

    made = check(total, leaf(5, 7))
    assert ForwardInput(0, shape_only=True) in made.sources


def test_views() -> None:
    def views(x, y):
        return x.t().unsqueeze(0) * y.expand(4, 7, 5), y.squeeze(0).permute(1, 0)

    check(views, leaf(5, 7), leaf(1, 7, 5))


def test_unused_and_unconnected_arguments() -> None:
    def some(x, y, z):
        return x * 2, (y > 0).to(torch.int64) + z.floor().to(torch.int64), z.floor()

    made = check(some, leaf(3), leaf(3), leaf(3))
    assert made.differentiable == (True, False, True)
    assert made.gradients[1] is None


def test_the_same_output_twice() -> None:
    def twice(x):
        y = x.exp()
        return y, y + 0, y * 1

    check(twice, leaf(3, 4))


def test_host_scalars() -> None:
    def scaled(x, a: float, n: int):
        return x * a / n + x**n - a / (x * x + n)

    check(scaled, leaf(3, 4, low=0.5, high=2.0), 2.5, 3)


def test_masked_branches() -> None:
    """An infinite derivative of the branch that was not taken leaves no NaN (eager torch has one)."""

    def guarded(x):
        return torch.where(x > 0, torch.log(x), x * 3)

    x = torch.tensor([0.0, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    graph = traced(guarded, x).graph
    _, (gradient,) = run_backward(derived(graph, [x]), [x.detach()], [], [torch.ones(3, dtype=torch.float64)])
    torch.testing.assert_close(gradient, torch.tensor([3.0, 3.0, 0.5], dtype=torch.float64))


def test_choices_explain_themselves() -> None:
    made = check(layer_norm, leaf(5, 7), leaf(7), leaf(7))
    text = made.explain()
    assert "input x:" in text
    assert "repeats no reduction" in text
    assert text.count("saved ") == 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_classes(reduction: str, weighted: bool, smoothing: float) -> None:
    def loss(logits, target, weight):
        return F.cross_entropy(logits, target, weight, reduction=reduction, label_smoothing=smoothing)

    def plain(logits, target):
        return F.cross_entropy(logits, target, reduction=reduction, label_smoothing=smoothing)

    target = torch.tensor([0, 4, -100, 2, 1, 6])
    if weighted:
        check(loss, leaf(6, 7), target, leaf(7, low=0.5, high=1.5).detach())
        return
    made = check(plain, leaf(6, 7), target)
    assert "amax" not in {op for op, _ in reductions(made)}
    assert all(op == "sum" for op, _ in reductions(made))
    assert len(reductions(made)) <= (1 if smoothing else 0)


def test_cross_entropy_of_ignored_rows_only() -> None:
    def loss(logits, target):
        return F.cross_entropy(logits, target)

    check(loss, leaf(3, 5), torch.full((3,), -100))


def test_other_losses() -> None:
    def losses(x, y):
        return (
            F.mse_loss(x, y),
            F.l1_loss(x, y),
            F.smooth_l1_loss(x, y),
            F.huber_loss(x, y, delta=0.7),
            F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
            F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(y)),
            F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
        )

    check(losses, leaf(4, 6), leaf(4, 6))


def test_binary_cross_entropy_of_zero_logits() -> None:
    def loss(x, y):
        return F.binary_cross_entropy_with_logits(x, y)

    check(
        loss, torch.zeros(5, dtype=torch.float64, requires_grad=True), torch.tensor([0.0, 1.0, 0.5, 0.2, 1.0]).double()
    )


def test_lookup() -> None:
    def picked(x, index):
        return x.exp().gather(1, index).squeeze(1) * 2

    check(picked, leaf(4, 6), torch.tensor([[0], [5], [2], [2]]))


def test_triangle() -> None:
    def masked_softmax(x):
        return F.softmax(torch.tril(x), -1), torch.triu(x, 1)

    check(masked_softmax, leaf(5, 5))
