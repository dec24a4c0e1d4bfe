# SPDX-License-Identifier: Apache-2.0
"""The iteration space of a problem: its loops, outermost first, merged where every tensor allows it.

Loops lie as the analysis says they lie in memory; those of extent 1 are dropped. Two neighbouring loops of one kind
(kept or reduced) merge when every tensor walks them as one (``stride[a] == stride[b] * extent[b]``) and no value is a
position along either (``iota``). The result is 1 to 8 axes, each with a stride per tensor; a reduction over loops of
extent 1 leaves one reduced axis of extent 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs

from fusedsl.analysis.domains import class_sizes, domain_map
from fusedsl.analysis.memory_order import memory_order
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import Symbol, compute_dtype
from fusedsl.schedulers.base import Layout, Problem, extent_size


@attrs.frozen
class Axis:
    """A loop: its extent, whether reductions close it, and the classes merged into it, outermost first."""

    extent: int
    reduced: bool
    classes: tuple[int, ...] = ()


@attrs.frozen
class IterationSpace:
    """The loops of a problem.

    Attributes:
        axes: outermost first; never empty.
        strides: per input and output node, its stride in elements on every axis (0 where it does not vary).
        counts: per ``random`` node, the stride of its elements' numbers on every axis: that of a packed tensor of its
            shape.
        problem: what it was made from.
    """

    axes: tuple[Axis, ...]
    strides: dict[int, tuple[int, ...]] = attrs.field(hash=False)
    counts: dict[int, tuple[int, ...]] = attrs.field(hash=False)
    problem: Problem = attrs.field(repr=False)

    @property
    def kept(self) -> tuple[int, ...]:
        """Indices of the axes that are not reduced."""
        return tuple(i for i, axis in enumerate(self.axes) if not axis.reduced)

    @property
    def reduced(self) -> tuple[int, ...]:
        """Indices of the reduced axes."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.reduced)

    def size(self, axes: tuple[int, ...]) -> int:
        """Product of the extents of some axes."""
        count = 1
        for i in axes:
            count *= self.axes[i].extent
        return count


def _class_strides(problem: Problem, node_id: int, count: int) -> list[int]:
    layout: Layout = problem.layouts[node_id]
    strides = [0] * count
    for cls, size, stride in zip(domain_map(problem.graph).dims[node_id], layout.shape, layout.strides, strict=True):
        if cls is not None and size != 1:
            strides[cls] = stride
    return strides


def _counting_strides(problem: Problem, node_id: int, sizes: Mapping[Symbol, int], count: int) -> list[int]:
    """Class strides of a packed tensor of a node's shape."""
    strides = [0] * count
    step = 1
    dims = domain_map(problem.graph).dims[node_id]
    for cls, extent in zip(reversed(dims), reversed(problem.graph[node_id].tensor.shape), strict=True):
        if cls is not None:
            strides[cls] = step
        step *= extent_size(extent, sizes)
    return strides


def iteration_space(problem: Problem) -> IterationSpace:
    """Order the loops as they lie in memory, drop loops of extent 1, merge neighbours."""
    graph = problem.graph
    sizes = problem.sizes()
    extents = class_sizes(domain_map(graph), sizes)
    tensors = [i for i in dict.fromkeys((*graph.outputs, *graph.inputs)) if i in problem.layouts]
    strides = {i: _class_strides(problem, i, len(extents)) for i in tensors}
    counts = {n.id: _counting_strides(problem, n.id, sizes, len(extents)) for n in graph if n.op == "random"}
    order = [c for c in memory_order(graph, problem.layouts) if extents[c] != 1]
    groups = _merged(graph, order, extents, [*strides.values(), *counts.values()])
    reduced = find_reductions(graph).classes
    axes = [Axis(math.prod(extents[c] for c in group), group[0] in reduced, tuple(group)) for group in groups]
    closes = bool(find_reductions(graph).nodes)
    padding: tuple[int, ...] = ()
    if not axes or (closes and not any(axis.reduced for axis in axes)):
        axes.append(Axis(1, closes))
        padding = (0,)

    def along(of_classes: dict[int, list[int]]) -> dict[int, tuple[int, ...]]:
        return {i: (*(s[group[-1]] for group in groups), *padding) for i, s in of_classes.items()}

    return IterationSpace(tuple(axes), along(strides), along(counts), problem)


def _merged(graph: Graph, order: list[int], extents: Sequence[int], strides: list[list[int]]) -> list[list[int]]:
    """Loops in groups that every tensor walks as one loop; a loop that values count along stays apart."""
    reduced = find_reductions(graph).classes
    dims = domain_map(graph).dims
    counted = {dims[n.id][n.attribute("dim")] for n in graph if n.op == "iota"}
    groups: list[list[int]] = []
    for cls in order:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and (last in reduced) == (cls in reduced)
            and not {last, cls} & counted
            and all(s[last] == s[cls] * extents[cls] for s in strides)
        ):
            groups[-1].append(cls)
        else:
            groups.append([cls])
    return groups


def vector_width(space: IterationSpace, axis: int, *, ragged: bool = False) -> int:
    """Elements of the widest useful access along ``axis``: 16 bytes of the narrowest tensor whose stride there is 1.

    The width divides the extent (unless the kernel treats a ``ragged`` end apart), every other stride and the first
    address of such tensors. Tensors with other strides are read element by element and do not limit the width. 1 if no
    tensor takes part.
    """
    extent = space.axes[axis].extent
    width = 1
    for node_id, strides in space.strides.items():
        if strides[axis] == 1:
            width = max(width, 16 // space.problem.graph[node_id].tensor.dtype.itemsize)
    while width > 1 and not ragged and extent % width:
        width //= 2
    for node_id, strides in space.strides.items():
        if strides[axis] != 1:
            continue
        item = space.problem.graph[node_id].tensor.dtype.itemsize
        alignment = space.problem.layouts[node_id].alignment
        while width > 1 and not _aligned(width * item, item, alignment, strides, axis):
            width //= 2
    return width


def _aligned(chunk_bytes: int, item: int, alignment: int, strides: tuple[int, ...], axis: int) -> bool:
    need = min(chunk_bytes, 16)
    return alignment % need == 0 and all(s * item % need == 0 for i, s in enumerate(strides) if i != axis)


def pow2_at_least(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


#: Registers of a thread that the values of a tile may take together.
TILE_REGISTERS = 192


def tile_limit(space: IterationSpace) -> int:
    """Elements of a tile, a power of two, so that the tensors and accumulators of the kernel fit a thread's registers.

    A rough count, for kernels with many tensors: every tensor that varies along a loop, every reduction and two
    intermediates hold a tile each, beyond eight tensors one more a tensor; tensors of one element and what is computed
    from them hold two elements each. 8-byte values take two registers.
    """
    graph = space.problem.graph
    tensors = [i for i, strides in space.strides.items() if any(strides)]
    wide = 2 if any(compute_dtype(graph[i].tensor.dtype).itemsize > 4 for i in space.strides) else 1
    values = len(tensors) + len(find_reductions(graph).nodes) + 2 + max(len(tensors) - 8, 0)
    left = TILE_REGISTERS - 2 * wide * (len(space.strides) - len(tensors))
    return 1 << (max(left // (values * wide), 1).bit_length() - 1)
