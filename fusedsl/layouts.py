# SPDX-License-Identifier: Apache-2.0
"""Where the values of a graph would lie in memory: what eager PyTorch would give for arguments laid out as given."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from fusedsl.analysis.memory_order import symbol_sizes
from fusedsl.analysis.segment import compute_nodes
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import ScalarType, Symbol, TensorType
from fusedsl.schedulers.base import Layout, extent_size


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of a shape, as torch gives them (a size of 0 counts as 1)."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def stored_layouts(graph: Graph, inputs: Mapping[int, Layout]) -> dict[int, Layout]:
    """Layouts of every computed tensor that may be stored.

    Args:
        graph: any graph.
        inputs: of its tensor inputs.
    """
    wanted = [n for n in compute_nodes(graph) if graph[n].is_tensor and not _is_tuple(graph[n])]
    if _is_packed(graph, inputs, wanted):
        sizes = symbol_sizes(graph, inputs)
        return {n: _packed(graph[n].tensor, sizes) for n in wanted}
    tensors = [
        torch.empty_strided(inputs[n].shape, inputs[n].strides, dtype=graph[n].tensor.dtype, device="meta")
        for n in graph.inputs
    ]
    scalars = [1.0 if graph[s].type == ScalarType("float") else 1 for s in graph.scalars]
    results = evaluate(attrs.evolve(graph, outputs=tuple(wanted)), tensors, scalars)
    found = {}
    for n, result in zip(wanted, results, strict=True):
        shape, strides = tuple(result.shape), tuple(result.stride())
        if any(stride == 0 and size > 1 for stride, size in zip(strides, shape, strict=True)):
            strides = packed_strides(shape)
        found[n] = Layout(shape, strides)
    return found


def distinct_bytes(dtype: torch.dtype, layout: Layout) -> int:
    """Bytes of the distinct elements of a tensor: dims of stride 0 count once."""
    count = dtype.itemsize
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        count *= size if stride else 1
    return count


def may_overlap(layout: Layout) -> bool:
    """Whether two elements of a tensor may be one element of memory (never where its dims nest)."""
    reach = 0
    for stride, size in sorted(zip(layout.strides, layout.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _is_tuple(node: Node) -> bool:
    """Whether a node stands for several tensors, which ``item`` takes apart."""
    return node.op == "opaque" and node.attribute("results") > 1


def _is_packed(graph: Graph, inputs: Mapping[int, Layout], wanted: list[int]) -> bool:
    """True if all inputs are row-major and nothing permutes them: then so is everything else."""
    return (
        not any(OPS[graph[n].op].kind is Kind.OPAQUE for n in wanted)
        and all(layout.strides == packed_strides(layout.shape) for layout in inputs.values())
        and not any(node.op == "reindex" and _permutes(node.attribute("dims")) for node in graph)
    )


def _permutes(dims: tuple[int | None, ...]) -> bool:
    kept = [d for d in dims if d is not None]
    return kept != sorted(kept)


def _packed(type_: TensorType, sizes: Mapping[Symbol, int]) -> Layout:
    shape = tuple(extent_size(e, sizes) for e in type_.shape)
    return Layout(shape, packed_strides(shape))
