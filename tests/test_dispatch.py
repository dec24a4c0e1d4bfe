# SPDX-License-Identifier: Apache-2.0
"""Which call traces, plans or hits: layouts, guards, captured values, scalars, eviction, the log line."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import fusedsl

SCALE = 2.0


@pytest.fixture(autouse=True)
def _counts() -> None:
    fusedsl.reset_stats()


def counts() -> tuple[int, int, int]:
    """Traces, plans, hits."""
    found = fusedsl.stats()
    return found.traces, found.plans, found.hits


def test_a_repeated_call_is_a_hit(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1.0

    x = torch.randn(4, 8, device=device)
    for _ in range(3):
        assert torch.equal(f(x), x + 1.0)
    assert counts() == (1, 1, 2)


def test_a_new_size_plans_and_does_not_trace(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    for rows in (2, 3, 4, 5, 2, 3):
        x = torch.randn(rows, 8, device=device)
        assert torch.equal(f(x), x * 2.0)
    assert counts() == (1, 4, 2)


def test_rank_dtype_and_extents_of_one_trace_again(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for x in (
        torch.randn(4, 4),
        torch.randn(1, 4),
        torch.randn(4),
        torch.arange(6),
        torch.zeros(0, 4),
        torch.tensor(2.0),
    ):
        moved = x.to(device)
        assert torch.equal(f(moved), moved * 2)
    assert counts() == (6, 6, 0)


def test_strides_and_alignment_plan_again(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    base = torch.randn(65, device=device)
    for x in (
        base[:64].view(8, 8),
        torch.tensor(0.5, device=device).expand(8, 8),
        base[:64].view(8, 8).t(),
        base[1:].view(8, 8),
        torch.randn(8, 16, device=device)[:, ::2],
    ):
        torch.testing.assert_close(f(x), torch.sin(x))
        torch.testing.assert_close(f(x), torch.sin(x))
    assert counts() == (1, 5, 5)


def test_floats_never_trace_again(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
        return x * (a * b)

    x = torch.randn(16, device=device)
    for step in range(50):
        torch.testing.assert_close(f(x, float(step), 0.5), x * (step * 0.5))
    assert counts() == (1, 1, 49)


def test_kinds_of_numbers_are_told_apart(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor, y: Any) -> torch.Tensor:
        return x + y

    x = torch.arange(4, device=device)
    for y in (1, 1.0, True):
        found, expected = f(x, y), x + y
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    flags = x > 1
    for y in (1, 1.0, True):
        found, expected = f(flags, y), flags + y
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_an_int_the_structure_depends_on(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor, dim: int, repeat: int) -> torch.Tensor:
        for _ in range(repeat):
            x = x - x.mean(dim, keepdim=True)
        return x

    x = torch.randn(4, 8, device=device)
    calls = [(0, 1), (1, 1), (0, 2), (-1, 1)]
    for _ in range(3):
        for dim, repeat in calls:
            torch.testing.assert_close(f(x, dim, repeat), f.reference(x, dim, repeat))
    assert counts() == (4, 4, 8)


def test_a_changed_global_is_seen(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * SCALE

    x = torch.randn(4, device=device)
    assert torch.equal(f(x), x * 2.0)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert torch.equal(f(x), x * 3.0)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert torch.equal(f(x), x * 2.0)


def test_a_captured_tensor_may_change_its_layout(device: str) -> None:
    bias = torch.randn(8, device=device)

    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + bias

    x = torch.randn(4, 8, device=device)
    for new in (
        bias,
        torch.randn(8, device=device),
        torch.randn(16, device=device)[::2],
        torch.randn(9, device=device)[1:],
    ):
        bias = new
        for _ in range(2):
            assert torch.equal(f(x), x + new)
    for new in (
        torch.randn(1, device=device),
        torch.randn(4, 8, device=device),
        torch.randn(8, device=device).double(),
    ):
        bias = new
        assert torch.equal(f(x), x + new)
    bias = torch.randn(8, device=device, requires_grad=True)
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(f(x), bias, x)[0], x.sum(0))
        with torch.no_grad():
            assert torch.equal(f(x), x + bias)
            assert not f(x).requires_grad


def test_an_attribute_of_an_argument(device: str) -> None:
    class Config:
        scale = 2.0
        flip = False

    @fusedsl.fuse
    def f(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x * (-config.scale if config.flip else config.scale)

    x, config = torch.randn(4, device=device), Config()
    assert torch.equal(f(x, config), x * 2.0)
    config.scale = 5.0
    assert torch.equal(f(x, config), x * 5.0)
    config.flip = True
    assert torch.equal(f(x, config), x * -5.0)
    other = Config()
    other.scale = 7.0
    assert torch.equal(f(x, other), x * 7.0)


def test_containers_of_tensors(device: str) -> None:
    @fusedsl.fuse
    def f(xs: Any, named: Any) -> torch.Tensor:
        total = named["bias"]
        for x in xs:
            total = total + x
        return total

    a, b, c = (torch.randn(5, device=device) for _ in range(3))
    assert torch.equal(f([a, b], {"bias": c}), c + a + b)
    assert torch.equal(f([b, a], {"bias": c}), c + b + a)
    assert counts() == (1, 1, 1)
    assert torch.equal(f([a], {"bias": c}), c + a)
    assert torch.equal(f((a, b, c), {"bias": c}), c + a + b + c)
    strided = torch.randn(10, device=device)[::2]
    assert torch.equal(f([strided, b], {"bias": c}), c + strided + b)


def test_shapes_that_must_agree_are_checked_again(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    assert f(torch.ones(4, device=device), torch.ones(4, device=device)).tolist() == [2.0] * 4
    with pytest.raises(fusedsl.FuseError):
        f(torch.ones(4, device=device), torch.ones(5, device=device))
    assert f(torch.ones(5, device=device), torch.ones(5, device=device)).tolist() == [2.0] * 5


def test_a_branch_on_a_size(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0 if x.shape[0] > 4 else x + 1.0

    for rows in (3, 6, 4, 5, 3, 6):
        x = torch.randn(rows, device=device)
        assert torch.equal(f(x), f.reference(x))


def test_grad_mode_and_requires_grad_are_told_apart(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3.0 if x.requires_grad else x * 2.0

    x = torch.randn(4, device=device)
    with torch.no_grad():
        assert torch.equal(f(x), x * 2.0)
        x.requires_grad_()
        assert torch.equal(f(x), x * 3.0)
        assert torch.equal(f(x.detach()), x * 2.0)
    assert torch.equal(torch.autograd.grad(f(x).sum(), x)[0], torch.full((4,), 3.0, device=device))


def test_old_calls_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1.0

    monkeypatch.setattr(fusedsl.config, "max_cached_calls", 4)
    for size in range(2, 12):
        assert torch.equal(f(torch.ones(size)), torch.full((size,), 2.0))
    dispatcher = f._dispatcher
    assert len(dispatcher._calls) <= 4
    ((entry,),) = dispatcher._traces.values()
    assert len(entry.recorder.programs) <= 4
    assert counts() == (1, 10, 0)
    f(torch.ones(11))
    assert counts() == (1, 10, 1)


def test_a_new_trace_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor, relu: bool = False) -> torch.Tensor:
        return x * SCALE

    with caplog.at_level(logging.INFO, logger="fusedsl"):
        x = torch.ones(4)
        f(x)
        f(x)
        f(torch.ones(4, 4))
        monkeypatch.setitem(globals(), "SCALE", 3.0)
        f(x)
    assert [record.levelname for record in caplog.records] == ["INFO"] * len(caplog.records)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "tracing f: first call"
    assert lines[1].startswith(
        "tracing f: arguments of new types: x is a torch.Tensor on cpu of dtype float32 and shape (4, 4)"
    )


@pytest.mark.gpu
def test_a_cuda_graph_captures_a_warm_and_a_cold_call() -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0 + 1.0

    @fusedsl.fuse
    def cold(x: torch.Tensor) -> torch.Tensor:
        return x * 5.0

    x = torch.randn(1000, device="cuda")
    f(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
        z = cold(x)
    x.copy_(torch.arange(1000.0, device="cuda"))
    graph.replay()
    assert torch.equal(y, torch.arange(1000.0, device="cuda") * 2.0 + 1.0)
    assert torch.equal(z, torch.arange(1000.0, device="cuda") * 5.0)


@pytest.mark.gpu
def test_the_current_stream_is_used_and_nothing_waits() -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1.0

    x = torch.zeros(1 << 20, device="cuda")
    f(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.fill_(41.0)
        y = f(x)
        done = torch.cuda.Event()
        done.record()
        assert not done.query(), "the call waited for the device"
        total = y.sum()
    stream.synchronize()
    assert total.item() == 42.0 * (1 << 20)


@pytest.mark.multi_gpu
def test_the_second_gpu() -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    first, second = torch.randn(100, device="cuda:0"), torch.randn(100, device="cuda:1")
    assert torch.equal(f(second, second), second + second)
    assert torch.equal(f(first, first), first + first)
    assert torch.cuda.current_device() == 0
    with pytest.raises(fusedsl.FuseError, match=r"'x' is a torch.Tensor on cuda:0 .* 'y' is a torch.Tensor on cuda:1"):
        f(first, second)
