# SPDX-License-Identifier: Apache-2.0
"""Looking inside: the graph of a call, its segments, which scheduler took each and why, and the kernel text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from torch import Tensor

from fusedsl.arguments import check_arguments
from fusedsl.autograd import Derivative, Recorder
from fusedsl.dispatch import Dispatcher
from fusedsl.frontend.records import Update
from fusedsl.gradients import Choice, ForwardInput
from fusedsl.graph.graph import Graph
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.device import DeviceProperties, resolve
from fusedsl.numba_cuda.kernel import CompiledKernel, KernelSource
from fusedsl.numba_cuda.launch import describe
from fusedsl.pipeline import Program, Segment
from fusedsl.programs import device_of, layout_of, properties_of
from fusedsl.schedulers.base import Layout
from fusedsl.schedulers.row_params import RowParams
from fusedsl.updates import Write


def _indent(text: str, by: str = "  ") -> str:
    return "\n".join(by + line if line else line for line in text.splitlines())


@attrs.frozen
class Explanation:
    """What a call becomes. ``str`` gives it to read; the fields are for scripts.

    Attributes:
        name: the function.
        graph: the function as a graph; with gradients, it returns what they need too.
        device: the GPU it is planned for.
        segments: in the order they run; each has ``scheduler``, ``params``, ``reductions``, ``persistent_buffers``,
            ``rejections`` (scheduler name -> reason), ``source``.
        choices: what is kept, saved and computed again for the gradients, and why.
        backward: the same of the gradients, if they were asked for and there are any.
        writes: the inputs that the function changes in place, and how.
    """

    name: str
    graph: Graph
    device: DeviceProperties
    segments: tuple[Segment, ...]
    choices: tuple[Choice, ...] = ()
    backward: Explanation | None = None
    writes: tuple[Write, ...] = ()

    def __str__(self) -> str:
        count = len(self.segments)
        plural = "" if count == 1 else "s"
        parts = [f"{self.name} on {self.device.name} ({self.device.arch}): {count} segment{plural}"]
        parts.append("graph:\n" + _indent(str(self.graph)))
        parts += [_segment_text(number, segment) for number, segment in enumerate(self.segments, 1)]
        if self.writes:
            parts.append("\n".join(["changed in place:", *(f"  {_write_text(self.graph, w)}" for w in self.writes)]))
        if self.choices:
            parts.append("\n".join(["for the gradients:", *(f"  {choice}" for choice in self.choices)]))
        if self.backward is not None:
            parts.append(str(self.backward).rstrip())
        return "\n\n".join(parts) + "\n"


def _segment_text(number: int, segment: Segment) -> str:
    lines = [f"segment {number}: {segment.scheduler}"]
    if segment.params is not None:
        lines.append(f"  params: {segment.params}")
    if segment.facts.roles:
        lines.append(_indent(str(segment.facts)))
    if segment.persistent_buffers and isinstance(segment.params, RowParams):
        lines.append(f"  in the kernel: {_kept_in(segment.params)}")
    if segment.rejections:
        lines.append("  not taken by:")
        lines += [f"    {scheduler}: {reason}" for scheduler, reason in segment.rejections.items()]
    for launch in segment.plan.launches if segment.plan is not None else ():
        lines.append(f"  kernel {launch.source.name}: {describe(launch.geometry)}")
        lines.append(_indent(launch.source.text.rstrip(), "    "))
    if segment.plan is None:
        lines.append("  run by eager PyTorch:")
        lines.append(_indent(str(segment.graph), "    "))
    return "\n".join(lines)


def _write_text(graph: Graph, write: Write) -> str:
    """How an input gets its new value."""
    how = "the kernel writes it" if write.direct else f"copied at the end: {write.obstacle}"
    return f"{graph[graph.inputs[write.input]].name}: {how}"


def _kept_in(params: RowParams) -> str:
    """Where a row kernel keeps what it needs again."""
    blocks = "" if params.cluster == 1 else f" of {params.cluster} blocks"
    match params.storage:
        case "register":
            return f"the row stays in registers{blocks} as {'loaded' if params.again else 'computed'}"
        case "shared":
            return f"arguments stay in shared memory{blocks}, all else is computed again"
        case _:
            return "nothing is kept: every pass reads the arguments again"


@attrs.frozen
class Plan:
    """The programs of a call; with gradients ``backward`` and ``derivative`` are those of the gradients."""

    forward: Program
    backward: Program | None = None
    derivative: Derivative | None = None

    @property
    def kernels(self) -> tuple[KernelSource, ...]:
        """The kernels in order, each once."""
        found: dict[KernelSource, None] = {}
        for program in (self.forward, self.backward):
            for segment in program.segments if program is not None else ():
                for launch in segment.plan.launches if segment.plan is not None else ():
                    found[launch.source] = None
        return tuple(found)


def plan_call(dispatcher: Dispatcher, values: tuple[Any, ...], arch: str | None, backward: bool = False) -> Plan:
    """The programs of a call, without running or remembering it. CPU, CUDA and meta tensors will do.

    Args:
        dispatcher: of the fused function.
        values: the bound arguments.
        arch: GPU or architecture to plan for; None: the tensors' own GPU, or ``config.interpret_arch``.
        backward: plan the gradients of the tensors that require grad too; if none does, of all floating tensors.
    """
    recorder, tensors = _fetch(dispatcher, values)
    device = resolve(arch) if arch is not None else properties_of(device_of(tensors))
    layouts = [layout_of(tensor) for tensor in tensors]
    if not backward:
        return Plan(recorder.programs.plan(layouts, device))
    derivative = recorder.derivative(_wanted(tensors, recorder.updates))
    forward = derivative.programs.plan(layouts, device)
    recorder = derivative.first.recorder
    return Plan(forward, recorder.programs.plan(_backward_layouts(derivative, forward, layouts), device), derivative)


def backward_graph(dispatcher: Dispatcher, values: tuple[Any, ...]) -> Graph:
    """See :meth:`fusedsl.api.FusedFunction.backward_graph`."""
    recorder, tensors = _fetch(dispatcher, values)
    return recorder.derivative(_wanted(tensors, recorder.updates)).made.backward


def _fetch(dispatcher: Dispatcher, values: tuple[Any, ...]) -> tuple[Recorder, tuple[Tensor, ...]]:
    values = check_arguments(dispatcher.name, dispatcher.names, values, allow_meta=True)
    arguments = dict(zip(dispatcher.names, values, strict=True))
    entry = dispatcher.entry(values, arguments)
    tensors, _ = dispatcher.fetch(entry, arguments, allow_meta=True)
    return entry.recorder, tensors


def _wanted(tensors: tuple[Tensor, ...], updates: Sequence[Update]) -> tuple[int, ...]:
    """The tensors that gradients are shown of: those that require grad; if none does, all floating ones.

    Those that the function changes in place are left out then.
    """
    floating = [index for index, tensor in enumerate(tensors) if tensor.is_floating_point()]
    changed = [update.input for update in updates]
    required = tuple(index for index in floating if tensors[index].requires_grad)
    return required or tuple(index for index in floating if index not in changed)


def _backward_layouts(derivative: Derivative, forward: Program, inputs: Sequence[Layout]) -> list[Layout]:
    """Layouts of the backward graph's inputs, where gradients come in laid out as the outputs are."""
    graph = forward.graph
    known = {**forward.allocations, **dict(zip(graph.inputs, inputs, strict=True))}
    found = []
    for source in derivative.made.sources:
        node_id = graph.inputs[source.index] if isinstance(source, ForwardInput) else graph.outputs[source.index]
        layout = known[node_id]
        if isinstance(source, ForwardInput) and source.shape_only:
            layout = Layout(layout.shape, (0,) * len(layout.shape), 16)
        found.append(layout)
    return found


def explain_call(dispatcher: Dispatcher, values: tuple[Any, ...], arch: str | None, backward: bool) -> Explanation:
    """See :meth:`fusedsl.api.FusedFunction.explain`."""
    plan = plan_call(dispatcher, values, arch, backward)
    pulled = None
    if plan.backward is not None:
        pulled = Explanation(
            f"{dispatcher.name}_backward", plan.backward.graph, plan.backward.device, plan.backward.segments
        )
    choices = () if plan.derivative is None else plan.derivative.made.choices
    forward = plan.forward
    return Explanation(
        dispatcher.name, forward.graph, forward.device, forward.segments, choices, pulled, forward.writes
    )


def compile_call(
    dispatcher: Dispatcher, values: tuple[Any, ...], arch: str | None, backward: bool
) -> tuple[CompiledKernel, ...]:
    """See :meth:`fusedsl.api.FusedFunction.compile`."""
    plan = plan_call(dispatcher, values, arch, backward)
    return tuple(compile_kernel(source, plan.forward.device.arch) for source in plan.kernels)
