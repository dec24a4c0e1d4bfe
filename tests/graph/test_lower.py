# SPDX-License-Identifier: Apache-2.0
"""Lookups and views of positions, before and after they are rewritten for kernels."""

from __future__ import annotations

import pytest
import torch

from fusedsl.analysis.domains import domain_map
from fusedsl.frontend.callables import TensorValue, lookup, lookup_method
from fusedsl.frontend.callables.values import gather, iota, pointwise, reindex
from fusedsl.graph.builder import Builder
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph
from fusedsl.graph.lower import lower
from fusedsl.graph.types import Symbol, TensorType
from fusedsl.graph.verify import GraphInvariantError, verify

X = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
T = torch.tensor([6, 0, 3])


def _lookup(*, reads_row: bool, cast: torch.dtype | None = None) -> Graph:
    builder = Builder("lookup")
    x = TensorValue(builder, builder.input("x", torch.float32, X.shape))
    t = TensorValue(builder, builder.input("t", torch.int64, T.shape))
    builder.unify(x.shape[0], t.shape[0])
    row = x if cast is None else lookup_method("to")(builder, x, cast)
    outputs = [gather(row, t, 1).id]
    if reads_row:
        outputs.append(lookup(torch.amax)(builder, row, 1).id)
    return verify(builder.finish(outputs))


@pytest.mark.parametrize("cast", [None, torch.float64])
@pytest.mark.parametrize("reads_row", [False, True])
def test_a_lookup_keeps_its_meaning(reads_row: bool, cast: torch.dtype | None) -> None:
    graph = _lookup(reads_row=reads_row, cast=cast)
    lowered = verify(lower(graph))
    wanted = X.to(cast or X.dtype).gather(1, T[:, None])[:, 0]
    assert torch.equal(evaluate(graph, [X, T])[0], wanted)
    assert torch.equal(evaluate(lowered, [X, T])[0], wanted)
    ops = [node.op for node in lowered]
    assert ("opaque" in ops, "sum" in ops, "gather" in ops) == (not reads_row, reads_row, False)
    if cast and not reads_row:
        assert ops.index("cast") > ops.index("opaque"), "one element a row is converted, not the whole argument"


def test_a_graph_without_positions_is_returned_as_it_is() -> None:
    builder = Builder("plain")
    x = TensorValue(builder, builder.input("x", torch.float32, (3, 7)))
    graph = builder.finish([pointwise("exp", x).id])
    assert lower(graph) is graph


def test_views_of_positions_are_loops_of_their_own() -> None:
    builder = Builder("causal")
    x = TensorValue(builder, builder.input("x", torch.float32, (5, 5)))
    length = builder.unify(*x.shape)
    i = iota(builder, 0, torch.int64, (length,))
    half = pointwise("floor_divide", i, 2)
    mask = pointwise("ge", reindex(half, (0, None), (length, 1)), reindex(half, (None, 0), (1, length)))
    graph = verify(builder.finish([mask.id]))
    lowered = verify(lower(graph))
    place = torch.arange(5) // 2
    wanted = place[:, None] >= place[None]
    for found in (graph, lowered):
        assert torch.equal(evaluate(found, [torch.zeros(5, 5)])[0], wanted)
    assert domain_map(graph).self_mapped(graph.outputs[0])
    assert not domain_map(lowered).self_mapped(lowered.outputs[0])
    assert not any(node.op == "reindex" for node in lowered)


def test_what_verify_refuses() -> None:
    n = Symbol("n", 3)
    for dtype, dim in ((torch.float32, 0), (torch.int64, 1)):
        builder = Builder("wrong")
        with pytest.raises(GraphInvariantError, match="iota"):
            verify(builder.finish([iota(builder, 0, dtype, (n, n)).id if dim == 0 else _misplaced(builder, n)]))


def _misplaced(builder: Builder, n: Symbol) -> int:
    return builder.add("iota", (), TensorType(torch.int64, (n,)), dim=1)
