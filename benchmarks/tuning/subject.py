# SPDX-License-Identifier: Apache-2.0
"""An operation as one scheduling problem whose plan is chosen by hand: on a GPU, or in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import attrs
import torch
from torch import Tensor

import fusedsl
from benchmarks.harness import Expected, expect
from benchmarks.operations import Operation, Shape
from fusedsl.autograd import Derivative
from fusedsl.executor import bind_program
from fusedsl.gradients import ForwardInput, ForwardOutput
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph
from fusedsl.pipeline import Program, plan_graph
from fusedsl.programs import layout_of, properties_of
from fusedsl.schedulers.base import KernelPlan, Layout, Problem


class NotOneSegment(Exception):
    """The wanted scheduler does not take the operation as a whole."""


@attrs.frozen
class Subject:
    """What is tuned.

    Attributes:
        graph: of the operation, or of its gradients.
        tensors: the graph's inputs.
        program: one segment, with the parameters that the heuristics choose.
        places: per value of the operation, its place among the graph's outputs.
        expected: the operation's values.
        traffic_bytes: minimal traffic.
    """

    graph: Graph
    tensors: tuple[Tensor, ...]
    program: Program
    places: tuple[int, ...]
    expected: list[Expected]
    traffic_bytes: int

    @property
    def problem(self) -> Problem:
        """What the scheduler is asked."""
        return self.program.segments[0].problem

    @property
    def base(self) -> Any:
        """The parameters that the heuristics choose."""
        return self.program.segments[0].params

    def call(self, plan: KernelPlan) -> Callable[[], Sequence[Tensor]]:
        """A call of the graph with this plan of its one segment; it gives the graph's outputs."""
        segment = self.program.segments[0]
        segment = attrs.evolve(segment, plan=plan.renumbered(segment.origin))
        program = attrs.evolve(self.program, segments=(segment,))
        run = bind_program(program, self.tensors, self.tensors[0].device)
        return lambda: run(self.tensors, ())

    def values(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The operation's values among the graph's outputs."""
        return [outputs[place] for place in self.places]


def make_subject(operation: Operation, scheduler: ModuleType, shape: Shape, dtype: torch.dtype, device: str) -> Subject:
    """The operation at a shape.

    Raises:
        NotOneSegment: with the reason that the scheduler gives.
    """
    arguments = operation.make_arguments(shape, dtype, device)
    places: tuple[int, ...]
    if operation.forward is None:
        graph, tensors = fusedsl.fuse(operation.function).graph(*arguments), arguments
        places = tuple(range(len(graph.outputs)))
    else:
        graph, tensors, places = _gradients(operation.forward, operation.wanted, arguments)
    inputs = dict(zip(graph.inputs, map(layout_of, tensors), strict=True))
    program = _one_segment(plan_graph(graph, inputs, properties_of(tensors[0].device), "default"), inputs, scheduler)
    traffic = operation.traffic_bytes(shape, dtype)
    return Subject(graph, tensors, program, places, expect(operation, arguments), traffic)


def _one_segment(program: Program, inputs: Mapping[int, Layout], scheduler: ModuleType) -> Program:
    """The program if it is one segment of this scheduler."""
    graph, segment = program.graph, program.segments[0]
    if len(program.segments) == 1 and segment.scheduler == scheduler.NAME:
        return program
    names = ", ".join(one.scheduler for one in program.segments)
    allocations = {node: program.allocations[node] for node in graph.outputs if node in program.allocations}
    problem = Problem(graph, {**inputs, **allocations}, program.device)
    refusal = scheduler.can_schedule_compile_time(graph) or scheduler.can_schedule_run_time(problem)
    raise NotOneSegment(f"planned as {names}: {'cut up' if refusal is None else refusal.reason}")


def _gradients(
    forward: Callable[..., Tensor], wanted: tuple[int, ...], arguments: tuple[Tensor, ...]
) -> tuple[Graph, tuple[Tensor, ...], tuple[int, ...]]:
    """The backward graph, its inputs, and the place of every wanted gradient among its outputs."""
    given, incoming = arguments[:-1], arguments[-1]
    derivative = Derivative(fusedsl.fuse(forward).graph(*given), "default", wanted)
    made, graph = derivative.made, derivative.first.recorder.graph
    outputs = evaluate(made.forward, given, (), "kernel")
    tensors = []
    for source in made.sources:
        match source:
            case ForwardInput(index, shape_only):
                one = given[index]
                tensors.append(
                    torch.zeros((), dtype=one.dtype, device=one.device).expand_as(one) if shape_only else one
                )
            case ForwardOutput(index):
                tensors.append(outputs[index])
            case _:
                tensors.append(incoming)
    computed = list(dict.fromkeys(made.backward.outputs))
    order = [made.backward.outputs[index] for index in made.gradients if index is not None]
    assert len(order) == len(wanted), "there is every gradient"
    assert len(computed) == len(graph.outputs), "each is computed"
    return graph, tuple(tensors), tuple(computed.index(node) for node in order)
