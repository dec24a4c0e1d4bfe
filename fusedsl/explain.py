# SPDX-License-Identifier: Apache-2.0
"""Looking inside: the graph of a call, its segments, which scheduler took each and why, and the kernel text."""

from __future__ import annotations

from typing import Any

import attrs

from fusedsl.arguments import check_arguments
from fusedsl.dispatch import Dispatcher, device_of, properties_of
from fusedsl.graph.graph import Graph
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.device import DeviceProperties, resolve
from fusedsl.numba_cuda.kernel import CompiledKernel, KernelSource
from fusedsl.numba_cuda.launch import describe
from fusedsl.pipeline import Program, Segment


def _indent(text: str, by: str = "  ") -> str:
    return "\n".join(by + line if line else line for line in text.splitlines())


@attrs.frozen
class Explanation:
    """What a call becomes. ``str`` gives it to read; the fields are for scripts.

    Attributes:
        name: the function.
        graph: the function as a graph.
        device: the GPU it is planned for.
        segments: in the order they run; each has ``scheduler``, ``params``, ``reductions``, ``persistent_buffers``,
            ``rejections`` (scheduler name -> reason), ``source``.
    """

    name: str
    graph: Graph
    device: DeviceProperties
    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        count = len(self.segments)
        plural = "" if count == 1 else "s"
        parts = [f"{self.name} on {self.device.name} ({self.device.arch}): {count} segment{plural}"]
        parts.append("graph:\n" + _indent(str(self.graph)))
        parts += [_segment_text(number, segment) for number, segment in enumerate(self.segments, 1)]
        return "\n\n".join(parts) + "\n"


def _segment_text(number: int, segment: Segment) -> str:
    lines = [f"segment {number}: {segment.scheduler}"]
    if segment.params is not None:
        lines.append(f"  params: {segment.params}")
    if segment.reductions:
        lines.append(f"  reductions: {', '.join(segment.reductions)}")
    if segment.persistent_buffers:
        lines.append(f"  persistent buffers: {', '.join(segment.persistent_buffers)}")
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


def plan_call(dispatcher: Dispatcher, values: tuple[Any, ...], arch: str | None) -> Program:
    """The program of a call, without running or remembering it. CPU, CUDA and meta tensors will do.

    Args:
        dispatcher: of the fused function.
        values: the bound arguments.
        arch: GPU or architecture to plan for; None: the tensors' own GPU, or ``config.interpret_arch``.
    """
    values = check_arguments(dispatcher.name, dispatcher.names, values, allow_meta=True)
    arguments = dict(zip(dispatcher.names, values, strict=True))
    entry = dispatcher.entry(values, arguments)
    tensors, _ = dispatcher.fetch(entry, arguments, allow_meta=True)
    device = resolve(arch) if arch is not None else properties_of(device_of(tensors))
    return dispatcher.program(entry.trace, tensors, device)


def explain_call(dispatcher: Dispatcher, values: tuple[Any, ...], arch: str | None) -> Explanation:
    """See :meth:`fusedsl.api.FusedFunction.explain`."""
    program = plan_call(dispatcher, values, arch)
    return Explanation(dispatcher.name, program.graph, program.device, program.segments)


def kernels_of(program: Program) -> tuple[KernelSource, ...]:
    """The kernels of a program in order, each once."""
    found: dict[KernelSource, None] = {}
    for segment in program.segments:
        for launch in segment.plan.launches if segment.plan is not None else ():
            found[launch.source] = None
    return tuple(found)


def compile_call(dispatcher: Dispatcher, values: tuple[Any, ...], arch: str | None) -> tuple[CompiledKernel, ...]:
    """See :meth:`fusedsl.api.FusedFunction.compile`."""
    program = plan_call(dispatcher, values, arch)
    return tuple(compile_kernel(source, program.device.arch) for source in kernels_of(program))
