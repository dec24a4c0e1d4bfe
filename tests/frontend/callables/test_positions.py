# SPDX-License-Identifier: Apache-2.0
"""Factories of positions, masks by position, lookups in a row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.callables import OpError, lookup, size
from tests.frontend.callables.support import ALL, Runtime, build, check, check_method, plain, special


@pytest.mark.parametrize(
    "arguments", [(7,), (0,), (1,), (2, 9), (2, 9, 3), (9, 2, -2), (0.5, 3), (0, 1, 0.25), (5.0,), (-3, 3)]
)
@pytest.mark.parametrize("dtype", [None, torch.int32, torch.float32, torch.float64, torch.bfloat16])
def test_arange(arguments, dtype) -> None:
    found = build(lookup(torch.arange), *arguments, dtype=dtype)
    if found is NotImplemented:
        assert any(isinstance(x, float) for x in arguments) and dtype is torch.int32
        return
    wanted = torch.arange(*arguments, dtype=dtype)
    (values,) = found.run()
    assert values.dtype is wanted.dtype
    torch.testing.assert_close(values, wanted, rtol=1e-6, atol=1e-6)


def test_arange_of_a_size_holds_for_every_size() -> None:
    def handler(builder, x):
        return lookup(torch.arange)(builder, size(x, 1))

    built = build(handler, torch.zeros(2, 5))
    built.tensors = [torch.zeros(2, 9)]
    assert built.run()[0].tolist() == list(range(9))


@pytest.mark.parametrize("arguments", [(5, 2), (2, 5, -1), (0, 4, 0), (-1,)])
def test_arange_that_never_ends(arguments) -> None:
    with pytest.raises(OpError, match="step does not lead"):
        build(lookup(torch.arange), *arguments)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name: str, dtype: torch.dtype) -> None:
    for shape in [(4, 4), (3, 5), (2, 5, 3), (1, 4), (4, 1), (0, 3)]:
        x = special(dtype, shape)
        for diagonal in (0, 1, -2, 9):
            check(getattr(torch, name), x, diagonal)
        check_method(name, x, diagonal=Runtime(1))


def test_eye_and_one_hot() -> None:
    for shape in [(3,), (2, 4), (4, 1), (1, 1)]:
        (found,) = build(lookup(torch.eye), *shape, dtype=torch.int32).run()
        assert torch.equal(found, torch.eye(*shape, dtype=torch.int32))
    for shape in [(4,), (2, 3), ()]:
        check(F.one_hot, torch.randint(0, 5, shape), 5)
    assert build(lookup(F.one_hot), torch.arange(3)) is NotImplemented
    with pytest.raises(OpError, match="int64"):
        build(lookup(F.one_hot), torch.arange(3).int(), 3)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_one_element_a_row(dim: int, dtype: torch.dtype) -> None:
    x = special(dtype, (3, 4, 5))
    index = torch.randint(0, x.shape[dim], [1 if d == dim % 3 else n for d, n in enumerate(x.shape)])
    check(torch.gather, x, dim, index)
    check_method("gather", x, dim, index)
    check(torch.take_along_dim, x, index, dim)
    check(torch.take_along_dim, x, index.narrow(1, 0, 1), dim)


def test_gather_outside_the_row() -> None:
    index = torch.tensor([[4], [-1], [0]])
    (found,) = build(lookup(torch.gather), plain(torch.float32, (3, 4)), 1, index).run()
    assert found[:, 0].isnan().tolist() == [True, True, False]
    (found,) = build(lookup(torch.gather), plain(torch.int32, (3, 4)), 1, index).run()
    assert found[:2, 0].tolist() == [0, 0]


def test_other_gathers_are_left_to_torch() -> None:
    x = plain(torch.float32, (3, 4))
    assert build(lookup(torch.gather), x, 1, torch.zeros(3, 2, dtype=torch.int64)) is NotImplemented
    assert build(lookup(torch.gather), x, 1, torch.zeros(2, 1, dtype=torch.int64)) is NotImplemented
    assert build(lookup(torch.take_along_dim), x, torch.zeros(3, dtype=torch.int64)) is NotImplemented
    with pytest.raises(OpError, match="int64 index"):
        build(lookup(torch.gather), x, 1, torch.zeros(3, 1, dtype=torch.int32))
