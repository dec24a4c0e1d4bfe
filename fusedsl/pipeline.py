# SPDX-License-Identifier: Apache-2.0
"""From a trace and the layouts of a call to a program: segments, the scheduler of each, plans, allocations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import attrs
import torch

from fusedsl.analysis.persistent import find_persistent_buffers
from fusedsl.analysis.reductions import find_reductions
from fusedsl.analysis.segment import Subgraph, compute_nodes, extract, find_segments, is_view
from fusedsl.frontend.records import Trace
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import Symbol, TensorType
from fusedsl.numba_cuda.device import DeviceProperties
from fusedsl.options import Options
from fusedsl.schedulers import SCHEDULERS
from fusedsl.schedulers.base import (
    KernelPlan,
    Layout,
    Problem,
    Refusal,
    ScalarArgument,
    TensorArgument,
    extent_size,
)


@attrs.frozen
class Segment:
    """A part of the function that is run as a whole.

    Attributes:
        scheduler: the scheduler's name, or "eager" for ops run by PyTorch.
        graph: the segment as a graph.
        origin: per node of ``graph``, the node of the whole graph.
        params: the scheduler's parameters (None for eager).
        plan: kernels, with arguments that name nodes of the whole graph (None for eager).
        reductions: names of the reductions.
        persistent_buffers: names of the values kept across a reduction.
        rejections: scheduler name -> why it did not take the segment.
    """

    scheduler: str
    graph: Graph
    origin: tuple[int, ...]
    params: Any
    plan: KernelPlan | None
    reductions: tuple[str, ...]
    persistent_buffers: tuple[str, ...]
    rejections: dict[str, str] = attrs.field(hash=False)

    @property
    def source(self) -> str:
        """The text of the segment's kernels."""
        launches = self.plan.launches if self.plan is not None else ()
        return "\n\n".join(launch.source.text for launch in launches)


@attrs.frozen
class Program:
    """What a call runs.

    Attributes:
        graph: the whole function.
        segments: in order.
        allocations: node -> layout of every tensor that a segment gives.
        views: outputs that are views of inputs, computed by eager PyTorch.
        device: what it was planned for.
    """

    graph: Graph
    segments: tuple[Segment, ...]
    allocations: Mapping[int, Layout] = attrs.field(hash=False)
    views: tuple[int, ...]
    device: DeviceProperties


def build_program(trace: Trace, layouts: tuple[Layout, ...], device: DeviceProperties, options: Options) -> Program:
    """Segment a trace, choose a scheduler for every segment and plan its kernels.

    Args:
        trace: the function.
        layouts: of the tensor inputs, in order.
        device: the device to plan for.
        options: of ``fuse``.
    """
    return plan_graph(trace.graph, dict(zip(trace.graph.inputs, layouts, strict=True)), device, options.numerics)


def plan_graph(graph: Graph, inputs: Mapping[int, Layout], device: DeviceProperties, numerics: str) -> Program:
    """The program of a graph whose inputs have the given layouts."""
    layouts = {**inputs, **_result_layouts(graph, inputs)}

    def problem(part: Subgraph) -> Problem:
        wanted = (*part.graph.inputs, *part.graph.outputs)
        found = {i: layouts[part.origin[i]] for i in wanted}
        return Problem(part.graph, found, device, numerics)

    def accept(part: Subgraph) -> bool:
        return _choose(problem(part))[0] is not None

    segments = []
    for members in find_segments(graph, accept):
        segments.append(_segment(graph, extract(graph, members), problem))
    written = {s.origin[o] for s in segments for o in s.graph.outputs if s.graph[o].is_tensor}
    views = tuple(o for o in dict.fromkeys(graph.outputs) if is_view(graph, o))
    return Program(graph, tuple(segments), {n: layouts[n] for n in sorted(written)}, views, device)


def _segment(graph: Graph, part: Subgraph, problem: Any) -> Segment:
    scheduler: ModuleType | None = None
    rejections: dict[str, str] = {}
    if not any(OPS[node.op].kind is Kind.OPAQUE for node in part.graph):
        scheduler, rejections = _choose(problem(part))
    names = tuple(part.graph[i].name for i in find_reductions(part.graph).nodes)
    if scheduler is None:
        return Segment("eager", part.graph, part.origin, None, None, names, (), rejections)
    asked = problem(part)
    params = scheduler.compute_heuristics(asked)
    plan = _renumber(scheduler.schedule(asked, params), part.origin)
    buffers = tuple(part.graph[b.node].name for b in find_persistent_buffers(part.graph))
    return Segment(scheduler.NAME, part.graph, part.origin, params, plan, names, buffers, rejections)


@functools.lru_cache(maxsize=4096)
def _compile_time_refusal(scheduler: ModuleType, graph: Graph) -> Refusal | None:
    refusal: Refusal | None = scheduler.can_schedule_compile_time(graph)
    return refusal


def _choose(problem: Problem) -> tuple[ModuleType | None, dict[str, str]]:
    """The first scheduler that takes a problem, and why the ones before it did not."""
    rejections: dict[str, str] = {}
    taken = None
    for scheduler in SCHEDULERS:
        refusal = _compile_time_refusal(scheduler, problem.graph)
        if refusal is None:
            refusal = scheduler.can_schedule_run_time(problem)
        if refusal is not None:
            rejections[scheduler.NAME] = refusal.reason
        elif taken is None:
            taken = scheduler
    return taken, rejections


def _renumber(plan: KernelPlan, origin: tuple[int, ...]) -> KernelPlan:
    """Arguments that name nodes of the whole graph."""

    def moved(argument: Any) -> Any:
        if isinstance(argument, (TensorArgument, ScalarArgument)):
            return attrs.evolve(argument, node=origin[argument.node])
        return argument

    launches = tuple(attrs.evolve(l, arguments=tuple(moved(a) for a in l.arguments)) for l in plan.launches)
    return attrs.evolve(plan, launches=launches)


def _sizes(graph: Graph, inputs: Mapping[int, Layout]) -> dict[Symbol, int]:
    known: dict[Symbol, int] = {}
    for node_id, layout in inputs.items():
        for extent, size in zip(graph[node_id].tensor.shape, layout.shape, strict=True):
            if isinstance(extent, Symbol):
                known[extent] = size
    return known


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of a shape, as torch gives them (a size of 0 counts as 1)."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def _result_layouts(graph: Graph, inputs: Mapping[int, Layout]) -> dict[int, Layout]:
    """Layouts of every value that may be stored: what eager PyTorch would give."""
    sizes = _sizes(graph, inputs)
    wanted = [n for n in compute_nodes(graph) if graph[n].is_tensor]
    opaque = any(OPS[graph[n].op].kind is Kind.OPAQUE for n in wanted)
    if not opaque and all(layout.strides == packed_strides(layout.shape) for layout in inputs.values()):
        if not any(node.op == "reindex" and _permutes(node.attribute("dims")) for node in graph):
            return {n: _packed(graph[n].tensor, sizes) for n in wanted}
    tensors = [
        torch.empty_strided(layouts.shape, layouts.strides, dtype=graph[n].tensor.dtype, device="meta")
        for n, layouts in ((n, inputs[n]) for n in graph.inputs)
    ]
    scalars = [1.0 if graph[s].type.kind == "float" else 1 for s in graph.scalars]  # type: ignore[union-attr]
    results = evaluate(attrs.evolve(graph, outputs=tuple(wanted)), tensors, scalars)
    found = {}
    for n, result in zip(wanted, results, strict=True):
        strides = tuple(result.stride())
        if any(stride == 0 and size > 1 for stride, size in zip(strides, result.shape, strict=True)):
            strides = packed_strides(tuple(result.shape))
        found[n] = Layout(tuple(result.shape), strides)
    return found


def _permutes(dims: tuple[int | None, ...]) -> bool:
    kept = [d for d in dims if d is not None]
    return kept != sorted(kept)


def _packed(type_: TensorType, sizes: Mapping[Symbol, int]) -> Layout:
    shape = tuple(extent_size(e, sizes) for e in type_.shape)
    return Layout(shape, packed_strides(shape))
