# SPDX-License-Identifier: Apache-2.0
"""Evaluation on CPU and meta tensors, where 16-bit floats are rounded, opaque calls, host scalars."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fusedsl.graph.builder import Builder
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph
from fusedsl.graph.host import host_function
from fusedsl.graph.opaque import CallTemplate, Hole, Pack, make_template, qualified_name, resolve_function
from fusedsl.graph.types import ScalarType, TensorType
from fusedsl.graph.verify import verify


def rounded_sum(explicit: bool) -> Graph:
    """``(x + y).to(bfloat16).float() - x`` with an explicit or an implied conversion."""
    builder = Builder("f")
    x = builder.input("x", torch.float32, (4,))
    type_ = builder.tensor(x)
    half = builder.add("cast", (x,), TensorType(torch.bfloat16, type_.shape), explicit=explicit)
    single = builder.add("cast", (half,), type_, explicit=explicit)
    return verify(builder.finish([builder.add("sub", (single, x), type_)]))


def test_where_rounding_happens() -> None:
    x = torch.tensor([1.01, 2.02, 3.03, 4.0])
    wanted = x.bfloat16().float() - x
    assert torch.equal(evaluate(rounded_sum(True), [x])[0], wanted)
    assert torch.equal(evaluate(rounded_sum(True), [x], compute="kernel")[0], wanted)
    assert torch.equal(evaluate(rounded_sum(False), [x])[0], wanted)
    assert torch.equal(evaluate(rounded_sum(False), [x], compute="kernel")[0], torch.zeros(4))


def test_kernel_numerics_keep_sums_wide() -> None:
    builder = Builder("f")
    x = builder.input("x", torch.float16, (2,))
    type_ = builder.tensor(x)
    big = builder.add("mul", (x, builder.add("constant", (), ScalarType("float"), value=60000.0)), type_)
    graph = builder.finish(
        [builder.add("mul", (big, builder.add("constant", (), ScalarType("float"), value=1e-4)), type_)]
    )
    x_ = torch.tensor([2.0, 4.0], dtype=torch.float16)
    assert torch.isinf(evaluate(graph, [x_])[0]).all()
    found = evaluate(graph, [x_], compute="kernel")[0]
    assert found.dtype is torch.float16
    torch.testing.assert_close(found, torch.tensor([12.0, 24.0], dtype=torch.float16))


def test_meta_tensors_give_eager_strides() -> None:
    builder = Builder("f")
    x = builder.input("x", torch.float32, (3, 4))
    type_ = builder.tensor(x)
    graph = builder.finish([builder.add("add", (x, x), type_), builder.add("contiguous", (x,), type_)])
    first, second = evaluate(graph, [torch.empty(4, 3, device="meta").t()])
    assert first.device.type == "meta"
    assert first.stride() == (1, 3)
    assert second.stride() == (4, 1)


def test_other_sizes_than_traced() -> None:
    builder = Builder("f")
    x = builder.input("x", torch.float32, (3, 4))
    a, b = builder.tensor(x).shape
    total = builder.add("sum", (x,), TensorType(torch.float32, (a,)), dims=(1,))
    wide = builder.add("reindex", (total,), TensorType(torch.float32, (b, a)), dims=(None, 0))
    size = builder.add("size", (x,), ScalarType("int"), dim=1)
    filled = builder.add("full", (size,), TensorType(torch.int64, (b,)))
    graph = verify(builder.finish([wide, filled]))
    data = torch.arange(10.0).reshape(2, 5)
    found = evaluate(graph, [data])
    assert torch.equal(found[0], data.sum(1).expand(5, 2))
    assert torch.equal(found[1], torch.full((5,), 5))


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("op", ["sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin"])
def test_reductions(op: str, dims: tuple[int, ...]) -> None:
    data = torch.randint(0, 5, (2, 3, 4), generator=torch.Generator().manual_seed(1)).float()
    if op in ("any", "all"):
        data = data > 0
    builder = Builder("f")
    x = builder.input("x", data.dtype, data.shape)
    shape = tuple(e for d, e in enumerate(builder.tensor(x).shape) if d not in dims)
    dtype = torch.int64 if op.startswith("arg") else data.dtype
    graph = verify(builder.finish([builder.add(op, (x,), TensorType(dtype, shape), dims=dims)]))
    kept = [d for d in range(3) if d not in dims]
    rows = data.permute(*kept, *dims).reshape([data.shape[d] for d in kept] + [-1])
    wanted = getattr(torch, op)(rows, -1)
    assert torch.equal(evaluate(graph, [data])[0], wanted)


def test_opaque_call_with_several_results() -> None:
    builder = Builder("f")
    x = builder.input("x", torch.float32, (3, 4))
    type_ = builder.tensor(x)
    template, values = make_template(("x",), {"dim": -1, "descending": True}, lambda item: item == "x")
    assert values == ("x",)
    call = builder.add("opaque", (x,), type_, share=False, function="torch.sort", call=template, results=2)
    first = builder.add("item", (call,), type_, index=0)
    second = builder.add("item", (call,), TensorType(torch.int64, type_.shape), index=1)
    graph = verify(builder.finish([second, first]))
    data = torch.rand(3, 4)
    wanted = data.sort(-1, descending=True)
    found = evaluate(graph, [data])
    assert torch.equal(found[0], wanted.indices) and torch.equal(found[1], wanted.values)


def test_template_round_trip() -> None:
    args = ([1, "a", (2, "b")], slice(None, "c", None))
    kwargs = {"k": {"x": "d"}, "n": 3}
    template, values = make_template(args, kwargs, lambda item: isinstance(item, str))
    assert values == ("a", "b", "c", "d")
    hash(template)
    assert template.fill(values) == (args, kwargs)
    assert template == CallTemplate(
        (Pack("list", (1, Hole(0), Pack("tuple", (2, Hole(1))))), Pack("slice", (None, Hole(2), None))),
        (("k", Pack("dict", (("x", Hole(3)),))), ("n", 3)),
    )


@pytest.mark.parametrize(
    "function",
    [
        torch.matmul,
        F.pad,
        F.linear,
        torch.linalg.inv,
        torch.fft.fft,
        operator.getitem,
        torch.Tensor.view,
        F.conv2d,
        torch.Tensor.cumsum,
    ],
)
def test_names_lead_back(function: Callable[..., object]) -> None:
    name = qualified_name(function)
    assert name is not None
    assert resolve_function(name) is function


def test_nameless_and_unknown() -> None:
    assert qualified_name(lambda x: x) is None
    with pytest.raises(KeyError, match=r"torch\.nothing"):
        resolve_function("torch.nothing")


def test_host_functions() -> None:
    assert host_function("mul")(3, 4) == 12
    assert host_function("math.sqrt")(9) == 3
    assert host_function("max")(1, 2.5) == 2.5
    with pytest.raises(KeyError):
        host_function("math.nothing")
    with pytest.raises(KeyError):
        host_function("nothing")


def test_argument_counts_are_checked() -> None:
    with pytest.raises(AssertionError, match="takes 1 tensors, got 2"):
        evaluate(rounded_sum(True), [torch.ones(4), torch.ones(4)])
