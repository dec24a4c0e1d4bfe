# SPDX-License-Identifier: Apache-2.0
"""Rewrites what kernels have no form for: lookups in a row, and views of values that depend on positions alone.

* ``gather`` becomes ``sum(where(iota == index, x, 0))`` when the row is computed or read anyway: the elements are in
  registers, and no address depends on data. A lookup in an argument that nothing else reads is left to eager torch,
  which touches one element a row.
* A ``reindex`` of positions, or of what is computed from positions and host scalars only, becomes such a value of the
  new shape. So ``i[:, None] >= i[None, :]`` counts two loops instead of reading one tensor along both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.opaque import CallTemplate, Hole
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import Extent, ScalarType, TensorType


def lower(graph: Graph) -> Graph:
    """The graph without ``gather`` and without views of positions; the same object if it has neither."""
    if not any(node.op in ("gather", "iota") for node in graph):
        return graph
    return _Lowering(graph).run()


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.users()
        self.builder = Builder(graph.name)
        self.new: dict[int, int] = {}
        self.free: dict[int, bool] = {}  # per tensor node of the new graph: depends on positions and host scalars only

    def run(self) -> Graph:
        for node in self.graph:
            self.builder.span = node.span
            self.new[node.id] = self._rewrite(node)
        return self.builder.finish(self.new[i] for i in self.graph.outputs)

    def _rewrite(self, node: Node) -> int:
        sources = [self.new[i] for i in node.inputs]
        if node.op == "gather":
            return self._gather(node, *sources)
        if node.op == "reindex" and self._is_free(sources[0]):
            return self._view(sources[0], node.attribute("dims"), node.tensor.shape)
        return self._copy(node, sources)

    def _copy(self, node: Node, sources: Sequence[int]) -> int:
        share = node.op not in ("input", "scalar_input", "opaque")
        return self.builder.add(node.op, sources, node.type, share=share, name=node.name, **dict(node.attributes))

    # views of positions --------------------------------------------------------------------------------------------

    def _is_free(self, node_id: int) -> bool:
        """Whether a value is computed from positions and host scalars alone (at least one position)."""
        if node_id not in self.free:
            node = self.builder.nodes[node_id]
            tensors = [i for i in node.inputs if self.builder.nodes[i].is_tensor]
            computed = OPS[node.op].kind in (Kind.POINTWISE, Kind.CAST) and bool(tensors)
            leaves = [i for i in tensors if self.builder.nodes[i].op != "full"]
            self.free[node_id] = node.op == "iota" or (
                computed and bool(leaves) and all(self._is_free(i) for i in leaves)
            )
        return self.free[node_id]

    def _view(self, node_id: int, dims: Sequence[int | None], shape: tuple[Extent, ...]) -> int:
        """``reindex`` of a free value, as the value itself computed in another shape."""
        node = self.builder.nodes[node_id]
        type_ = TensorType(node.tensor.dtype, shape)
        if node.op == "full":
            return self.builder.add("full", node.inputs, type_)
        if node.op == "iota":
            if node.attribute("dim") in dims:
                return self.builder.add("iota", (), type_, dim=list(dims).index(node.attribute("dim")))
            zero = self.builder.add("constant", (), ScalarType("int"), value=0)
            return self.builder.add("full", (zero,), type_)
        sources = [self._view(i, dims, shape) if self.builder.nodes[i].is_tensor else i for i in node.inputs]
        return self.builder.add(node.op, sources, type_, **dict(node.attributes))

    # lookups -------------------------------------------------------------------------------------------------------

    def _gather(self, node: Node, source: int, index: int) -> int:
        dim = node.attribute("dim")
        original = self.graph[node.inputs[0]]
        if not self._reads_row(original):
            return self._eager_gather(source, index, dim)
        return self._one_hot(source, index, dim, node.tensor)

    def _reads_row(self, node: Node) -> bool:
        """Whether the row is computed, or is an argument that something else than lookups reads."""
        while node.op in ("cast", "reindex"):
            node = self.graph[node.inputs[0]]
        if node.op not in ("input", "opaque", "item"):
            return True
        stack = [node.id]
        while stack:
            current = stack.pop()
            if current != node.id and current in self.graph.outputs and self.graph[current].op == "cast":
                return True
            for user in self.users[current]:
                match self.graph[user].op:
                    case "cast" | "reindex":
                        stack.append(user)
                    case "gather" if self.graph[user].inputs[1] != current:
                        continue
                    case "size":
                        continue
                    case _:
                        return True
        return False

    def _eager_gather(self, source: int, index: int, dim: int) -> int:
        node = self.builder.nodes[source]
        if node.op == "cast":
            found = self._eager_gather(node.inputs[0], index, dim)
            type_ = TensorType(node.tensor.dtype, self.builder.tensor(found).shape)
            return self.builder.add("cast", (found,), type_, **dict(node.attributes))
        shape = self.builder.tensor(index).shape
        kept = (*shape[:dim], 1, *shape[dim:])
        places = (*range(dim), None, *range(dim, len(shape)))
        column = self.builder.add("reindex", (index,), TensorType(torch.int64, kept), dims=places)
        call = CallTemplate((Hole(0), dim, Hole(1)), ())
        found = self.builder.add(
            "opaque", (source, column), TensorType(node.tensor.dtype, kept), share=False,
            function="torch.gather", call=call, results=1,
        )  # fmt: skip
        dims = tuple(d for d in range(len(kept)) if d != dim)
        return self.builder.add("reindex", (found,), TensorType(node.tensor.dtype, shape), dims=dims)

    def _one_hot(self, source: int, index: int, dim: int, result: TensorType) -> int:
        """``sum(where(iota == index, x, 0))``; positions are compared modulo 2**32."""
        add, shape = self.builder.add, self.builder.tensor(source).shape
        narrow = add("cast", (index,), TensorType(torch.int32, result.shape), explicit=False)
        places = tuple(None if d == dim else d - (d > dim) for d in range(len(shape)))
        wanted = add("reindex", (narrow,), TensorType(torch.int32, shape), dims=places)
        if shape[dim] == 1:
            dims = tuple(d for d in range(len(shape)) if d != dim)
            return add("reindex", (source,), result, dims=dims)
        positions = add("iota", (), TensorType(torch.int32, shape), dim=dim)
        hot = add("eq", (positions, wanted), TensorType(torch.bool, shape))
        if result.dtype is torch.bool:
            chosen = add("bitwise_and", (hot, source), TensorType(torch.bool, shape))
            return add("any", (chosen,), result, dims=(dim,))
        zero = add("constant", (), ScalarType("int"), value=0)
        chosen = add("where", (hot, source, zero), TensorType(result.dtype, shape))
        return add("sum", (chosen,), result, dims=(dim,))
