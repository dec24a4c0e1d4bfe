# SPDX-License-Identifier: Apache-2.0
"""Running a planned program: results and temporary buffers from torch's allocator, kernels in order, results as a tree.

``bind_program`` does all that can be done once; the function it returns is the steady path of a call. CUDA tensors
launch compiled kernels on the current stream; CPU tensors run the same plan in the interpreter. Nothing synchronises.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedsl.config import config
from fusedsl.frame import Buffer, Frame, outputs_of, picker
from fusedsl.frontend.records import OutputInput, OutputStatic, OutputValue
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.prune import prune
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.device import properties
from fusedsl.numba_cuda.interpreter import interpret, poison, settle
from fusedsl.numba_cuda.launch import Launcher, load
from fusedsl.pipeline import Program, Segment
from fusedsl.schedulers.base import (
    IntArgument,
    Launch,
    Layout,
)
from fusedsl.stats import COUNTERS

#: Tensors and scalars of a call in, the graph's outputs out.
Run = Callable[[tuple[Tensor, ...], tuple[Any, ...]], Sequence[Tensor]]

#: Results and inputs as the executor returns them, rebuilt as the function returned them.
Tree = Callable[[Sequence[Tensor], tuple[Tensor, ...]], Any]


def build_tree(outputs: Any) -> Tree:
    """A function that rebuilds a result from ``Trace.outputs``: containers, values, inputs as they are, statics."""
    match outputs:
        case OutputValue(index=index):
            return lambda values, tensors: values[index]
        case OutputInput(index=index):
            return lambda values, tensors: tensors[index]
        case OutputStatic(value=value):
            return lambda values, tensors: value
        case dict():
            branches = {key: build_tree(item) for key, item in outputs.items()}
            return lambda values, tensors: {key: branch(values, tensors) for key, branch in branches.items()}
        case tuple() | list():
            parts = tuple(build_tree(item) for item in outputs)
            kind = type(outputs)
            if hasattr(kind, "_fields"):
                return lambda values, tensors: kind(*[part(values, tensors) for part in parts])
            return lambda values, tensors: kind([part(values, tensors) for part in parts])
        case _:
            raise AssertionError(f"unknown result {outputs!r}")


def bind_program(program: Program, tensors: Sequence[Tensor], device: torch.device) -> Run:
    """Prepare a program to run on tensors laid out as these.

    Args:
        program: the plan.
        tensors: the graph's inputs of one call; only their sizes are looked at.
        device: where to run. CUDA: kernels are compiled, loaded and bound now. CPU: the interpreter.

    Raises:
        FuseError: a kernel cannot be compiled or loaded.
    """
    if config.print_source:
        print_source(program)
    frame = Frame.of(program, [tuple(tensor.shape) for tensor in tensors])
    if device.type != "cuda":
        return _bind_steps(frame, device, _interpreted_step)
    if config.interpret:
        changed = [write.input for write in program.writes]
        return _on_copies(_bind_steps(frame, torch.device("cpu"), _interpreted_step), device, changed)
    if not program.views and all(segment.plan is not None for segment in program.segments):
        return _bind_straight(frame, device)
    with torch.cuda.device(device):
        return _on_device(_bind_steps(frame, device, _gpu_step), device.index)


def print_source(program: Program) -> None:
    """Print the kernels of a program to stderr, whatever its encoding."""
    encoding = sys.stderr.encoding or "utf-8"
    for segment in program.segments:
        for launch in segment.plan.launches if segment.plan is not None else ():
            text = launch.source.text.rstrip() + "\n\n"
            sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))


# the straight path: kernels only, on a GPU -------------------------------------------------------------------------

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)

#: (sizes, strides, dtype) -> tensor on the current device; a third of the host time of ``torch.empty_strided``.
_empty_cuda = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)


def _allocator(buffers: Sequence[Buffer], device: torch.device) -> Callable[[int], list[Tensor]]:
    """A function of the current stream that makes all buffers; ``device`` must be the current one when it is called."""

    def portable(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    empty = portable if _empty_cuda is None or device.type != "cuda" else _empty_cuda
    if len(buffers) == 1 and not buffers[0].zeroed:
        shape, strides, dtype = buffers[0].shape, buffers[0].strides, buffers[0].dtype
        return lambda stream: [empty(shape, strides, dtype)]
    makes = [(buffer.shape, buffer.strides, buffer.dtype) for buffer in buffers if not buffer.zeroed]
    zeroed = [(rank, buffer) for rank, buffer in enumerate(buffers) if buffer.zeroed]
    if not zeroed:
        return lambda stream: [empty(shape, strides, dtype) for shape, strides, dtype in makes]
    kept: dict[int, list[tuple[int, Tensor]]] = {}

    def allocate(stream: int) -> list[Tensor]:
        counters = kept.get(stream)
        if counters is None or torch.cuda.is_current_stream_capturing():
            counters = [(rank, portable(b.shape, b.strides, b.dtype).zero_()) for rank, b in zeroed]
            if not torch.cuda.is_current_stream_capturing():  # a captured graph zeroes its own at every replay
                kept[stream] = counters
        made = [empty(shape, strides, dtype) for shape, strides, dtype in makes]
        for rank, counter in counters:
            made.insert(rank, counter)
        return made

    return allocate


def _load(frame: Frame, number: int, launch: Launch, index: int) -> Launcher:
    """Compile, load and bind a launch on ``cuda:index``; the launcher takes the addresses and numbers of all slots."""
    function = load(compile_kernel(launch.source, properties(index).arch), launch.source.signature, index)
    constants = {i: a.value for i, a in enumerate(launch.arguments) if isinstance(a, IntArgument)}
    sources = {i: frame.slot(number, a) for i, a in enumerate(launch.arguments) if not isinstance(a, IntArgument)}
    return function.bind(launch.geometry, constants, sources, frame.types)


def _bind_straight(frame: Frame, device: torch.device) -> Run:
    """All kernels of a program with no eager call in between."""
    index = device.index
    assert _raw_stream is not None, "this torch has no CUDA"
    assert _current_device is not None
    raw_stream, current_device = _raw_stream, _current_device
    launchers = [
        _load(frame, number, launch, index)
        for number, segment in enumerate(frame.program.segments)
        for launch in (segment.plan.launches if segment.plan is not None else ())
    ]
    allocate = _allocator(frame.buffers, device)
    results, write_inputs = frame.results(), frame.write_inputs()
    host = frame.host if frame.scalars else None
    count = len(launchers)

    def run(tensors: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> Sequence[Tensor]:
        if current_device() != index:
            with torch.cuda.device(index):
                return run(tensors, scalars)
        stream = raw_stream(index)
        slots = [*tensors, *allocate(stream)]
        arguments: list[Any] = [tensor.data_ptr() for tensor in slots]
        if host is not None:
            arguments += host(scalars)
        for launch in launchers:
            launch(stream, arguments)
        COUNTERS.launches += count
        if write_inputs is not None:
            write_inputs(slots)
        return results(slots)

    return run


# step by step: the interpreter, and programs with eager calls ------------------------------------------------------

_NOTHING = contextlib.nullcontext()

#: A segment at call time: reads and writes the slots (tensors, then numbers).
Step = Callable[[list[Any]], None]


def _bind_steps(frame: Frame, device: torch.device, kernels: Callable[[Frame, int], Step]) -> Run:
    """Segments one by one; ``kernels(frame, number)`` makes the step of a segment that has a plan."""
    program = frame.program
    steps = [
        kernels(frame, number) if segment.plan is not None else _eager_step(frame, segment)
        for number, segment in enumerate(program.segments)
    ]
    if program.views:
        steps.append(_views_step(frame))
    results, write_inputs = frame.results(), frame.write_inputs()
    buffers = frame.buffers

    def run(tensors: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> Sequence[Tensor]:
        slots: list[Any] = [*tensors, *(_make(buffer, device) for buffer in buffers), *frame.host(scalars)]
        for step in steps:
            step(slots)
        if write_inputs is not None:
            write_inputs(slots)
        return results(slots)

    return run


def _make(buffer: Buffer, device: torch.device) -> Tensor | None:
    if buffer.eager:
        return None
    made = torch.empty_strided(buffer.shape, buffer.strides, dtype=buffer.dtype, device=device)
    return made.zero_() if buffer.zeroed else made


def _views_step(frame: Frame) -> Step:
    """The results that are views of inputs, which no number has a part in."""
    graph = prune(frame.program.graph, frame.program.views)
    places = [frame.tensors[node_id] for node_id in frame.program.views]
    numbers = [0] * len(graph.scalars)

    def step(slots: list[Any]) -> None:
        for place, tensor in zip(places, evaluate(graph, slots[: len(graph.inputs)], numbers), strict=True):
            slots[place] = tensor

    return step


def _eager_step(frame: Frame, segment: Segment) -> Step:
    """A part of the graph in eager torch; results are copied where a later kernel was planned for another layout.

    The dtypes of the graph hold, so autocast is off.
    """
    graph, origin, sizes = segment.graph, segment.origin, segment.problem.sizes()
    operands = picker([frame.tensors[origin[node_id]] for node_id in graph.inputs])
    numbers = picker([frame.scalars[origin[node_id], None] for node_id in graph.scalars])
    places = [frame.tensors[node_id] for node_id in outputs_of(segment)]
    layouts = [frame.program.allocations.get(node_id) for node_id in outputs_of(segment)]

    def step(slots: list[Any]) -> None:
        tensors = operands(slots)
        kind = tensors[0].device.type if tensors else "cpu"
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _NOTHING:
            found = evaluate(graph, tensors, numbers(slots), sizes=sizes)
        for place, layout, tensor in zip(places, layouts, found, strict=True):
            slots[place] = tensor if layout is None else _conform(tensor, layout)

    return step


def _conform(tensor: Tensor, layout: Layout) -> Tensor:
    """The tensor itself if it lies as planned, else a copy that does."""
    if tensor.stride() == layout.strides and tensor.data_ptr() % layout.alignment == 0 and not tensor.is_neg():
        return tensor
    return torch.empty_strided(layout.shape, layout.strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _gpu_step(frame: Frame, number: int) -> Step:
    """The kernels of a segment on the device of the tensors in the slots (which is the current one)."""
    index = torch._C._cuda_getDevice()
    plan = frame.program.segments[number].plan
    assert plan is not None
    launchers = [_load(frame, number, launch, index) for launch in plan.launches]
    unread = [slot for (_, kind), slot in frame.scalars.items() if kind is None]

    def step(slots: list[Any]) -> None:
        stream = torch._C._cuda_getCurrentRawStream(index)
        arguments = [x.data_ptr() if isinstance(x, Tensor) else 0 if x is None else x for x in slots]
        for slot in unread:
            arguments[slot] = 0
        for launch in launchers:
            launch(stream, arguments)
        COUNTERS.launches += len(launchers)

    return step


def _interpreted_step(frame: Frame, number: int) -> Step:
    """The kernels of a segment in the interpreter, on CPU tensors; what they leave unwritten is found out."""
    segment = frame.program.segments[number]
    plan = segment.plan
    assert plan is not None
    inputs = len(frame.program.graph.inputs)
    written = [frame.tensors[node_id] for node_id in outputs_of(segment)]
    written = [slot for slot in written if slot >= inputs]  # an input that is changed holds its old value
    scratch = [
        slot for (of, index), slot in frame.workspaces.items() if of == number and not plan.workspaces[index].zeroed
    ]

    def step(slots: list[Any]) -> None:
        for slot in (*written, *scratch):
            poison(slots[slot])
        for launch in plan.launches:
            values = (a.value if isinstance(a, IntArgument) else slots[frame.slot(number, a)] for a in launch.arguments)
            interpret(launch.source, launch.geometry, tuple(values))
            COUNTERS.interpreted += 1
        for slot in written:
            settle(slots[slot], frame.buffers[slot - inputs].name)

    return step


def _on_device(run: Run, index: int) -> Run:
    """Run with ``cuda:index`` as the current device."""

    def guarded(tensors: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> Sequence[Tensor]:
        with torch.cuda.device(index):
            return run(tensors, scalars)

    return guarded


def _on_copies(run: Run, device: torch.device, changed: Sequence[int]) -> Run:
    """Run on CPU copies of CUDA tensors and copy the results back, and the inputs that are changed."""

    def copied(tensors: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> Sequence[Tensor]:
        copies = tuple(copy_span(tensor, torch.device("cpu")) for tensor in tensors)
        found = run(copies, scalars)
        with torch.no_grad():
            for index in changed:
                tensors[index].copy_(copies[index])
        places = {id(copies[index]): tensors[index] for index in changed}
        return [places[id(tensor)] if id(tensor) in places else copy_span(tensor, device) for tensor in found]

    return copied


def copy_span(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy with the strides and the alignment (modulo 16 bytes) of the original, gaps and overlaps included."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    shift = tensor.data_ptr() % 16 // tensor.element_size()
    room = torch.empty(shift + span, dtype=tensor.dtype, device=device)
    room[shift:].copy_(tensor.detach().as_strided((span,), (1,)))
    return room.as_strided(tensor.shape, tensor.stride(), shift)
