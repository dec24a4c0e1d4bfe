# SPDX-License-Identifier: Apache-2.0
"""Running programs: result trees, host scalars, copies with their layout, the interpreter on CUDA tensors."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest
import torch

import fusedsl
from fusedsl import executor
from fusedsl.executor import build_tree, copy_span
from fusedsl.frame import Buffer, picker
from fusedsl.frontend.records import OutputInput, OutputStatic, OutputValue
from fusedsl.graph.builder import Builder
from fusedsl.graph.types import ScalarType
from fusedsl.host_scalars import HostScalarError, compile_host

Pair = collections.namedtuple("Pair", ["first", "second"])


def test_picker() -> None:
    values = ["a", "b", "c"]
    assert picker([])(values) == ()
    assert picker([2])(values) == ("c",)
    assert picker([2, 0])(values) == ("c", "a")


def test_build_tree() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    tree = build_tree(Pair({"x": OutputValue(0)}, [OutputInput(0), (OutputStatic(3),)]))
    found = tree([a], (b,))
    assert type(found) is Pair
    assert found.first["x"] is a
    assert found.second[0] is b
    assert found.second[1] == (3,)


def _host(function: str, *operands: Any, wanted: str | None = None, sizes: dict[Any, int] | None = None) -> Any:
    """The value of ``function`` over scalar arguments."""
    builder = Builder("f")
    ids = [builder.scalar_input(f"s{i}", type(value).__name__) for i, value in enumerate(operands)]
    node = builder.add("scalar", ids, ScalarType("float"), function=function)
    x = builder.add("full", (node,), builder.tensor(builder.input("x", torch.float32, (3,))))
    graph = builder.finish([x])
    target = next(n.id for n in graph if n.op == "scalar")
    return compile_host(graph, [(target, wanted)], sizes or {})(operands)[0]


def test_host_scalars_are_python_numbers() -> None:
    assert _host("mul", 3, 5) == 15
    assert _host("truediv", 1.0, 3.0) == 1.0 / 3.0
    assert _host("math.sqrt", 2.0) == math.sqrt(2.0)
    assert _host("truediv", 1.0, 3.0, wanted="float32") == torch.tensor(1.0 / 3.0).item()
    assert _host("mul", 1e300, 1.0, wanted="float32") == math.inf
    assert _host("neg", 1e300, wanted="float32") == -math.inf
    assert _host("mul", 2, 4, wanted="float64") == 8.0
    assert _host("mul", 2, 4, wanted="boolean") is True


@pytest.mark.parametrize(
    ("function", "operands", "said"),
    [
        ("truediv", (1.0, 0.0), "truediv(1.0, 0.0): float division by zero"),
        ("math.sqrt", (-1.0,), "math.sqrt(-1.0): "),
        ("pow", (10.0, 400.0), "pow(10.0, 400.0): "),
    ],
)
def test_host_arithmetic_that_fails(function: str, operands: tuple[Any, ...], said: str) -> None:
    with pytest.raises(HostScalarError) as caught:
        _host(function, *operands)
    assert said in str(caught.value)


def test_a_scalar_that_fails_at_a_later_call(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor, a: float) -> torch.Tensor:
        return x * (1.0 / a)

    x = torch.ones(3, device=device)
    assert f(x, 2.0).tolist() == [0.5] * 3
    with pytest.raises(fusedsl.FuseError, match="division by zero") as caught:
        f(x, 0.0)
    assert "return x * (1.0 / a)" in str(caught.value)
    assert f(x, 4.0).tolist() == [0.25] * 3


def test_scalars_beyond_a_dtype(device: str) -> None:
    @fusedsl.fuse
    def f(x: torch.Tensor, a: Any) -> torch.Tensor:
        return x + a

    x = torch.ones(3, device=device)
    assert f(x, 1e300).tolist() == [math.inf] * 3
    assert f(x, float("nan")).isnan().all()
    assert f(torch.ones(3, dtype=torch.int64, device=device), 2**62).tolist() == [2**62 + 1] * 3
    with pytest.raises(fusedsl.FuseError):
        f(torch.ones(3, dtype=torch.int64, device=device), 2**63)


@pytest.mark.parametrize(
    "make",
    [
        lambda base: base[:12].view(3, 4),
        lambda base: base[1:13].view(3, 4),
        lambda base: base[2:14].view(3, 4).t(),
        lambda base: base[::3][:6].view(2, 3),
        lambda base: base[3].expand(4, 5),
        lambda base: base[:0].view(0, 4),
        lambda base: base[5],
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_copy_span_keeps_the_layout(make: Any, dtype: torch.dtype) -> None:
    x = make(torch.arange(40).to(dtype))
    y = copy_span(x, torch.device("cpu"))
    assert torch.equal(x, y)
    assert y.stride() == x.stride()
    assert y.dtype == x.dtype
    if x.numel():
        assert y.data_ptr() != x.data_ptr()
        assert y.data_ptr() % 16 == x.data_ptr() % 16


@pytest.mark.gpu
def test_cuda_tensors_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusedsl.config, "interpret", True)

    @fusedsl.fuse
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w

    x, w = torch.randn(17, 3, device="cuda").t(), torch.randn(18, device="cuda")[1:]
    fusedsl.reset_stats()
    found = f(x, w)
    assert found.device == x.device
    torch.testing.assert_close(found, f.reference(x, w))
    assert fusedsl.stats().interpreted == 1
    assert fusedsl.stats().launches == 0


def test_every_element_of_a_result_is_written(device: str) -> None:
    """The executor poisons results, so an element that no thread writes cannot pass."""

    @fusedsl.fuse
    def f(x: torch.Tensor) -> Any:
        return x + 1.0, x.sum(-1), torch.full_like(x, 3.0)

    for shape in [(1, 1), (3, 7), (2, 129), (0, 4), (4, 0)]:
        x = torch.randn(shape, device=device)
        more, total, three = f(x)
        torch.testing.assert_close(more, x + 1.0)
        torch.testing.assert_close(total, x.sum(-1))
        assert torch.equal(three, torch.full_like(x, 3.0))


def test_counters_of_grid_barriers_are_kept_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    buffers = (Buffer((4,), (1,), torch.float32), Buffer((1,), (1,), torch.int32, zeroed=True))
    allocate = executor._allocator(buffers, torch.device("cpu"))
    first, again, other = allocate(0), allocate(0), allocate(7)
    assert [tensor.dtype for tensor in first] == [torch.float32, torch.int32]
    assert first[1].tolist() == [0]
    assert first[1] is again[1]
    assert first[1] is not other[1]
    assert first[0] is not again[0]
    capturing = True  # a captured graph zeroes its own at every replay
    assert allocate(0)[1] is not first[1]
    capturing = False
    assert allocate(0)[1] is first[1]
