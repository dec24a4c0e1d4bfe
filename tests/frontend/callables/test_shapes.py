# SPDX-License-Identifier: Apache-2.0
"""Views, indexing, attributes and factories."""

from __future__ import annotations

import operator

import pytest
import torch

from fusedsl.frontend.callables import OpError, ScalarValue, lookup, lookup_attribute, lookup_method
from fusedsl.graph.builder import Builder
from tests.frontend.callables.support import build, check, check_method, plain

X = plain(torch.float32, (2, 1, 3, 1, 4))
ROW = plain(torch.float32, (1, 5))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("unsqueeze", (0,)),
        ("unsqueeze", (-1,)),
        ("unsqueeze", (7,)),
        ("squeeze", ()),
        ("squeeze", (1,)),
        ("squeeze", (0,)),
        ("squeeze", ((1, -2),)),
        ("permute", (4, 3, 2, 1, 0)),
        ("permute", ((0, 1, 2, 4, 3),)),
        ("permute", (0, 1)),
        ("transpose", (0, -1)),
        ("swapaxes", (1, 2)),
        ("movedim", (0, 2)),
        ("movedim", ((0, 1), (-1, 0))),
        ("moveaxis", (4, 0)),
        ("expand", (2, 7, 3, 1, 4)),
        ("expand", (3, 2, 1, 3, 6, 4)),
        ("expand", (-1, 5, -1, -1, -1)),
        ("expand", (2, 1, 5, 1, 4)),
        ("broadcast_to", ((2, 7, 3, 1, 4),)),
        ("view", (2, 3, 4)),
        ("view", (1, 2, 3, 1, 1, 4)),
        ("reshape", ((2, -1, 4),)),
        ("reshape", (2, 3, 1, -1)),
        ("flatten", (3,)),
        ("flatten", (0, 1)),
        ("unflatten", (2, (1, 3, 1))),
        ("adjoint", ()),
    ],
)
def test_view_method(name: str, args: tuple[object, ...]) -> None:
    built = check_method(name, X, *args)
    if built is not None:
        assert {n.op for n in built.graph} <= {"input", "reindex"}


@pytest.mark.parametrize(
    "index",
    [
        None,
        (Ellipsis, None),
        (slice(None), None),
        slice(None),
        (None, Ellipsis, None, slice(None)),
        (slice(None), 0),
        (slice(None), -1, slice(0, None), 0),
        (),
        Ellipsis,
    ],
)
def test_index(index: object) -> None:
    check(operator.getitem, X, index)


@pytest.mark.parametrize("index", [0, slice(1, None), (Ellipsis, slice(None, None, 2)), (slice(None), slice(None), 1)])
def test_index_that_is_no_reindex(index: object) -> None:
    assert build(lookup(operator.getitem), X, index) is NotImplemented


@pytest.mark.parametrize("args", [(6, 4), (-1,), (2, 12), (24,), (3, 2, 4)])
def test_reshape_that_is_no_reindex(args: tuple[int, ...]) -> None:
    assert build(lookup_method("view"), X, *args) is NotImplemented
    assert build(lookup(torch.reshape), X, args) is NotImplemented


def test_two_dims() -> None:
    check(torch.t, ROW)
    check(torch.transpose, ROW, 0, 1)
    check(torch.permute, ROW, (1, 0))
    check(torch.ravel, ROW)
    check(torch.flatten, torch.tensor(3.0))
    check(torch.squeeze, ROW)
    check(torch.unsqueeze, torch.tensor(3.0), 0)
    check(torch.transpose, torch.tensor(3.0), 0, -1)
    check_method("expand_as", ROW, plain(torch.float32, (3, 5)))
    check_method("view_as", ROW, plain(torch.float32, (5,)))
    check(torch.broadcast_tensors, ROW, plain(torch.float32, (3, 1)))
    for name, wanted in [("T", ROW.T), ("mT", ROW.mT), ("H", ROW.H)]:
        assert torch.equal(build(lookup_attribute(name), ROW).run()[0], wanted)


def test_views_compose_into_one() -> None:
    def both(builder: Builder, x: object) -> object:
        return lookup(torch.t)(builder, lookup(torch.squeeze)(builder, lookup(torch.unsqueeze)(builder, x, 0), 0))

    x = plain(torch.float32, (2, 3))
    built = build(both, x)
    assert [n.op for n in built.graph] == ["input", "reindex"]
    assert torch.equal(built.run()[0], x.t())

    def twice(builder: Builder, x: object) -> object:
        return lookup(torch.t)(builder, lookup(torch.t)(builder, x))

    assert build(twice, x).outputs.id == 0


def test_sizes_are_host_scalars() -> None:
    def sized(builder: Builder, x: object) -> object:
        shape = lookup_attribute("shape")(builder, x)
        assert shape[0] == 1 and isinstance(shape[1], ScalarValue) and shape[1].hint == 5
        made = lookup(torch.zeros)(builder, shape[1], shape[0])
        assert made.shape == (x.shape[1], 1)
        return lookup(torch.add)(builder, made, lookup_method("numel")(builder, x))

    built = build(sized, ROW)
    assert torch.equal(built.run()[0], torch.zeros(5, 1) + 5)
    built.tensors[0] = plain(torch.float32, (1, 7))
    assert torch.equal(built.run()[0], torch.zeros(7, 1) + 7)


def test_sizes_of_another_tensor_unify() -> None:
    def viewed(builder: Builder, x: object, y: object) -> object:
        n = lookup_method("size")(builder, y, 0)
        return lookup_method("view")(builder, x, 1, n, -1)

    built = build(viewed, plain(torch.float32, (3, 4)), plain(torch.float32, (3,)))
    assert built.graph[built.graph.inputs[0]].tensor.shape[0] == built.graph[built.graph.inputs[1]].tensor.shape[0]


def test_static_attributes() -> None:
    def asked(builder: Builder, x: object) -> object:
        assert lookup_method("dim")(builder, x) == lookup_attribute("ndim")(builder, x) == 2
        assert lookup_attribute("dtype")(builder, x) is torch.float32
        assert lookup_method("element_size")(builder, x) == 4
        assert lookup(torch.is_floating_point)(builder, x) is True
        assert lookup(len)(builder, x) == 1
        return x

    build(asked, ROW)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.int64, torch.bool])
def test_factories(dtype: torch.dtype | None) -> None:
    x = plain(torch.float32, (2, 3))
    for name in ("zeros", "ones"):
        check(getattr(torch, f"{name}_like"), x, dtype=dtype)
        check(getattr(torch, name), 2, 3, dtype=dtype)
        check(getattr(torch, name), (2, 3), dtype=dtype)
        check_method(f"new_{name}", x, (4,), dtype=dtype)
    check(torch.full_like, x, 1.5, dtype=dtype)
    check(torch.full, (2, 3), 7, dtype=dtype)
    check(torch.full, (2, 3), 0.5, dtype=dtype)
    check(torch.full, (), True, dtype=dtype)
    check_method("new_full", x, (1, 2), 3.0, dtype=dtype)
    check(torch.tensor, 2.5, dtype=dtype)


def test_factory_options_left_to_torch() -> None:
    x = plain(torch.float32)
    assert build(lookup(torch.zeros_like), x, device="cpu") is NotImplemented
    assert build(lookup(torch.zeros), 3, requires_grad=True) is NotImplemented
    check(torch.zeros_like, x, device=x.device)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("unsqueeze", (9,), "out of range"),
        ("permute", (0, 0), "does not name every dim"),
        ("expand", (3, 6), "does not fit shape"),
        ("view", (-1, -1), "one -1"),
        ("transpose", (0, 5), "out of range"),
        ("__getitem__", ((0, 0, 0),), "too many indices"),
    ],
)
def test_wrong_views(name: str, args: tuple[object, ...], message: str) -> None:
    with pytest.raises(OpError, match=message):
        build(lookup_method(name), ROW, *args)
