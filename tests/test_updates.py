# SPDX-License-Identifier: Apache-2.0
"""Which arguments kernels write themselves, and why others are copied at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from fusedsl.layouts import may_overlap
from fusedsl.schedulers.base import Layout


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def obstacles(function: Callable[..., Any], *args: Any) -> list[str]:
    """Per changed argument why it is copied; empty if a kernel writes it."""
    return [write.obstacle for write in fusedsl.fuse(function).explain(*args, arch="H200").writes]


def momentum_step(p: Tensor, g: Tensor, buf: Tensor, lr: float) -> None:
    buf.mul_(0.9).add_(g)
    p.add_(buf, alpha=-lr)


def reads_before(p: Tensor, g: Tensor) -> Tensor:
    y = p * g
    p.copy_(g)
    return y


def reads_transposed(p: Tensor) -> None:
    p.add_(p.t())


def reads_later(p: Tensor) -> Tensor:
    old = p.exp()
    p.add_(1.0)
    return old * p.sum(0)


def add_norm(h: Tensor, x: Tensor, w: Tensor) -> Tensor:
    h.add_(x)
    return F.rms_norm(h, h.shape[-1:], w)


def running(x: Tensor, mean: Tensor) -> None:
    mean.mul_(0.9).add_(x.mean(0), alpha=0.1)


def counter(n: Tensor) -> None:
    n.add_(1)


def by_torch(p: Tensor, q: Tensor) -> None:
    p.copy_(q.cumsum(0))


def read_by_torch(p: Tensor) -> Tensor:
    first = p.chunk(2)[0] * 2
    p.add_(1)
    return first


def result_too(p: Tensor, g: Tensor) -> Tensor:
    y = p + g
    p.copy_(y)
    return y


def test_an_optimiser_step_is_written_by_the_kernel() -> None:
    p = meta(64, 32)
    explained = fusedsl.fuse(momentum_step).explain(p, p, p, 0.1, arch="H200")
    assert [segment.scheduler for segment in explained.segments] == ["pointwise"]
    assert [write.obstacle for write in explained.writes] == ["", ""]
    assert "changed in place:\n  p: the kernel writes it\n  buf: the kernel writes it" in str(explained)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (running, (meta(512, 64), meta(64)), ""),
        (add_norm, (meta(256, 1024), meta(256, 1024), meta(1024)), ""),
        (by_torch, (meta(8, 8), meta(8, 8)), ""),  # a kernel copies what torch made
        (reads_before, (meta(64, 32), meta(64, 32)), "the old value is read for other elements"),
        (counter, (meta(dtype=torch.int64),), "several threads write an element"),
        (counter, (meta(1),), "several threads write an element"),
        (read_by_torch, (meta(8, 8),), "eager PyTorch reads the old value"),
        (result_too, (meta(8, 8), meta(8, 8)), "the new value is another result too"),
    ],
)
def test_obstacles(function: Callable[..., Any], args: tuple[Tensor, ...], expected: str) -> None:
    assert obstacles(function, *args) == [expected]


@pytest.mark.parametrize(
    ("function", "args"),
    [(reads_transposed, (meta(64, 64),)), (reads_later, (meta(64, 32),))],
)
def test_what_reads_other_elements_gets_a_copy(function: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    assert all(obstacles(function, *args))


def test_rows_that_are_read_again_are_not_overwritten() -> None:
    """Rows too long to be kept are read once a stage."""
    args = (meta(4096, 200_000), meta(4096, 200_000), meta(200_000))
    (segment, *rest) = fusedsl.fuse(add_norm).explain(*args, arch="A100").segments
    streamed = not rest and getattr(segment.params, "storage", "") == "stream"
    found = fusedsl.fuse(add_norm).explain(*args, arch="A100").writes[0].obstacle
    assert found == ("a reduction reads the old value" if streamed else found)
    assert streamed, "choose longer rows: the case is not met"


def test_the_new_value_lies_as_the_argument() -> None:
    p = meta(32, 64).t()[::2]

    def doubled(p: Tensor, g: Tensor) -> None:
        p.add_(g)

    (segment,) = fusedsl.fuse(doubled).explain(p, meta(32, 32), arch="H200").segments
    assert segment.problem.layouts[segment.graph.outputs[0]].strides == p.stride()


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 5), (5, 1), False),
        ((4, 5), (1, 4), False),
        ((4, 5), (7, 1), False),
        ((4, 5), (0, 1), True),
        ((1, 5), (0, 1), False),
        ((4, 5), (4, 1), True),
        ((4, 2), (1, 1), True),
        ((), (), False),
    ],
)
def test_may_overlap(shape: tuple[int, ...], strides: tuple[int, ...], expected: bool) -> None:
    assert may_overlap(Layout(shape, strides, 16)) is expected


def trained(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return F.batch_norm(x, mean, variance, training=True)


def centre_columns(p: Tensor, g: Tensor) -> Tensor:
    p.add_(g)
    return p * g.mean(0)


def test_running_statistics_are_written_by_the_kernel_that_takes_them() -> None:
    x = meta(64, 32, 8, 8, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    assert obstacles(trained, x, meta(32), meta(32)) == ["", ""]


def test_columns_that_are_read_again_are_not_overwritten() -> None:
    args = (meta(400, 64), meta(400, 64))
    explained = fusedsl.fuse(centre_columns).explain(*args, arch="H200")
    assert [s.scheduler for s in explained.segments] == ["outer_persistent"]
    assert [write.obstacle for write in explained.writes] == ["columns are read again in a later pass"]
    p, g = torch.randn(40, 12), torch.randn(40, 12)
    mine = p.clone()
    found, expected = fusedsl.fuse(centre_columns)(mine, g), centre_columns(p, g)
    torch.testing.assert_close(mine, p)
    torch.testing.assert_close(found, expected)
