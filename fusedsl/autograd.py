# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch's autograd records.

A ``Recorder`` runs a graph. Where no input requires grad, or grad mode is off, it runs the graph's programs and nothing
else. Otherwise the graph is differentiated once (:func:`fusedsl.gradients.derive`), the forward graph that also returns
what the gradients need is run inside a ``torch.autograd.Function``, and the backward graph is planned when a gradient
first arrives. Outputs that are views of inputs are made by torch itself, outside that function.

The values saved for the backward graph are outputs of the ``Function`` too, which only it sees. With ``create_graph``
the backward graph is run by a ``Recorder`` of its own: its saved inputs lead back to the function, whose node then gets
gradients for the saved values as well, and uses a second backward graph that takes them. So second and higher
derivatives are as right as first ones.

torch runs backward on its own threads, with the device and the stream of the forward call current.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from fusedsl.analysis.segment import is_view
from fusedsl.config import config
from fusedsl.executor import Run
from fusedsl.frame import picker
from fusedsl.frontend.records import Update
from fusedsl.gradients import Backward, ForwardInput, ForwardOutput, IncomingGradient, Source, derive
from fusedsl.gradients.activity import active_nodes
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph
from fusedsl.graph.prune import prune
from fusedsl.inplace_gradients import check_gradients, check_kept, check_leaves
from fusedsl.programs import Programs, layout_key, trim

#: One gradient an input, None where there is none.
Gradients = tuple["Tensor | None", ...]


@attrs.define(eq=False)
class Recorder:
    """Runs a graph; with gradients where they are asked for. Safe to use from many threads.

    Attributes:
        graph: what is run.
        numerics: see :class:`fusedsl.options.Options`.
        updates: outputs that are new values of inputs.
        programs: those that record nothing.
    """

    graph: Graph
    numerics: str
    updates: tuple[Update, ...] = ()
    programs: Programs = attrs.field(init=False)
    _derivatives: dict[tuple[int, ...], Derivative] = attrs.field(init=False, factory=dict)
    _lock: threading.RLock = attrs.field(init=False, factory=threading.RLock)

    def __attrs_post_init__(self) -> None:
        self.programs = Programs(self.graph, self.numerics, self.updates)

    def find(self, tensors: Sequence[Tensor], device: torch.device) -> Run:
        """How to run on ``device`` with inputs laid out as these that require grad where these do, in this grad mode.

        Raises:
            FuseError: it cannot be differentiated, planned, compiled or loaded.
        """
        if torch.is_grad_enabled():
            wanted = tuple([index for index, tensor in enumerate(tensors) if tensor.requires_grad])
            if wanted:
                check_leaves(self.updates, tensors)
                return self.derivative(wanted).find(tensors, device)
        return self.programs.find(tensors, device)

    def derivative(self, wanted: tuple[int, ...]) -> Derivative:
        """The graph differentiated by the inputs with these indices.

        Raises:
            GradientError: it cannot be.
        """
        with self._lock:
            found = self._derivatives.get(wanted)
            if found is None:
                check_gradients(self.graph, self.updates, wanted)
                found = self._derivatives[wanted] = Derivative(self.graph, self.numerics, wanted, self.updates)
            return found


@attrs.define(eq=False)
class Derivative:
    """A graph differentiated by some of its inputs.

    Attributes:
        graph: the function.
        numerics: see :class:`fusedsl.options.Options`.
        wanted: indices of the inputs.
        updates: outputs that are new values of inputs; they carry no gradient.
        views: node ids of the outputs that torch makes itself, as views of inputs.
        made: the other outputs and their gradients.
        programs: of ``made.forward``.
        recorded: whether there is any gradient; otherwise torch need not know of the call.
        first: the gradients of the wanted inputs from those of the outputs.
        kept: the inputs and outputs of ``made.forward`` that are held for the backward graph.
        flat: the outputs of ``made.forward`` that carry no gradient.
        changed: the outputs of ``made.forward`` that are new values of inputs -> those inputs.
    """

    graph: Graph
    numerics: str
    wanted: tuple[int, ...]
    updates: tuple[Update, ...] = ()
    views: tuple[int, ...] = attrs.field(init=False)
    made: Backward = attrs.field(init=False)
    programs: Programs = attrs.field(init=False)
    recorded: bool = attrs.field(init=False)
    first: Pullback = attrs.field(init=False)
    kept: tuple[Source, ...] = attrs.field(init=False)
    flat: tuple[int, ...] = attrs.field(init=False)
    changed: dict[int, int] = attrs.field(init=False)
    _second: Pullback | None = attrs.field(init=False, default=None)
    _runs: dict[tuple[Any, ...], Run] = attrs.field(init=False, factory=dict)
    _lock: threading.RLock = attrs.field(init=False, factory=threading.RLock)

    def __attrs_post_init__(self) -> None:
        graph = self.graph
        self.views = tuple(dict.fromkeys(o for o in graph.outputs if is_view(graph, o)))
        rest = tuple(o for o in graph.outputs if o not in self.views)
        values = prune(graph, rest)
        self.made = derive(values, [values.inputs[i] for i in self.wanted])
        self.recorded = any(self.made.differentiable) and any(index is not None for index in self.made.gradients)
        places = [rank for rank, o in enumerate(graph.outputs) if o not in self.views]
        updates = tuple(attrs.evolve(u, output=places.index(u.output)) for u in self.updates)
        self.changed = {u.output: u.input for u in updates}
        self.programs = Programs(self.made.forward, self.numerics, updates)
        self.first = Pullback(self.made, self.numerics)
        self.kept = tuple(dict.fromkeys(s for s in self.made.sources if _is_kept(s)))
        forward = self.made.forward
        active = active_nodes(forward, [forward.inputs[i] for i in self.wanted])
        ranks = enumerate(forward.outputs)
        self.flat = tuple(rank for rank, node_id in ranks if node_id not in active and rank not in self.changed)
        check_kept(self.graph, self.updates, self.wanted, self.kept)

    @property
    def second(self) -> Pullback:
        """The gradients of the wanted inputs from those of the outputs and of the saved values, from what is kept.

        Raises:
            SecondDerivative: they cannot be had.
        """
        with self._lock:
            if self._second is None:
                forward = self.made.forward
                made = derive(forward, [forward.inputs[i] for i in self.made.wanted], self.kept)
                self._second = Pullback(made, self.numerics)
            return self._second

    def find(self, tensors: Sequence[Tensor], device: torch.device) -> Run:
        """How to run with inputs laid out as these; autograd records it."""
        key = (device, layout_key(tensors))
        with self._lock:
            run = self._runs.pop(key, None)
            if run is None:
                run = self._bind(tensors, device)
            self._runs[key] = run
            trim(self._runs, config.max_cached_calls)
        return run

    def _bind(self, tensors: Sequence[Tensor], device: torch.device) -> Run:
        plain = self.programs.find(tensors, device)
        run = self._recorded(plain, tensors, device) if self.recorded else _unrecorded(plain)
        return self._with_views(run) if self.views else run

    def _recorded(self, plain: Run, tensors: Sequence[Tensor], device: torch.device) -> Run:
        link = Link(self, plain, device, tensors)
        wanted, results = picker(self.wanted), self.made.results

        def run(tensors: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> Sequence[Tensor]:
            return _apply(link, tensors, scalars, *wanted(tensors))[:results]

        return run

    def _with_views(self, run: Run) -> Run:
        """Outputs in order, those that are views made by torch."""
        part = prune(self.graph, self.views)
        rest = [o for o in self.graph.outputs if o not in self.views]
        held = len(rest)
        places = iter(range(held))
        order = [held + self.views.index(o) if o in self.views else next(places) for o in self.graph.outputs]

        def with_views(tensors: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> Sequence[Tensor]:
            found = [*run(tensors, scalars), *evaluate(part, tensors, scalars)]
            return [found[place] for place in order]

        return with_views


def _unrecorded(run: Run) -> Run:
    """Run without recording what eager torch does inside."""

    def unrecorded(tensors: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> Sequence[Tensor]:
        with torch.no_grad():
            return run(tensors, scalars)

    return unrecorded


def _is_kept(source: Source) -> bool:
    match source:
        case ForwardInput(shape_only=shape_only):
            return not shape_only
        case ForwardOutput():
            return True
        case _:
            return False


@attrs.define(eq=False)
class Pullback:
    """Runs a backward graph.

    Attributes:
        made: what it belongs to.
        recorder: of the backward graph, without outputs that are inputs.
        pick: the gradient of every wanted input, from the tensors that went in and the results.
        scalars: the backward graph's scalars, from the forward graph's.
    """

    made: Backward
    numerics: str
    recorder: Recorder = attrs.field(init=False)
    pick: Callable[[Sequence[Tensor], Sequence[Tensor]], Gradients] = attrs.field(init=False)
    scalars: Callable[[Sequence[Any]], tuple[Any, ...]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        graph = self.made.backward
        computed = tuple(dict.fromkeys(o for o in graph.outputs if o not in graph.inputs))
        self.recorder = Recorder(prune(graph, computed), self.numerics)
        self.scalars = picker(self.made.scalars)
        places: list[int | None] = []
        for index in self.made.gradients:
            node_id = None if index is None else graph.outputs[index]
            if node_id in graph.inputs:
                places.append(graph.inputs.index(node_id))
            else:
                places.append(None if node_id is None else len(graph.inputs) + computed.index(node_id))

        def pick(tensors: Sequence[Tensor], found: Sequence[Tensor]) -> Gradients:
            every = (*tensors, *found)
            return tuple([None if place is None else every[place] for place in places])

        self.pick = pick

    def __call__(self, tensors: tuple[Tensor, ...], scalars: tuple[Any, ...], device: torch.device) -> Gradients:
        """One gradient a wanted input.

        Args:
            tensors: in the order of ``made.sources``.
            scalars: of the forward graph.
            device: to run on.
        """
        if not self.recorder.graph.outputs:
            return self.pick(tensors, ())
        run = self.recorder.find(tensors, device)
        return self.pick(tensors, run(tensors, self.scalars(scalars)))


class Link:
    """What a forward call leaves for its backward call: how to run both, for inputs of certain layouts.

    Args:
        derivative: the function and its gradients.
        run: a program of the forward graph.
        device: where it runs.
        tensors: the inputs of a call; only their shapes and dtypes are looked at.
    """

    def __init__(self, derivative: Derivative, run: Run, device: torch.device, tensors: Sequence[Tensor]) -> None:
        kept = sorted(derivative.kept, key=lambda source: isinstance(source, ForwardOutput))
        self.derivative = derivative
        self.run = run
        self.device = device
        self.flat = picker(derivative.flat) if derivative.flat else None
        self.changed = derivative.changed
        self.kept_inputs = self._saver([source.index for source in kept if isinstance(source, ForwardInput)])
        self.kept_outputs = picker([source.index for source in kept if isinstance(source, ForwardOutput)])
        self.outputs: list[Like] | None = None  # what the forward graph returns, known after the first call
        self._inputs = [(tensor.shape, tensor.dtype) for tensor in tensors]
        self._places = {source: place for place, source in enumerate(kept)}

    def _saver(self, kept: Sequence[int]) -> Callable[[Sequence[Tensor]], tuple[Tensor, ...]]:
        """A function that picks the inputs to hold, before the run; of those that it changes the values as they are."""
        pick = picker(kept)
        changed = [place for place, index in enumerate(kept) if index in self.changed.values()]
        if not changed:
            return pick

        def save(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            found = list(pick(tensors))
            for place in changed:
                found[place] = found[place].clone()
            return tuple(found)

        return save

    def returned(self, found: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """What autograd takes for results: not the inputs that were changed, which it does not know to be new."""
        if not self.changed:
            return tuple(found)
        return tuple([None if rank in self.changed else tensor for rank, tensor in enumerate(found)])

    def held(self, found: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs to hold; new values of inputs are held apart from the gradients of those inputs."""
        if not self.changed:
            return self.kept_outputs(found)
        return self.kept_outputs([t.detach() if rank in self.changed else t for rank, t in enumerate(found)])

    def pull_back(
        self, saved: tuple[Tensor, ...], scalars: tuple[Any, ...], received: Sequence[Tensor | None]
    ) -> Gradients:
        """The gradients of the wanted inputs.

        Args:
            saved: the kept inputs, then the kept outputs.
            scalars: of the forward graph.
            received: gradients of all outputs of the forward graph, None where none came in.
        """
        derivative = self.derivative
        if all(gradient is None for gradient in received):
            return (None,) * len(derivative.wanted)
        deeper = any(gradient is not None for gradient in received[derivative.made.results :])
        pullback = derivative.second if deeper else derivative.first
        tensors = tuple([self._fetch(source, saved, received) for source in pullback.made.sources])
        return pullback(tensors, scalars, self.device)

    def _fetch(self, source: Source, saved: tuple[Tensor, ...], received: Sequence[Tensor | None]) -> Tensor:
        if isinstance(source, IncomingGradient):
            gradient = received[source.index]
            if gradient is not None:
                return gradient.to_dense().resolve_neg() if _is_unusual(gradient) else gradient
            assert self.outputs is not None, "the forward call came first"
            return self._spread(self.outputs[source.index])
        if isinstance(source, ForwardInput) and source.shape_only:
            return self._spread(self._inputs[source.index])
        return saved[self._places[source]]

    def _spread(self, like: Like) -> Tensor:
        """Zeros of a shape, in the memory of one element."""
        shape, dtype = like
        return torch.zeros((), dtype=dtype, device=self.device).expand(shape)


#: Shape and dtype of a tensor.
Like = tuple[torch.Size, torch.dtype]


def _is_unusual(gradient: Tensor) -> bool:
    return gradient.layout is not torch.strided or gradient.is_neg()


class Fused(torch.autograd.Function):
    """The node of a fused call in autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, link: Link, tensors: tuple[Tensor, ...], scalars: tuple[Any, ...], *wanted: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The outputs of the forward graph; None in the places of new values of inputs.

        Args:
            ctx: of autograd.
            link: how to run it.
            tensors: its inputs.
            scalars: its scalars.
            wanted: those of ``tensors`` that a gradient is wanted of.
        """
        kept = link.kept_inputs(tensors)
        found = link.run(tensors, scalars)
        if link.outputs is None:
            link.outputs = [(tensor.shape, tensor.dtype) for tensor in found]
        ctx.link, ctx.scalars = link, scalars
        ctx.set_materialize_grads(False)
        if link.flat is not None:
            ctx.mark_non_differentiable(*link.flat(found))
        ctx.save_for_backward(*kept, *link.held(found))
        return link.returned(found)

    @staticmethod
    def backward(ctx: Any, *received: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of the wanted inputs."""
        return (None, None, None, *ctx.link.pull_back(ctx.saved_tensors, ctx.scalars, received))


#: ``Fused.apply`` without what it does for torch.func, whose tensors do not come here: 5 us of the host's time less.
_apply: Callable[..., tuple[Tensor, ...]] = super(torch.autograd.Function, Fused).apply
