# SPDX-License-Identifier: Apache-2.0
"""How the arguments that a function changes in place are written: by the kernel itself, or copied at the end.

A kernel may write straight into an argument's memory if nobody misses the old value:

* No segment that runs later reads the argument, and no eager call does at all (its result may be a view of it).
* Where the segment itself reads the argument, every element is read before the thread that read it writes it. That is
  so if the old value is only used at its own place: pointwise ops and casts lead from it, no ``reindex`` that moves
  elements and no reduction. Then the thread that stores an element is the only one whose load of it matters. (Several
  threads may store one element only if it does not vary along a loop that the kernel's threads stand along.)
* Rows that a kernel loads once, before it stores anything, may be reduced as well.

Memory that arguments share is no matter here: such a call runs the plain function (:mod:`fusedsl.overlap`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from fusedsl.frontend.records import Update
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.layouts import may_overlap
from fusedsl.schedulers.base import KernelPlan, Problem
from fusedsl.schedulers.column_params import passes
from fusedsl.schedulers.row_params import RowParams
from fusedsl.schedulers.space import iteration_space

#: Schedulers whose kernels have been looked at: what they store comes from the thread that loaded what it needs for it.
_KNOWN = ("pointwise", "reduction", "inner_persistent", "outer_persistent")


@attrs.frozen
class Write:
    """How one argument is changed.

    Attributes:
        input: its index among the graph's inputs.
        output: index of the output that is its new value.
        node: that output.
        obstacle: why the value is copied at the end of the program; empty if the kernel writes the argument itself.
    """

    input: int
    output: int
    node: int
    obstacle: str = ""

    @property
    def direct(self) -> bool:
        """Whether the kernel writes the argument itself."""
        return not self.obstacle


class Part(Protocol):
    """What is looked at of a :class:`fusedsl.pipeline.Segment`."""

    @property
    def scheduler(self) -> str: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def origin(self) -> tuple[int, ...]: ...
    @property
    def params(self) -> Any: ...
    @property
    def plan(self) -> KernelPlan | None: ...
    @property
    def problem(self) -> Problem: ...


def plan_writes(graph: Graph, updates: Sequence[Update], segments: Sequence[Part]) -> tuple[Write, ...]:
    """How every changed argument is written.

    Args:
        graph: the whole graph.
        updates: which outputs are new values of which inputs.
        segments: what computes the graph, in order.
    """
    found = []
    for update in updates:
        node = graph.outputs[update.output]
        obstacle = _obstacle(graph, node, graph.inputs[update.input], segments)
        found.append(Write(update.input, update.output, node, obstacle))
    return tuple(found)


def _obstacle(graph: Graph, node: int, source: int, segments: Sequence[Part]) -> str:
    """Why no kernel may write the value ``node`` into the memory of the input ``source``; empty if one may."""
    if graph.outputs.count(node) > 1:
        return "the new value is another result too"
    number = next(n for n, part in enumerate(segments) if node in _given(part))
    part = segments[number]
    if part.plan is None:
        return "eager PyTorch computes the new value"
    if any(other.plan is None and source in _read(other) for other in segments):
        return "eager PyTorch reads the old value"
    if any(source in _read(other) for other in segments[number + 1 :]):
        return "a later segment reads the old value"
    if source not in _read(part):
        return ""
    written, read = part.origin.index(node), part.origin.index(source)
    if may_overlap(part.problem.layouts[read]):
        return "its elements may share memory"
    return _obstacle_inside(part, written, read)


def _obstacle_inside(part: Part, node: int, source: int) -> str:
    """Why the kernels of a segment that reads the old value may not write the new one over it; empty if they may."""
    users = part.graph.users()
    placed = {source}
    elsewhere: list[Node] = []
    for current in part.graph:
        if any(i in placed for i in current.inputs):
            if _keeps_place(part.graph, current):
                placed.add(current.id)
            elif current.op != "size":
                elsewhere.append(current)
    if node not in placed and users[source]:
        return "the old value is read for other elements"
    obstacle = _obstacle_in_order(part, node)
    if obstacle or not elsewhere:
        return obstacle
    if all(OPS[x.op].kind is Kind.REDUCTION for x in elsewhere):
        return "" if _is_loaded_once(part, source) else "a reduction reads the old value"
    return "the old value is read for other elements"


def _obstacle_in_order(part: Part, node: int) -> str:
    """Why a value may be stored before all that need the old one have it, though only its own elements do."""
    if part.scheduler not in _KNOWN:
        return f"{part.scheduler} kernels may read an element more than once"
    if not _has_one_writer(part, node):
        return "several threads write an element"
    if part.scheduler == "outer_persistent" and _is_read_in_passes(part, node):
        return "columns are read again in a later pass"
    return ""


def _keeps_place(graph: Graph, node: Node) -> bool:
    """Whether every element of a value depends on the same element of its operands only."""
    match OPS[node.op].kind:
        case Kind.POINTWISE | Kind.CAST:
            return True
        case Kind.REINDEX:
            source = graph[node.inputs[0]].tensor
            return node.tensor.shape == source.shape and node.attribute("dims") == tuple(range(source.rank))
        case _:
            return False


def _has_one_writer(part: Part, node: int) -> bool:
    """Whether an element of an output is stored once.

    That is so if it varies along every loop, and if it varies along no reduced one: then one thread of a row stores.
    The other blocks of a row would still read it, to no effect, but it is not to be told from a race.
    """
    space = iteration_space(part.problem)
    strides = space.strides[node]
    reduced = {strides[axis] != 0 for axis in space.reduced}
    if reduced == {False} and isinstance(part.params, RowParams) and max(part.params.cluster, part.params.grid) > 1:
        return False
    return all(strides[axis] for axis in space.kept) and len(reduced) <= 1


def _is_read_in_passes(part: Part, node: int) -> bool:
    """Whether a value of the columns is stored by a kernel that passes over them several times."""
    space = iteration_space(part.problem)
    return any(space.strides[node][axis] for axis in space.reduced) and passes(space) > 1


def _is_loaded_once(part: Part, source: int) -> bool:
    """Whether the kernel loads every element of an input once, before it stores anything of the row."""
    if part.scheduler != "inner_persistent" or not isinstance(part.params, RowParams):
        return False
    return part.params.storage in ("register", "shared") and all(iteration_space(part.problem).strides[source])


def _given(part: Part) -> set[int]:
    """The nodes of the whole graph that a segment gives."""
    return {part.origin[i] for i in part.graph.outputs}


def _read(part: Part) -> set[int]:
    """The nodes of the whole graph that a segment reads."""
    return {part.origin[i] for i in part.graph.inputs}
