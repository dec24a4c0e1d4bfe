# SPDX-License-Identifier: Apache-2.0
"""The iteration space of a problem: its loops, outermost first, merged where every tensor allows it.

Loops of extent 1 are dropped. Two neighbouring loops of one kind (kept or reduced) merge when every tensor walks them as
one (``stride[a] == stride[b] * extent[b]``) and no value is a position along either (``iota``). The result is 1 to 8 axes, each with a stride per tensor; a reduction over
loops of extent 1 leaves one reduced axis of extent 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.reductions import find_reductions
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
        counts: per ``random`` node, the stride of its elements' numbers on every axis: as of a packed tensor of its shape.
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

    def dense_stride(self, axis: int) -> int:
        """The stride of ``axis`` in a packed tensor that varies on every axis."""
        return self.size(tuple(range(axis + 1, len(self.axes))))


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
    """Order the loops by the reference tensor's memory, drop loops of extent 1, merge neighbours."""
    graph = problem.graph
    domains = domain_map(graph)
    sizes = problem.sizes()
    extents = [extent_size(e, sizes) for e in domains.extents]
    reduced = find_reductions(graph).classes
    tensors = [i for i in dict.fromkeys((*graph.outputs, *graph.inputs)) if i in problem.layouts]
    strides = {i: _class_strides(problem, i, len(extents)) for i in tensors}
    counts = {n.id: _counting_strides(problem, n.id, sizes, len(extents)) for n in graph if n.op == "random"}

    def coverage(node_id: int) -> tuple[int, int]:
        covered = sum(s != 0 for s in strides[node_id])
        return covered, layout_bytes(problem, node_id)

    order = list(range(len(extents)))
    if tensors:
        # max() keeps the first of equals: outputs come before inputs.
        reference = strides[max(tensors, key=coverage)]
        order.sort(key=lambda c: -reference[c] if reference[c] else -_NEVER)
    order = [c for c in order if extents[c] != 1]
    counted = {domains.dims[n.id][n.attribute("dim")] for n in graph if n.op == "iota"}
    groups: list[list[int]] = []
    for cls in order:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and (last in reduced) == (cls in reduced)
            and not {last, cls} & counted
            and all(s[last] == s[cls] * extents[cls] for s in (*strides.values(), *counts.values()))
        ):
            groups[-1].append(cls)
        else:
            groups.append([cls])
    axes = []
    for group in groups:
        extent = 1
        for cls in group:
            extent *= extents[cls]
        axes.append(Axis(extent, group[0] in reduced, tuple(group)))
    found = {i: tuple(s[g[-1]] for g in groups) for i, s in (*strides.items(), *counts.items())}
    closes = bool(find_reductions(graph).nodes)
    if not axes or (closes and not any(axis.reduced for axis in axes)):
        axes.append(Axis(1, closes))
        found = {i: (*s, 0) for i, s in found.items()}
    numbered = {i: found.pop(i) for i in counts}
    return IterationSpace(tuple(axes), found, numbered, problem)


#: Loops the reference does not vary on go outermost.
_NEVER = 1 << 62


def layout_bytes(problem: Problem, node_id: int) -> int:
    """Bytes of distinct elements a tensor holds (dims of stride 0 count once)."""
    layout = problem.layouts[node_id]
    count = problem.graph[node_id].tensor.dtype.itemsize
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        count *= size if stride else 1
    return count


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
