# SPDX-License-Identifier: Apache-2.0
"""``where``, ``clamp``, ``masked_fill``, casts, copies, and host arithmetic."""

from __future__ import annotations

import ast
import itertools
import math
import operator

import pytest
import torch

from fusedsl.frontend.callables import NeedsStatic, OpError, lookup, lookup_method, lookup_operator
from fusedsl.graph.builder import Builder
from tests.frontend.callables.support import ALL, FLOATS, INTS, Runtime, build, check, check_method, plain, special


@pytest.mark.parametrize(("a", "b"), [*itertools.product(ALL, ALL)])
def test_where(a: torch.dtype, b: torch.dtype) -> None:
    mask = special(torch.bool, seed=5)
    check(torch.where, mask, special(a), special(b, seed=1))
    check(torch.where, mask[:, :1], special(a), special(b, (), seed=1))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("number", [0, 0.5, True, -0.0])
def test_where_with_numbers(dtype: torch.dtype, number: float) -> None:
    mask = special(torch.bool, seed=5)
    check(torch.where, mask, number, special(dtype))
    check(torch.where, mask, special(dtype), Runtime(number))
    check(torch.where, mask, number, 2)
    check_method("where", special(dtype), mask, number)


def test_where_of_two_floats_is_float32() -> None:
    built = check(torch.where, torch.tensor([True, False]), 1.0, 0.0)
    assert built is not None
    assert built.run()[0].dtype is torch.float32


def test_where_without_choices_is_left_to_torch() -> None:
    assert build(lookup(torch.where), special(torch.bool)) is NotImplemented
    with pytest.raises(OpError, match="bool"):
        build(lookup(torch.where), special(torch.float32), 1.0, 2.0)


@pytest.mark.parametrize("dtype", ALL)
def test_clamp(dtype: torch.dtype) -> None:
    x = special(dtype)
    for low, high in [(0, 2), (0.5, 1.5), (None, 1), (0, None), (2, 0), (None, None), (float("nan"), 1.0)]:
        if not (dtype is torch.uint8 and low == 2):
            check(torch.clamp, x, low, high)
    check(torch.clamp, x, min=Runtime(0.25))
    check(torch.clamp_min, x, 1)
    check(torch.clamp_max, x, 1)
    check(torch.clip, x, special(dtype, seed=1), special(dtype, seed=2))
    check(torch.clamp, x, special(dtype, (6,), seed=1))


@pytest.mark.parametrize("dtype", ALL)
def test_masked_fill(dtype: torch.dtype) -> None:
    for value in (0, 1.5, True, float("-inf")):
        check(torch.masked_fill, special(dtype), special(torch.bool, (6,)), value)


@pytest.mark.parametrize(("a", "b"), [*itertools.product(FLOATS, ALL), *itertools.product(INTS, ALL)])
def test_cast(a: torch.dtype, b: torch.dtype) -> None:
    x = plain(a).abs() if a.is_floating_point and not b.is_signed else plain(a)
    if not a.is_floating_point and not b.is_signed and b is not torch.bool:
        x = x.abs()
    check_method("to", x, b)
    check_method("to", x, dtype=b)
    check_method("type_as", x, plain(b))
    check_method("to", x, plain(b))
    check_method("type", x, b)


def test_named_casts() -> None:
    for name in "float double half bfloat16 int long short char bool".split():
        check_method(name, plain(torch.float32))
    check_method("byte", plain(torch.float32).abs())


def test_same_dtype_is_the_value_itself() -> None:
    built = build(lookup_method("float"), plain(torch.float32))
    assert built.graph.outputs == built.graph.inputs
    built = build(lookup_method("to"), plain(torch.float32), torch.float32, copy=True)
    assert built.graph.outputs != built.graph.inputs
    assert build(lookup_method("to"), plain(torch.float32), "cpu") is NotImplemented


def test_explicit_rounding_is_kept() -> None:
    x = torch.tensor([1.01, 2.02, 3.03])

    def rounded(builder: Builder, x: object) -> object:
        half = lookup_method("to")(builder, x, torch.bfloat16)
        single = lookup_method("float")(builder, half)
        return lookup(torch.sub)(builder, lookup(torch.mul)(builder, single, 1.0), x)

    wanted = x.to(torch.bfloat16).float() * 1.0 - x
    built = build(rounded, x)
    for compute in ("eager", "kernel"):
        torch.testing.assert_close(built.run(compute)[0], wanted, rtol=0, atol=0)
    assert wanted.abs().min() > 1e-3


def test_copies() -> None:
    x = plain(torch.float32).t()
    built = check(torch.clone, x)
    assert built.run()[0].stride() == x.clone().stride()
    built = check_method("contiguous", x)
    assert built.run()[0].is_contiguous()
    built = check_method("detach", x)
    assert [node.op for node in built.graph] == ["input", "reindex"]
    assert built.graph[1].attribute("detached")


# host scalars ------------------------------------------------------------


def test_host_arithmetic_makes_scalar_nodes() -> None:
    def scaled(builder: Builder, x: object, a: object, b: object) -> object:
        product = lookup_operator(ast.Mult)(builder, a, b)
        root = lookup(math.sqrt)(builder, product)
        return lookup(operator.mul)(builder, x, lookup(max)(builder, root, 0.5))

    x = plain(torch.float32)
    built = build(scaled, x, Runtime(2.0), Runtime(8.0))
    torch.testing.assert_close(built.run()[0], x * 4.0, rtol=0, atol=0)
    built.scalars[:] = [0.1, 0.1]
    torch.testing.assert_close(built.run()[0], x * 0.5, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        (ast.Add, 9),
        (ast.Sub, 5),
        (ast.Mult, 14),
        (ast.Div, 3.5),
        (ast.FloorDiv, 3),
        (ast.Mod, 1),
        (ast.Pow, 49),
        (ast.LShift, 28),
        (ast.RShift, 1),
        (ast.BitAnd, 2),
        (ast.BitOr, 7),
        (ast.BitXor, 5),
        (ast.Lt, False),
        (ast.GtE, True),
        (ast.Eq, False),
        (ast.NotEq, True),
    ],
)
def test_operators_on_host_scalars(node: type, wanted: float) -> None:
    def apply(builder: Builder, a: object, b: object) -> object:
        result = lookup_operator(node)(builder, a, b)
        assert result.hint == wanted and type(result.hint) is type(wanted)
        return lookup(torch.full)(builder, (), result)

    assert build(apply, Runtime(7), Runtime(2)).run()[0].item() == wanted
    assert lookup_operator(node())(Builder("f"), 7, 2) == wanted


def test_failing_host_arithmetic_is_named() -> None:
    with pytest.raises(OpError, match="division by zero"):
        build(lookup_operator(ast.Div), Runtime(1.0), Runtime(0.0))
    with pytest.raises(OpError, match=r"math\.exp takes numbers"):
        build(lookup(math.exp), plain(torch.float32))
    with pytest.raises(OpError, match="known only on the GPU"):
        build(lookup_operator(ast.Not), plain(torch.float32))


def test_structure_on_a_host_scalar_asks_for_it() -> None:
    with pytest.raises(NeedsStatic) as caught:
        build(lookup(torch.sum), plain(torch.float32), Runtime(1))
    assert caught.value.value.hint == 1


def test_unknown_callables() -> None:
    assert lookup(torch.matmul) is None
    assert lookup([]) is None
    assert lookup_method("cumsum") is None
    assert lookup_operator(ast.MatMult()) is None
