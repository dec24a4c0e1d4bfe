# SPDX-License-Identifier: Apache-2.0
"""The kernels that add partial sums: one for all sums over rows whose loops agree (weight and bias gradients).

The sums have nothing in common in the graph, so no analysis knows their loops for the same. Each is a problem of its
own first; problems with equal loops are then put side by side.
"""

from __future__ import annotations

import attrs

from fusedsl.graph.graph import Graph, Node
from fusedsl.schedulers.base import (
    Launch,
    Layout,
    Problem,
    extent_size,
)
from fusedsl.schedulers.columns import ColumnParams, column_kernels
from fusedsl.schedulers.halves import Halves, OuterSum
from fusedsl.schedulers.names import kernel_name
from fusedsl.schedulers.space import Axis, IterationSpace, iteration_space

#: Sums of one kernel: each has 256 accumulators in shared memory, of 48 KiB that need no opt-in.
MAX_SUMS = 16


def packed(problem: Problem, node_id: int) -> Layout:
    """A row-major layout of a value that is not stored."""
    sizes = problem.sizes()
    shape = tuple(extent_size(extent, sizes) for extent in problem.graph[node_id].tensor.shape)
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return Layout(shape, tuple(strides))


def finish(problem: Problem, halves: Halves, params: ColumnParams, parts: int, scheduler: str) -> list[Launch]:
    """The launches that add ``parts`` partial results of every sum, buffer i for sum i."""
    groups: dict[tuple[Axis, ...], list[list[int]]] = {}
    spaces = [_parts_first(iteration_space(_problem(problem, outer, parts))) for outer in halves.sums]
    for index, space in enumerate(spaces):
        alike = groups.setdefault(tuple(attrs.evolve(axis, classes=()) for axis in space.axes), [[]])
        if len(alike[-1]) == MAX_SUMS:
            alike.append([])
        alike[-1].append(index)
    launches = []
    for members in (group for alike in groups.values() for group in alike):
        space, firsts = _side_by_side([spaces[index] for index in members])
        origin = [node_id for index in members for node_id in halves.sums[index].origin]
        name = kernel_name(space.problem.graph, "sum" if len(members) == 1 else "sums")
        plan = column_kernels(space.problem, params, name, scheduler, space)
        partials = dict(zip(firsts, members, strict=True))
        launches += [launch.renumbered(origin, partials) for launch in plan.launches]
    return launches


def _problem(problem: Problem, outer: OuterSum, parts: int) -> Problem:
    """The problem of adding the partial results of one sum; they are node 0."""
    layouts = {n: problem.layouts[outer.origin[n]] for n in (*outer.graph.inputs[1:], *outer.graph.outputs)}
    result = packed(problem, outer.origin[0])
    first = result.strides[0] * result.shape[0] if result.shape else 1
    layouts[0] = Layout((parts, *result.shape), (first, *result.strides))
    return attrs.evolve(problem, graph=outer.graph, layouts=layouts)


def _parts_first(space: IterationSpace) -> IterationSpace:
    """The loop over parts outermost, also where it is one of a single part, which stands innermost otherwise."""
    order = sorted(range(len(space.axes)), key=lambda axis: not space.axes[axis].reduced)
    strides = {node_id: tuple(along[axis] for axis in order) for node_id, along in space.strides.items()}
    return attrs.evolve(space, axes=tuple(space.axes[axis] for axis in order), strides=strides)


def _side_by_side(spaces: list[IterationSpace]) -> tuple[IterationSpace, list[int]]:
    """Problems with equal loops as one, and the first node of each in its graph."""
    nodes: list[Node] = []
    outputs: list[int] = []
    layouts: dict[int, Layout] = {}
    strides: dict[int, tuple[int, ...]] = {}
    firsts: list[int] = []
    for space in spaces:
        graph, first = space.problem.graph, len(nodes)
        firsts.append(first)
        for node in graph:
            nodes.append(attrs.evolve(node, id=first + node.id, inputs=tuple(first + i for i in node.inputs)))
        outputs += [first + o for o in graph.outputs]
        layouts |= {first + n: layout for n, layout in space.problem.layouts.items()}
        strides |= {first + n: along for n, along in space.strides.items()}
    inputs = tuple(n.id for n in nodes if n.op == "input")
    scalars = tuple(n.id for n in nodes if n.op == "scalar_input")
    whole = Graph(spaces[0].problem.graph.name, tuple(nodes), inputs, scalars, tuple(outputs))
    problem = attrs.evolve(spaces[0].problem, graph=whole, layouts=layouts)
    return attrs.evolve(spaces[0], strides=strides, counts={}, problem=problem), firsts
