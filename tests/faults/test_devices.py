# SPDX-License-Identifier: Apache-2.0
"""Devices, streams, graph capture, and the kinds of tensors that callers pass."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def scale_and_add(x: Tensor, y: Any) -> Tensor:
    return x * 2 + y


@fusedsl.fuse
def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), None, 1e-6)


def unsuitable() -> dict[str, Any]:
    """Arguments that cannot be added to a tensor, or not on its device."""
    return {
        "meta": torch.empty(4, device="meta"),
        "sparse": torch.eye(4).to_sparse(),
        "None": None,
        "string": "four",
        "object": object(),
    }


@pytest.mark.parametrize("kind", list(unsuitable()))
def test_an_unsuitable_argument_is_named(device: str, kind: str) -> None:
    x, y = torch.ones(4, device=device), unsuitable()[kind]
    with pytest.raises(fusedsl.FuseError) as caught:
        scale_and_add(x, y)
    text = str(caught.value)
    assert "y" in text.replace("try", "").split("^")[0]
    got = {"meta": "meta", "sparse": "sparse", "None": "None", "string": "str", "object": "object"}[kind]
    assert got in text


@pytest.mark.parametrize("kind", ["array", "list", "complex"])
def test_an_unusual_argument_is_as_in_eager_or_named(device: str, kind: str) -> None:
    x = torch.ones(4, device=device)
    y = {
        "array": np.arange(4.0, dtype=np.float32),
        "list": [1.0, 2.0, 3.0, 4.0],
        "complex": torch.ones(4, dtype=torch.complex64, device=device),
    }[kind]
    try:
        actual = scale_and_add(x, y)
    except fusedsl.FuseError as error:
        assert "y" in str(error).replace("try", "").split("^")[0]
        return
    torch.testing.assert_close(actual, scale_and_add.reference(x, y))


@pytest.mark.gpu
def test_a_cpu_tensor_beside_a_cuda_tensor_is_named() -> None:
    with pytest.raises(fusedsl.FuseError) as caught:
        scale_and_add(torch.ones(4, device="cuda"), torch.ones(4))
    assert "cpu" in str(caught.value) and "cuda:0" in str(caught.value)


@pytest.mark.gpu
def test_a_zero_dim_cpu_tensor_beside_a_cuda_tensor_is_as_in_eager() -> None:
    x, y = torch.ones(4, device="cuda"), torch.tensor(2.0)
    try:
        actual = scale_and_add(x, y)
    except fusedsl.FuseError as error:
        assert "cpu" in str(error)
        return
    torch.testing.assert_close(actual, x * 2 + y)


@pytest.mark.multi_gpu
def test_tensors_on_the_second_gpu() -> None:
    assert torch.cuda.current_device() == 0
    x = torch.randn(64, 256, device="cuda:1")
    assert_matches_eager(norm, x)
    assert_matches_eager(scale_and_add, x, x)
    assert_matches_eager(norm, x.to("cuda:0"))
    assert torch.cuda.current_device() == 0
    with pytest.raises(fusedsl.FuseError) as caught:
        scale_and_add(x, torch.randn(64, 256, device="cuda:0"))
    assert "cuda:0" in str(caught.value) and "cuda:1" in str(caught.value)


@pytest.mark.gpu
def test_work_goes_to_the_current_stream() -> None:
    norm(torch.zeros(1024, 1024, device="cuda"))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        x = torch.zeros(1024, 1024, device="cuda")
        for round_ in range(200):
            torch.cuda._sleep(100_000)
            x.fill_(1.0 + round_)
            y = norm(x) * 2
        assert bool((y - 2).abs().max() < 1e-3)


@pytest.mark.gpu
def test_a_call_does_not_wait_for_the_gpu() -> None:
    x = torch.randn(256, 256, device="cuda")
    norm(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(800_000_000)
    begin = time.perf_counter()
    norm(x)
    elapsed = time.perf_counter() - begin
    done = torch.cuda.Event()
    done.record()
    assert not done.query()
    assert elapsed < 1e-3
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_capture_in_a_cuda_graph_after_a_warm_up() -> None:
    x = torch.randn(64, 256, device="cuda")
    norm(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = norm(x)
    for _ in range(3):
        x.copy_(torch.randn(64, 256, device="cuda"))
        graph.replay()
        torch.testing.assert_close(y, norm.reference(x))


@pytest.mark.gpu
def test_capture_of_a_cold_function_works_or_says_so() -> None:
    cold, x = fusedsl.fuse(norm.__wrapped__), torch.randn(32, 257, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            y = cold(x)
    except fusedsl.FuseError as error:
        assert "captur" in str(error)
    else:
        graph.replay()
        torch.testing.assert_close(y, norm.reference(x))
    torch.testing.assert_close(norm(x), norm.reference(x))


def test_kinds_of_tensors_that_array_interfaces_refuse(device: str) -> None:
    leaf = torch.randn(4, 8, device=device, requires_grad=True)
    with torch.no_grad():
        assert_matches_eager(norm, leaf)
        assert_matches_eager(norm, torch.nn.Parameter(leaf.detach().clone()))
    assert_matches_eager(norm, torch.randn(4, 8, device=device).bfloat16())
    with torch.inference_mode():
        assert_matches_eager(norm, torch.randn(4, 8, device=device))


def test_integer_and_boolean_tensors(device: str) -> None:
    def double(x: Tensor) -> Tensor:
        return x + x

    def flip(x: Tensor) -> Tensor:
        return ~x

    for dtype in (torch.uint8, torch.int16, torch.int64):
        assert_matches_eager(fusedsl.fuse(double), torch.arange(-3, 9, device=device).to(dtype))
    assert_matches_eager(fusedsl.fuse(flip), torch.tensor([True, False, True], device=device))


def test_a_pending_negation_is_resolved(device: str) -> None:
    imaginary = torch.randn(8, dtype=torch.complex64, device=device).conj().imag
    assert imaginary.is_neg()
    torch.testing.assert_close(scale_and_add(imaginary, 1.0), imaginary * 2 + 1.0)


def test_an_input_that_requires_grad_is_never_detached(device: str) -> None:
    leaf = torch.randn(4, 8, device=device, requires_grad=True)
    seed = torch.randn(4, 8, device=device)
    (expected,) = torch.autograd.grad(norm.reference(leaf), leaf, seed)
    (gradient,) = torch.autograd.grad(norm(leaf), leaf, seed)
    torch.testing.assert_close(gradient, expected)
