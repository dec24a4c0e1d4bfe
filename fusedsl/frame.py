# SPDX-License-Identifier: Apache-2.0
"""The numbered slots of a call: where its tensors, temporary buffers and numbers are kept."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from fusedsl.analysis.segment import Subgraph
from fusedsl.host_scalars import compile_host, symbol_sizes
from fusedsl.pipeline import Program, Segment
from fusedsl.schedulers.base import Argument, ScalarArgument, TensorArgument, WorkspaceArgument


def picker(indices: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that picks these items of a sequence, as a tuple."""
    if len(indices) == 1:
        index = indices[0]
        return lambda values: (values[index],)
    if not indices:
        return lambda values: ()
    return operator.itemgetter(*indices)


@attrs.frozen
class Buffer:
    """Memory to allocate at every call; ``eager``: none, the slot is filled by an eager torch call."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    zeroed: bool = False
    eager: bool = False
    name: str = ""


@attrs.frozen
class Frame:
    """Where everything of a call is kept: inputs, then buffers (values, then workspaces), then kernel scalars.

    Attributes:
        program: the plan.
        tensors: node id -> slot.
        buffers: what the slots after the inputs hold.
        workspaces: (number of the segment, index of the workspace) -> slot.
        scalars: (node id, kernel parameter type, or None for the number itself) -> slot.
        host: scalar arguments -> the numbers of the scalar slots.
    """

    program: Program
    tensors: dict[int, int]
    buffers: tuple[Buffer, ...]
    workspaces: dict[tuple[int, int], int]
    scalars: dict[tuple[int, str | None], int]
    host: Callable[[tuple[Any, ...]], Sequence[Any]]

    @staticmethod
    def of(program: Program, shapes: Sequence[Sequence[int]]) -> Frame:
        """Number the slots of a program whose inputs have these sizes."""
        graph = program.graph
        tensors = {node_id: slot for slot, node_id in enumerate(graph.inputs)}
        buffers: list[Buffer] = []

        def add(buffer: Buffer) -> int:
            buffers.append(buffer)
            return len(graph.inputs) + len(buffers) - 1

        tensors.update({write.node: write.input for write in program.writes if write.direct})
        by_torch = {node_id for segment in program.segments if segment.plan is None for node_id in outputs_of(segment)}
        for node_id in (*by_torch, *program.views):
            tensors[node_id] = add(Buffer((), (), graph[node_id].tensor.dtype, eager=True))
        for node_id, layout in program.allocations.items():
            if node_id not in tensors:
                node = graph[node_id]
                tensors[node_id] = add(Buffer(layout.shape, layout.strides, node.tensor.dtype, name=node.name))
        workspaces: dict[tuple[int, int], int] = {}
        for number, segment in enumerate(program.segments):
            for index, wanted in enumerate(segment.plan.workspaces if segment.plan is not None else ()):
                buffer = Buffer((wanted.numel,), (1,), wanted.dtype, wanted.zeroed, name=f"workspace {index}")
                workspaces[number, index] = add(buffer)
        scalars = _wanted_scalars(program)
        sizes = symbol_sizes(
            [graph[node_id].tensor for node_id in (*graph.inputs, *program.allocations)],
            [*shapes, *(layout.shape for layout in program.allocations.values())],
        )
        first = len(graph.inputs) + len(buffers)
        slots = {key: first + rank for rank, key in enumerate(scalars)}
        return Frame(program, tensors, tuple(buffers), workspaces, slots, compile_host(graph, scalars, sizes))

    @property
    def types(self) -> tuple[str, ...]:
        """Per slot what kernels take it as, in the words of a signature (an unread number is an address of nothing)."""
        tensors = len(self.program.graph.inputs) + len(self.buffers)
        return ("*uint8",) * tensors + tuple(kind or "float64" for _, kind in self.scalars)

    def slot(self, number: int, argument: Argument) -> int:
        """The slot of a kernel argument of segment ``number`` (not of an IntArgument)."""
        match argument:
            case TensorArgument(node=node):
                return self.tensors[node]
            case WorkspaceArgument(index=index):
                return self.workspaces[number, index]
            case ScalarArgument(node=node, kind=kind):
                return self.scalars[node, kind]
            case _:
                raise AssertionError(f"{argument} has no slot")

    def results(self) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """The graph's outputs from the tensors in the slots, each with storage of its own.

        Where an output is the new value of an input, that is the input itself.
        """
        slots = [self.tensors[node_id] for node_id in self.program.graph.outputs]
        inputs = len(self.program.graph.inputs)
        changed = {write.output: write.input for write in self.program.writes}
        slots = [changed.get(rank, slot) for rank, slot in enumerate(slots)]
        apart = [*changed.values(), *(self.tensors[node_id] for node_id in self.program.views)]
        shared = [
            rank for rank, slot in enumerate(slots) if slot not in apart and (slot < inputs or slot in slots[:rank])
        ]
        pick = picker(slots)
        if not shared:
            return pick

        def with_copies(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            found = list(pick(tensors))
            for rank in shared:
                found[rank] = found[rank].clone()
            return found

        return with_copies

    def write_inputs(self) -> Callable[[Sequence[Any]], None] | None:
        """What is left to do for the inputs that are changed, once the kernels have run; None if there are none.

        Values are copied that no kernel wrote to its place. Autograd is told of what it does not see by itself.
        """
        writes = self.program.writes
        if not writes:
            return None
        copies = [(write.input, self.tensors[write.node]) for write in writes if not write.direct]
        direct = [write.input for write in writes if write.direct]

        def finish(slots: Sequence[Any]) -> None:
            for slot in direct:
                increment_version(slots[slot])
            if copies:
                with torch.no_grad():
                    for slot, value in copies:
                        slots[slot].copy_(slots[value])

        return finish


def outputs_of(segment: Segment | Subgraph) -> list[int]:
    """The nodes of the whole graph that a segment computes."""
    return [segment.origin[node_id] for node_id in segment.graph.outputs]


def _wanted_scalars(program: Program) -> list[tuple[int, str | None]]:
    wanted: dict[tuple[int, str | None], None] = {}
    for segment in program.segments:
        if segment.plan is None:
            wanted.update({(segment.origin[node_id], None): None for node_id in segment.graph.scalars})
            continue
        for launch in segment.plan.launches:
            for argument in launch.arguments:
                if isinstance(argument, ScalarArgument):
                    wanted[argument.node, argument.kind] = None
    return list(wanted)
