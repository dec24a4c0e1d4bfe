# SPDX-License-Identifier: Apache-2.0
"""Reductions over every dtype and kind of dims; norms; composites; losses."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.callables import OpError, lookup, lookup_method
from tests.frontend.callables.support import ALL, FLOATS, Runtime, build, check, check_method, plain, special

SHAPE = (2, 3, 1, 4)
DIMS = [(), 0, -1, 2, (0, 1), (0, -1), (1, 2, 3)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "nansum", "any", "all", "count_nonzero"])
def test_any_dims(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    for data in (plain, special):
        x = data(dtype, SHAPE)
        check(function, x, scale=4)
        for dim in DIMS:
            if dim == () and name in ("any", "all", "nansum", "count_nonzero"):
                continue
            check(function, x, dim, scale=4)
            if name != "count_nonzero":
                check(function, x, dim, keepdim=True, scale=4)
        check_method(name, x, 1, scale=4)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["prod", "argmax", "argmin", "max", "min"])
def test_one_dim(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x = torch.arange(24).reshape(SHAPE).to(dtype) if name[:3] in ("max", "min") else special(dtype, SHAPE)
    check(function, x, scale=8)
    for dim in (0, 1, 2, -1):
        check(function, x, dim, scale=8)
        check(function, x, dim, keepdim=True, scale=8)


def test_extremum_is_a_named_pair() -> None:
    built = build(lookup_method("max"), special(torch.float32), 1)
    assert built.outputs.values.dtype is torch.float32 and built.outputs.indices.dtype is torch.int64
    wanted = special(torch.float32).max(1)
    torch.testing.assert_close(built.run(), list(wanted), equal_nan=True)
    check(torch.max, plain(torch.float32), plain(torch.float32, seed=1))
    check(torch.min, plain(torch.int32), other=plain(torch.float32, seed=1))


def test_aminmax() -> None:
    check(torch.aminmax, special(torch.float32, SHAPE))
    check(torch.aminmax, special(torch.int32, SHAPE), dim=1, keepdim=True)


@pytest.mark.parametrize("place", [0, 1, 16, 32])
def test_nan_wins(place: int) -> None:
    x = torch.arange(33.0)
    x[place] = float("nan")
    for function in (torch.amax, torch.amin, torch.argmax, torch.argmin):
        built = check(function, x)
        assert built is not None
        found = built.run()[0]
        assert found == place if found.dtype is torch.int64 else torch.isnan(found)


def test_first_index_wins() -> None:
    x = torch.tensor([[1, 3, 3], [3, 0, 0]])
    assert build(lookup(torch.argmax), x).run()[0] == 1
    assert build(lookup(torch.argmin), x, 1).run()[0].tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32, torch.bool])
def test_dtype_argument(dtype: torch.dtype) -> None:
    for wanted in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        x = plain(dtype)
        check(torch.sum, x, 1, dtype=wanted, scale=4)
        check(torch.prod, x, 1, dtype=wanted, scale=8)
        check(torch.mean, x, dtype=wanted, scale=4)


def test_small_integers_are_summed_in_int64() -> None:
    built = check(torch.sum, torch.full((300,), 100, dtype=torch.int8))
    assert built is not None and built.run()[0].item() == 30000
    with pytest.raises(OpError, match="int32"):
        build(lookup(torch.mean), torch.ones(3, dtype=torch.int32))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_variance(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x = plain(dtype, SHAPE)
    check(function, x, scale=4)
    for dim in DIMS[1:]:
        check(function, x, dim, scale=4)
        check(function, x, dim, correction=0, scale=4)
        check(function, x, dim, keepdim=True, scale=4)
    check(function, x, 1, False, scale=4)
    check(function, x, False, scale=4)
    check(function, x, 1, correction=5, scale=4)
    check(function, x, 1, correction=1.5, scale=4)
    check(function, x, dim=None, unbiased=False, scale=4)
    if name in ("var", "std"):
        check_method(name, x, -1, scale=4)


def test_variance_of_integers_is_refused() -> None:
    check(torch.var, torch.ones(3, dtype=torch.int32))


def test_variance_does_not_cancel() -> None:
    x = 1e4 + torch.arange(16) * 1e-3
    found = build(lookup(torch.var), x.unsqueeze(0), 1).run()[0]
    assert abs(found.item() - x.double().var().item()) < 2 * abs(x.var().item() - x.double().var().item()) + 1e-6


@pytest.mark.parametrize("dtype", ALL)
def test_logsumexp(dtype: torch.dtype) -> None:
    for dim in (0, -1, (0, 1), (1, 2, 3)):
        check(torch.logsumexp, plain(dtype, SHAPE), dim, scale=2)
        check(torch.logsumexp, special(dtype, SHAPE), dim, keepdim=True, scale=2)
    if dtype.is_floating_point:
        check(torch.logsumexp, torch.full((2, 3), -math.inf, dtype=dtype), 1)
        check(torch.logsumexp, torch.tensor([[math.inf, 1.0], [-math.inf, 2.0]], dtype=dtype), 1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, math.inf, -math.inf])
def test_norm(order: float, dtype: torch.dtype) -> None:
    x = plain(dtype, SHAPE)
    for dim in (None, 0, (0, 1), (1, -1)):
        check(torch.linalg.vector_norm, x, order, dim, scale=4)
        check(torch.linalg.vector_norm, x, order, dim, keepdim=True, scale=4)
        check(torch.norm, x, order, dim, scale=4)
    check_method("norm", x, order, 1, scale=4)
    check(torch.linalg.norm, x[0, 0, 0], order, scale=4)
    check(torch.linalg.vector_norm, x, order, dtype=torch.float64, scale=4)
    check(torch.linalg.vector_norm, torch.tensor(-3.0, dtype=dtype), order)


def test_other_norms() -> None:
    x = plain(torch.float32, (3, 4))
    check(torch.norm, x)
    check(torch.linalg.norm, x)
    check(torch.linalg.norm, x, "fro")
    check(torch.linalg.matrix_norm, x)
    check(F.normalize, x)
    check(F.normalize, x, p=1.0, dim=0, eps=0.5)
    assert build(lookup(torch.norm), x, "nuc") is NotImplemented
    assert build(lookup(torch.linalg.norm), x, 2) is NotImplemented
    check(torch.norm, torch.ones(3, dtype=torch.int32))


def test_empty() -> None:
    x = torch.zeros(3, 4, 0, 5)
    for function in (torch.sum, torch.mean, torch.prod, torch.amax, torch.amin, torch.argmax):
        for dim in (1, 2):
            check(function, x, dim)
    check(torch.sum, x)
    check(torch.any, x, 2)
    check(torch.all, x, 2)
    check(torch.logsumexp, x, 2)
    check(torch.softmax, x, 2)
    check(torch.softmax, x, 1)
    check(torch.max, x)
    check(torch.max, x, 2)
    check(torch.linalg.vector_norm, x, math.inf, 2)


@pytest.mark.filterwarnings("ignore")
def test_zero_dim() -> None:
    x = torch.tensor(-2.5)
    for function in (
        torch.sum,
        torch.mean,
        torch.amax,
        torch.prod,
        torch.argmax,
        torch.max,
        torch.logsumexp,
        torch.var,
    ):
        for dim in (0, -1):
            check(function, x, dim)
            check(function, x, dim, keepdim=True)
        check(function, x, 1)
    check(torch.sum, torch.tensor(True))
    check(torch.any, torch.tensor(3))
    check(torch.softmax, x, 0)


# composites ------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_softmax(name: str, dtype: torch.dtype) -> None:
    function = getattr(F, name)
    for dim in (0, 1, -1):
        check(function, plain(dtype, SHAPE), dim)
    check(function, plain(dtype, SHAPE), -1, dtype=torch.float32)
    if dtype.is_floating_point:
        rows = torch.tensor([[-math.inf, -math.inf], [0, -math.inf], [math.inf, 1], [math.nan, 1]], dtype=dtype)
        check(function, rows, 1)
    if name != "softmin":
        check(getattr(torch, name), plain(dtype), 1)
        check(getattr(torch, name), plain(dtype), 1, torch.float64)
        check_method(name, plain(torch.float32), 1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("normalized", [(4,), (1, 4), (3, 1, 4)])
def test_layer_norm(dtype: torch.dtype, normalized: tuple[int, ...]) -> None:
    x, w, b = plain(dtype, SHAPE), plain(dtype, normalized, 1), plain(dtype, normalized, 2)
    check(F.layer_norm, x, normalized, scale=2)
    check(F.layer_norm, x, normalized, w, scale=2)
    check(F.layer_norm, x, normalized, w, b, 1e-3, scale=2)
    check(F.layer_norm, x, normalized, weight=w, bias=b, eps=Runtime(0.1), scale=2)
    check(torch.layer_norm, x, normalized, w, b, scale=2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("normalized", [(4,), (3, 1, 4)])
def test_rms_norm(dtype: torch.dtype, normalized: tuple[int, ...]) -> None:
    x, w = plain(dtype, SHAPE), plain(dtype, normalized, 1)
    check(F.rms_norm, x, normalized, scale=2)
    check(F.rms_norm, x, normalized, w, scale=2)
    check(F.rms_norm, x, normalized, w, 0.1, scale=2)
    check(F.rms_norm, x * 0, normalized, w, scale=2)
    check(torch.rms_norm, x * 1e-3, normalized, w, scale=2)


def test_norm_shapes_are_checked() -> None:
    x = plain(torch.float32, SHAPE)
    with pytest.raises(OpError, match="normalized_shape"):
        build(lookup(F.layer_norm), x, (3,))
    with pytest.raises(OpError, match="weight has shape"):
        build(lookup(F.layer_norm), x, (4,), plain(torch.float32, (3,)))


def test_layer_norm_of_a_far_mean() -> None:
    x = (1e3 + torch.arange(16) * 1e-3).unsqueeze(0)
    truth = F.layer_norm(x.double(), (16,))
    found = build(lookup(F.layer_norm), x, (16,)).run()[0]
    assert (found - truth).abs().max() <= 2 * (F.layer_norm(x, (16,)) - truth).abs().max() + 1e-6


LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits kl_div".split()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum", "what"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str, reduction: str, dtype: torch.dtype) -> None:
    x, y = plain(dtype), plain(dtype, seed=1).abs()
    if dtype in (torch.float16, torch.bfloat16) and name in ("binary_cross_entropy_with_logits", "kl_div"):
        y = (y > 0.5).to(dtype)  # torch composes these of several ops, and rounds after each
        x = (x * 4).round() / 4
    scale = 8 if name in ("binary_cross_entropy_with_logits", "kl_div") else 2
    check(getattr(F, name), x, y, reduction=reduction, scale=scale)


def test_loss_options() -> None:
    x, y = plain(torch.float32), plain(torch.float32, seed=1)
    check(F.smooth_l1_loss, x, y, beta=0.3)
    check(F.smooth_l1_loss, x, y, beta=0.0)
    check(F.huber_loss, x, y, delta=0.3)
    check(F.kl_div, x, y, log_target=True, reduction="batchmean")
    check(F.binary_cross_entropy, torch.sigmoid(x), torch.sigmoid(y))
    check(F.binary_cross_entropy, torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0]), reduction="none")
    assert build(lookup(F.mse_loss), x, y, weight=y) is NotImplemented
