# SPDX-License-Identifier: Apache-2.0
"""From a trace and the layouts of a call to a program: segments, the scheduler of each, plans, allocations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import attrs

from fusedsl.analysis.facts import Facts, analyse
from fusedsl.analysis.memory_order import symbol_sizes
from fusedsl.analysis.merge import Segmentation, find_segments
from fusedsl.analysis.segment import Accept, Subgraph, extract, is_view
from fusedsl.analysis.summary import Buffer, Reduction, buffers_of, reductions_of
from fusedsl.frontend.records import Update
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.remember import remember
from fusedsl.layouts import distinct_bytes, may_overlap, stored_layouts
from fusedsl.numba_cuda.device import DeviceProperties
from fusedsl.schedulers import SCHEDULERS
from fusedsl.schedulers.base import (
    KernelPlan,
    Layout,
    Problem,
    Refusal,
)
from fusedsl.updates import Write, plan_writes


@attrs.frozen
class Segment:
    """A part of the function that is run as a whole.

    Attributes:
        scheduler: the scheduler's name, or "eager" for ops run by PyTorch.
        graph: the segment as a graph.
        origin: per node of ``graph``, the node of the whole graph.
        params: the scheduler's parameters (None for eager).
        plan: kernels, with arguments that name nodes of the whole graph (None for eager).
        rejections: scheduler name -> why it did not take the segment.
        problem: what it was planned for.
    """

    scheduler: str
    graph: Graph
    origin: tuple[int, ...]
    params: Any
    plan: KernelPlan | None
    rejections: dict[str, str] = attrs.field(hash=False)
    problem: Problem = attrs.field(repr=False)

    @property
    def source(self) -> str:
        """The text of the segment's kernels."""
        launches = self.plan.launches if self.plan is not None else ()
        return "\n\n".join(launch.source.text for launch in launches)

    @functools.cached_property
    def facts(self) -> Facts:
        """The analysis of the segment; made when first asked for."""
        return analyse(self.graph, self.problem.layouts, self.problem.device, self.problem.extents)

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        """The reductions: name, type, roles."""
        return reductions_of(self.facts)

    @property
    def persistent_buffers(self) -> tuple[Buffer, ...]:
        """The values kept across a reduction: bytes, where each is resolved, whether it is projected and why."""
        return buffers_of(self.facts)


@attrs.frozen
class Program:
    """What a call runs.

    Attributes:
        graph: the whole function.
        segments: in order.
        allocations: node -> layout of every tensor that a segment gives.
        views: outputs that are views of inputs, computed by eager PyTorch.
        device: what it was planned for.
        writes: the inputs that are changed, and how.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    allocations: Mapping[int, Layout] = attrs.field(hash=False)
    views: tuple[int, ...]
    device: DeviceProperties
    writes: tuple[Write, ...] = ()


def plan_graph(
    graph: Graph,
    inputs: Mapping[int, Layout],
    device: DeviceProperties,
    numerics: str,
    updates: tuple[Update, ...] = (),
) -> Program:
    """The program of a graph whose inputs have the given layouts.

    Args:
        graph: what is run.
        inputs: layouts of its tensor inputs.
        device: the GPU to plan for.
        numerics: see :class:`fusedsl.options.Options`.
        updates: outputs that are new values of inputs.
    """
    layouts = {**inputs, **stored_layouts(graph, inputs), **_updated_layouts(graph, inputs, updates)}
    sizes = symbol_sizes(graph, layouts)

    def problem(part: Subgraph) -> Problem:
        wanted = (*part.graph.inputs, *part.graph.outputs)
        found = {i: layouts[part.origin[i]] for i in wanted if part.graph[i].is_tensor}
        return Problem(part.graph, found, device, numerics, sizes)

    @functools.cache
    def choose(part: Subgraph) -> Choice:
        return _choose(problem(part))

    def accept(part: Subgraph) -> bool:
        return choose(part)[0] is not None

    key = (graph, device, numerics, updates, tuple(_order(inputs[i]) for i in graph.inputs))
    parts = [extract(graph, members) for members in _segmentation(key, graph, layouts, accept)]
    segments = tuple(_segment(part, problem(part), choose) for part in parts)
    written = {s.origin[o] for s in segments for o in s.graph.outputs if s.graph[o].is_tensor}
    views = tuple(o for o in dict.fromkeys(graph.outputs) if is_view(graph, o))
    writes = plan_writes(graph, updates, segments)
    return Program(graph, segments, {n: layouts[n] for n in sorted(written)}, views, device, writes)


def _updated_layouts(graph: Graph, inputs: Mapping[int, Layout], updates: tuple[Update, ...]) -> Mapping[int, Layout]:
    """New values of inputs lie as the inputs do, so that a kernel can write them there."""
    found = {}
    for update in updates:
        node, layout = graph.outputs[update.output], inputs[graph.inputs[update.input]]
        if graph.outputs.count(node) == 1 and not may_overlap(layout):
            found[node] = layout
    return found


#: The scheduler that takes a segment, if any, and why the others do not.
Choice = tuple[ModuleType | None, dict[str, str]]


def _segment(part: Subgraph, problem: Problem, choose: Callable[[Subgraph], Choice]) -> Segment:
    scheduler: ModuleType | None = None
    rejections: dict[str, str] = {}
    if not any(OPS[node.op].kind is Kind.OPAQUE for node in part.graph):
        scheduler, rejections = choose(part)
    if scheduler is None:
        return Segment("eager", part.graph, part.origin, None, None, rejections, problem)
    params = scheduler.compute_heuristics(problem)
    plan = scheduler.schedule(problem, params).renumbered(part.origin)
    return Segment(scheduler.NAME, part.graph, part.origin, params, plan, rejections, problem)


# segments ----------------------------------------------------------------------------------------------------------

#: (graph, device, numerics, order of every input in memory) -> what was found for such a call.
_SEGMENTATIONS: dict[tuple[object, ...], Segmentation] = {}
_MAX_SEGMENTATIONS = 256


def _segmentation(
    key: tuple[object, ...], graph: Graph, layouts: Mapping[int, Layout], accept: Accept
) -> tuple[tuple[int, ...], ...]:
    """The segments of a graph; those found for other sizes hold as long as the schedulers answer the same."""

    def bytes_of(node_id: int) -> int:
        return distinct_bytes(graph[node_id].tensor.dtype, layouts[node_id])

    known = _SEGMENTATIONS.get(key)
    if known is not None and known.holds(graph, accept):
        return known.segments
    found = find_segments(graph, accept, bytes_of)
    if len(_SEGMENTATIONS) >= _MAX_SEGMENTATIONS:
        _SEGMENTATIONS.clear()
    _SEGMENTATIONS[key] = found
    return found.segments


def _order(layout: Layout) -> tuple[tuple[bool, int], ...]:
    """The dims of a tensor as they lie in memory, and which of them do not vary."""
    return tuple((layout.strides[d] == 0, d) for d in sorted(range(len(layout.shape)), key=lambda d: layout.strides[d]))


@remember(maxsize=4096)
def _compile_time_refusal(graph: Graph, scheduler: ModuleType) -> Refusal | None:
    refusal: Refusal | None = scheduler.can_schedule_compile_time(graph)
    return refusal


def _choose(problem: Problem) -> Choice:
    """The first scheduler that takes a problem, and why the others did not."""
    rejections: dict[str, str] = {}
    taken = None
    for scheduler in SCHEDULERS:
        refusal = _compile_time_refusal(problem.graph, scheduler)
        if refusal is None:
            refusal = scheduler.can_schedule_run_time(problem)
        if refusal is not None:
            rejections[scheduler.NAME] = refusal.reason
        elif taken is None:
            taken = scheduler
    return taken, rejections
