# SPDX-License-Identifier: Apache-2.0
"""Every rule that ``verify`` checks, broken once."""

from __future__ import annotations

import attrs
import pytest
import torch

from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import ScalarType, TensorType
from fusedsl.graph.verify import GraphInvariantError, verify


def sample() -> Graph:
    """0 x, 1 promote, 2 sum, 3 constant, 4 div, 5 reindex, 6 sub, 7 gt, 8 where."""
    builder = Builder("f")
    x = builder.input("x", torch.float16, (3, 4))
    rows, columns = builder.tensor(x).shape
    full, row = TensorType(torch.float32, (rows, columns)), TensorType(torch.float32, (rows,))
    wide = builder.add("cast", (x,), full, explicit=False)
    total = builder.add("sum", (wide,), row, dims=(1,))
    two = builder.add("constant", (), ScalarType("float"), value=2.0)
    half = builder.add("div", (total, two), row)
    spread = builder.add("reindex", (half,), full, dims=(0, None))
    centred = builder.add("sub", (wide, spread), full)
    mask = builder.add("gt", (centred, two), TensorType(torch.bool, full.shape))
    return builder.finish([builder.add("where", (mask, centred, two), full)])


def broken(place: int, **changes: object) -> Graph:
    graph = sample()
    nodes = list(graph.nodes)
    nodes[place] = attrs.evolve(nodes[place], **changes)
    return attrs.evolve(graph, nodes=tuple(nodes))


def test_a_good_graph_is_returned() -> None:
    graph = sample()
    assert verify(graph) is graph


SHAPE = sample()[0].tensor.shape


@pytest.mark.parametrize(
    ("place", "changes", "message"),
    [
        (4, {"id": 7}, "not its place"),
        (2, {"inputs": (6,)}, "later node"),
        (2, {"inputs": (1, 1)}, "takes 1 operands"),
        (4, {"name": "x"}, "is taken"),
        (4, {"op": "nothing"}, "not in the table"),
        (1, {"type": TensorType(torch.float32, SHAPE[:1])}, "keeps the shape"),
        (2, {"attributes": (("dims", (1, 0)),)}, "sorted"),
        (2, {"attributes": (("dims", (5,)),)}, "out of range"),
        (2, {"attributes": (("dims", (0,)),)}, "drops its dims"),
        (2, {"op": "any"}, "take bools"),
        (2, {"op": "argmax"}, "int64"),
        (3, {"type": ScalarType("int")}, "kind of its value"),
        (5, {"attributes": (("dims", (0, 0)),)}, "reads a dim twice"),
        (5, {"attributes": (("dims", (None, 0)),)}, "is not"),
        (5, {"attributes": (("dims", (0,)),)}, "one entry a dim"),
        (6, {"inputs": (1, 4)}, "shape of the result"),
        (6, {"inputs": (0, 1)}, "one dtype"),
        (6, {"inputs": (3, 3)}, "tensor operand"),
        (6, {"op": "bitwise_and"}, "integers and bools"),
        (7, {"type": TensorType(torch.float32, SHAPE)}, "torch.bool"),
        (8, {"inputs": (6, 6, 3)}, "condition is a bool"),
        (8, {"inputs": (7, 3, 3)}, "one choice"),
    ],
)
def test_broken_rules(place: int, changes: dict[str, object], message: str) -> None:
    with pytest.raises(GraphInvariantError, match=message):
        verify(broken(place, **changes))


def test_ends() -> None:
    with pytest.raises(GraphInvariantError, match="input nodes"):
        verify(attrs.evolve(sample(), inputs=()))
    with pytest.raises(GraphInvariantError, match="output 99"):
        verify(attrs.evolve(sample(), outputs=(99,)))
    with pytest.raises(GraphInvariantError, match="host scalar"):
        verify(attrs.evolve(sample(), outputs=(3,)))
