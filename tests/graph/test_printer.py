# SPDX-License-Identifier: Apache-2.0
"""Text and Graphviz of a graph."""

from __future__ import annotations

import torch

from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Graph
from fusedsl.graph.opaque import make_template
from fusedsl.graph.printer import print_graph, to_dot
from fusedsl.graph.types import ScalarType, TensorType


def norm() -> Graph:
    builder = Builder("norm")
    x = builder.input("x", torch.bfloat16, (8, 32))
    eps = builder.scalar_input("eps", "float")
    rows, columns = builder.tensor(x).shape
    wide = builder.add("cast", (x,), TensorType(torch.float32, (rows, columns)), explicit=False)
    total = builder.add("sum", (wide,), TensorType(torch.float32, (rows,)), dims=(1,))
    builder.rename(total, "total")
    count = builder.add("size", (x,), ScalarType("int"), dim=1)
    mean = builder.add("div", (total, count), TensorType(torch.float32, (rows,)))
    builder.rename(mean, "mean")
    shifted = builder.add("add", (mean, eps), TensorType(torch.float32, (rows,)))
    doubled = builder.add(
        "mul",
        (shifted, builder.add("constant", (), ScalarType("float"), value=2.0)),
        TensorType(torch.float32, (rows,)),
    )
    spread = builder.add("reindex", (doubled,), TensorType(torch.float32, (rows, columns)), dims=(0, None))
    result = builder.add("cast", (spread,), TensorType(torch.bfloat16, (rows, columns)), explicit=True)
    return builder.finish([result])


def test_text() -> None:
    assert print_graph(norm()) == str(norm()) == NORM


NORM = """\
norm(x: bfloat16[x.0, x.1], eps: float):
  _cast: float32[x.0, x.1] = promote(x, float32)
  total: float32[x.0] = sum(_cast, dims=(1,))
  _size: int = size(x, dim=1)
  mean: float32[x.0] = div(total, _size)
  _add: float32[x.0] = add(mean, eps)
  _mul: float32[x.0] = mul(_add, 2.0)
  _reindex: float32[x.0, x.1] = reindex(_mul, dims=(0, None))
  _cast_1: bfloat16[x.0, x.1] = to(_reindex, bfloat16)
  return _cast_1"""


def test_opaque_text() -> None:
    builder = Builder("f")
    x = builder.input("x", torch.float32, (2, 3))
    type_ = builder.tensor(x)
    template, _ = make_template((["v", "v"], slice(None, 2)), {"dim": 1, "more": {"a": (1,)}}, lambda item: item == "v")
    node = builder.add("opaque", (x, x), type_, share=False, function="torch.cat", call=template, results=1)
    text = print_graph(builder.finish([node]))
    assert "eager torch.cat([x, x], slice(None, 2, None), dim=1, more={'a': (1,)})" in text


def test_dot() -> None:
    text = to_dot(norm())
    assert text.startswith('digraph "norm" {') and text.endswith("}")
    graph = norm()
    assert text.count("->") == sum(len(n.inputs) for n in graph)
    assert text.count("label=") == len(graph.nodes)
    assert text.count("peripheries=2") == 1
