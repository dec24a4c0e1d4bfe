# SPDX-License-Identifier: Apache-2.0
"""Fused functions inside ``torch.compile``: a call becomes the custom op ``fusedsl::call`` in the compiled graph.

``call_in_graph`` is read by Dynamo while it compiles. It takes the bound arguments apart into tensors, numbers and a
template of the rest, calls the op, and puts the result together as the function returns it. The op's implementation for
fake tensors traces the function, on meta tensors of the hinted sizes, and evaluates its graph, which gives shapes,
dtypes and strides; it also notes how results are packed, which Dynamo asks for after the call. The gradients are
another op, ``fusedsl::pull_back``.

A call is expressed so if its arguments are tensors, numbers, and containers of them, and the function has no free
variables, reads no tensor from elsewhere, draws no random numbers, runs nothing in eager torch, changes no argument and
returns no view of one. Dynamo sees the plain function otherwise, and in ``torch.export``. Ops name functions by their
text, so compiled graphs may be cached and shared by processes.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from fusedsl.analysis.segment import is_view
from fusedsl.autograd import Derivative, Pullback
from fusedsl.dispatch import Dispatcher, TraceEntry
from fusedsl.frontend.records import OutputInput, OutputStatic, OutputValue
from fusedsl.frontend.source import capture
from fusedsl.gradients import ForwardInput, IncomingGradient, Source
from fusedsl.gradients.views import is_reshape
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph
from fusedsl.graph.span import FuseError
from fusedsl.programs import Programs, device_of

#: A value with holes: ("tensor" | "int" | "float", place), ("static", value) or ("tuple" | "list" | "dict", items). Of
#: a result: ("value", place), ("input", place) and the last two.
Template = tuple[Any, ...]

#: The template of a result that ops cannot express.
PLAIN: Template = ("plain",)


class UnknownSite(FuseError):
    """A compiled graph calls a function that this process has not seen."""


@attrs.define(eq=False)
class Site:
    """A function with the template of its arguments.

    Attributes:
        dispatcher: of the function.
        template: of the tuple of bound arguments.
        results: (dtype and rank of every tensor) -> template of the result, for calls that were compiled.
    """

    dispatcher: Dispatcher
    template: Template
    results: dict[tuple[Any, ...], Template] = attrs.field(factory=dict)


_NUMBERS = itertools.count()

#: All functions by label; what compiled graphs name: functions with the templates of their arguments, gradients.
DISPATCHERS: weakref.WeakValueDictionary[str, Dispatcher] = weakref.WeakValueDictionary()
SITES: dict[str, Site] = {}
PULLBACKS: dict[str, tuple[Site, TraceEntry, Derivative]] = {}


def register(dispatcher: Dispatcher) -> str:
    """Give a function a label by which the code that Dynamo reads finds it (a number it might take for a variable)."""
    label = f"function {next(_NUMBERS)}"
    DISPATCHERS[label] = dispatcher
    return label


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compiler.assume_constant_result``, which would import Dynamo: call it while compiling."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# at compile time, read by Dynamo -----------------------------------------------------------------------------------


def call_in_graph(label: str, values: tuple[Any, ...], plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a call, as a custom op where that can be.

    Args:
        label: of the function in ``DISPATCHERS``.
        values: the bound arguments.
        plain: the plain function.
        args: of the call.
        kwargs: of the call.
    """
    tensors: list[Tensor] = []
    ints: list[int] = []
    floats: list[float] = []
    template = take_apart(values, tensors, ints, floats)
    site = site_of(label, template) if template is not None and tensors else ""
    if site == "":
        return plain(*args, **kwargs)
    wanted = []
    if torch.is_grad_enabled():
        wanted = [place for place, tensor in enumerate(tensors) if tensor.requires_grad]
    found = torch.ops.fusedsl.call(site, tensors, ints, floats, wanted)
    result = result_of(site, tuple([(tensor.dtype, tensor.dim()) for tensor in tensors]))
    if result == PLAIN:
        return plain(*args, **kwargs)
    return fill(result, {"value": found, "input": tensors})


def take_apart(value: Any, tensors: list[Tensor], ints: list[int], floats: list[float]) -> Template | None:
    """The template of a value, whose tensors and numbers are appended to the lists; None if there is none."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return ("tensor", len(tensors) - 1)
    if value is None or isinstance(value, (bool, str, torch.dtype)):
        return ("static", value)
    if isinstance(value, int):
        ints.append(value)
        return ("int", len(ints) - 1)
    if isinstance(value, float):
        floats.append(value)
        return ("float", len(floats) - 1)
    if type(value) is tuple or type(value) is list:
        items = [take_apart(item, tensors, ints, floats) for item in value]
        kind = "tuple" if type(value) is tuple else "list"
        return None if None in items else (kind, tuple(items))
    if type(value) is dict:
        pairs = [(key, take_apart(item, tensors, ints, floats)) for key, item in value.items()]
        return None if None in [item for _, item in pairs] else ("dict", tuple(pairs))
    return None


def fill(template: Template, holes: dict[str, Any]) -> Any:
    """The value of a template; ``holes[kind][place]`` are its tensors and numbers."""
    kind, content = template
    if kind in holes:
        return holes[kind][content]
    if kind == "static":
        return content
    if kind == "dict":
        return {key: fill(item, holes) for key, item in content}
    items = [fill(item, holes) for item in content]
    return tuple(items) if kind == "tuple" else items


@constant
def site_of(label: str, template: Template) -> str:
    """What a compiled graph calls a function with such arguments; empty if it cannot."""
    dispatcher = DISPATCHERS[label]
    fn = dispatcher.fn
    if fn.__closure__:
        return ""
    text = repr((capture(fn).text, dispatcher.options, template))
    site = f"{fn.__module__}.{fn.__qualname__}:{_digest(text)}"
    known = SITES.get(site)
    if known is None or known.dispatcher is not dispatcher:
        SITES[site] = Site(dispatcher, template)
    return site


@constant
def result_of(site: str, types: tuple[Any, ...]) -> Template:
    """How the results of the op are packed, for tensors of these dtypes and ranks; known once the op was called."""
    return SITES[site].results[types]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# a call of the op --------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Bound:
    """A call of the op: the function's trace and what goes into its graph.

    Attributes:
        entry: the trace.
        order: per tensor input of the graph, its place among the op's tensors.
        scalars: of the graph.
        result: template of the result.
    """

    entry: TraceEntry
    order: tuple[int, ...]
    scalars: tuple[Any, ...]
    result: Template

    def derivative(self, wanted: Sequence[int]) -> Derivative | None:
        """The gradients by the op's tensors ``wanted``; None if the graph reads none of them."""
        inputs = tuple(index for index, place in enumerate(self.order) if place in wanted)
        return self.entry.recorder.derivative(inputs) if inputs else None

    def programs(self, wanted: Sequence[int]) -> Programs:
        """What the op runs: the outputs, and with gradients what those need."""
        derivative = self.derivative(wanted)
        return self.entry.recorder.programs if derivative is None else derivative.programs


def bind_call(name: str, tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]) -> Bound | None:
    """The trace for a call of the op, with fake tensors too; None if ops cannot express it.

    Raises:
        UnknownSite: this process knows no such function.
        FuseError: it cannot be traced.
    """
    if name not in SITES:
        raise UnknownSite(f"{name} is not known in this process", expected="a graph that was compiled in it")
    site = SITES[name]
    with _disable_current_modes():
        stands = [_stand_in(tensor) for tensor in tensors]
        holes = {"tensor": stands, "int": [_hint(number) for number in ints], "float": floats}
        arguments = dict(zip(site.dispatcher.names, fill(site.template, holes), strict=True))
        entry = site.dispatcher.entry(tuple(arguments.values()), arguments)
        read, scalars = site.dispatcher.fetch(entry, arguments, allow_meta=True)
    places = {id(tensor): place for place, tensor in enumerate(stands)}
    order = tuple(places.get(id(tensor), -1) for tensor in read)
    result = _result(entry, order)
    site.results[tuple((tensor.dtype, tensor.dim()) for tensor in tensors)] = PLAIN if result is None else result
    return None if result is None else Bound(entry, order, scalars, result)


def _stand_in(tensor: Tensor) -> Tensor:
    """A tensor that the function can be traced with: a meta tensor of the hinted sizes for one without data."""
    if type(tensor) is Tensor or type(tensor) is torch.nn.Parameter:
        return tensor
    sizes, strides = [_hint(size) for size in tensor.shape], [_hint(stride) for stride in tensor.stride()]
    stand = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
    return stand.requires_grad_() if tensor.requires_grad else stand


def _hint(number: int) -> int:
    return number if isinstance(number, int) else int(number.node.hint)


def _result(entry: TraceEntry, order: tuple[int, ...]) -> Template | None:
    """The template of the function's result; None if ops cannot express the call."""
    graph = entry.trace.graph
    captured = -1 in order or any(path.root == "draw" for path in entry.trace.scalars)
    # Eager torch cannot differentiate inside the implementation of an op.
    eager = any(node.op == "opaque" and not is_reshape(node) for node in graph)
    if entry.trace.updates or captured or eager or any(is_view(graph, node_id) for node_id in graph.outputs):
        return None
    return _packed(entry.trace.outputs, order)


def _packed(outputs: Any, order: tuple[int, ...]) -> Template | None:
    match outputs:
        case OutputValue(index=index):
            return ("value", index)
        case OutputInput(index=index):
            return ("input", order[index])
        case OutputStatic(value=value) if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
            return ("static", value)
    if type(outputs) is dict:
        pairs = tuple((key, _packed(item, order)) for key, item in outputs.items())
        return None if None in [item for _, item in pairs] else ("dict", pairs)
    if type(outputs) in (tuple, list):
        items = tuple(_packed(item, order) for item in outputs)
        return None if None in items else (type(outputs).__name__, items)
    return None


# the ops -----------------------------------------------------------------------------------------------------------


@torch.library.custom_op(
    "fusedsl::call",
    mutates_args=(),
    schema="(str site, Tensor[] tensors, SymInt[] ints, float[] floats, int[] wanted) -> Tensor[]",
)
def call(site: Any, tensors: Any, ints: Any, floats: Any, wanted: Any) -> Any:
    """The outputs of a function's graph; if gradients of the tensors ``wanted`` are, what those need too."""
    bound = bind_call(site, tensors, ints, floats)
    if bound is None:
        return []  # Dynamo took the plain function; a backend may still run this node
    _name_pullback(site, bound, wanted)
    return _run(bound.programs(wanted), tuple(tensors[place] for place in bound.order), bound.scalars)


@call.register_fake
def _(site: Any, tensors: Any, ints: Any, floats: Any, wanted: Any) -> Any:
    bound = bind_call(site, tensors, ints, floats)
    if bound is None:
        return []
    _name_pullback(site, bound, wanted)
    return _imagine(bound.programs(wanted).graph, [tensors[place] for place in bound.order], bound.scalars)


@torch.library.custom_op(
    "fusedsl::pull_back",
    mutates_args=(),
    schema="(str name, Tensor[] tensors, SymInt[] ints, float[] floats) -> Tensor[]",
)
def pull_back(name: Any, tensors: Any, ints: Any, floats: Any) -> Any:
    """The outputs of the backward graph ``name``, which takes ``tensors``."""
    pullback, scalars = _find_pullback(name, ints, floats)
    return _run(pullback.recorder.programs, tuple(tensors), scalars)


@pull_back.register_fake
def _(name: Any, tensors: Any, ints: Any, floats: Any) -> Any:
    pullback, scalars = _find_pullback(name, ints, floats)
    return _imagine(pullback.recorder.graph, tensors, scalars)


def _run(programs: Programs, tensors: tuple[Tensor, ...], scalars: tuple[Any, ...]) -> list[Tensor]:
    with torch.no_grad():
        found = programs.find(tensors, device_of(tensors))(tensors, scalars)
    return _apart(found, tensors)


def _imagine(graph: Graph, tensors: Sequence[Tensor], scalars: tuple[Any, ...]) -> list[Tensor]:
    """The outputs of a graph for fake tensors, laid out as the program's are."""
    found = []
    for tensor in evaluate(graph, tensors, scalars):
        spread = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        found.append(tensor.new_empty(tensor.shape) if spread else tensor)
    return _apart(found, tensors)


def _apart(results: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Results that share no memory with the inputs, nor with each other."""
    taken = {tensor.untyped_storage()._cdata for tensor in tensors}
    found = []
    for result in results:
        if result.untyped_storage()._cdata in taken:
            result = result.clone(memory_format=torch.contiguous_format)
        taken.add(result.untyped_storage()._cdata)
        found.append(result)
    return found


# gradients ---------------------------------------------------------------------------------------------------------

_NAMES: weakref.WeakKeyDictionary[Derivative, str] = weakref.WeakKeyDictionary()


def _name_pullback(site: str, bound: Bound, wanted: Sequence[int]) -> str:
    """What compiled graphs call the backward graph."""
    derivative = bound.derivative(wanted)
    if derivative is None:
        return ""
    name = _NAMES.get(derivative)
    if name is None:
        name = _NAMES[derivative] = f"{site}/{_digest(str(derivative.made.backward) + repr(derivative.made.sources))}"
    PULLBACKS[name] = (SITES[site], bound.entry, derivative)
    return name


def _find_pullback(name: str, ints: Sequence[int], floats: Sequence[float]) -> tuple[Pullback, tuple[Any, ...]]:
    """The pullback of a name and the scalars of its graph."""
    if name not in PULLBACKS:
        raise UnknownSite(f"{name} is not known in this process", expected="a graph that was compiled in it")
    site, entry, derivative = PULLBACKS[name]
    tensors: defaultdict[int, None] = defaultdict(lambda: None)  # the numbers come from nowhere else
    holes = {"tensor": tensors, "int": [_hint(number) for number in ints], "float": floats}
    _, scalars = entry.fetch(dict(zip(site.dispatcher.names, fill(site.template, holes), strict=True)))
    return derivative.first, derivative.first.scalars(scalars)


def _set_up(ctx: Any, inputs: Any, output: Any) -> None:
    site, tensors, ints, floats, wanted = inputs
    ctx.count, ctx.numbers, ctx.name = len(tensors), (ints, floats), ""
    ctx.empty = [not numbers for numbers in (ints, floats, wanted)]
    bound = bind_call(site, tensors, ints, floats) if wanted else None
    derivative = None if bound is None else bound.derivative(wanted)
    if bound is None or derivative is None or not derivative.recorded:
        return
    ctx.name, ctx.derivative, ctx.order = _name_pullback(site, bound, wanted), derivative, bound.order
    ctx.inputs = [(tensors[place].shape, tensors[place].dtype) for place in bound.order]
    ctx.outputs = [(tensor.shape, tensor.dtype) for tensor in output]
    kept = [
        tensors[bound.order[source.index]] if isinstance(source, ForwardInput) else output[source.index]
        for source in derivative.kept
    ]
    ctx.device = tensors[0].device
    ctx.save_for_backward(*kept)


def _backward(ctx: Any, received: Any) -> Any:
    gradients: list[Tensor | None] = [None] * ctx.count
    if ctx.name:
        derivative = ctx.derivative
        kept = dict(zip(derivative.kept, ctx.saved_tensors, strict=True))

        def fetch(source: Source) -> Tensor:
            if source in kept:
                return kept[source]  # type: ignore[no-any-return]
            given = received[source.index] if isinstance(source, IncomingGradient) else None
            shape, dtype = (ctx.outputs if isinstance(source, IncomingGradient) else ctx.inputs)[source.index]
            return torch.zeros((), dtype=dtype, device=ctx.device).expand(shape) if given is None else given

        arguments = [fetch(source) for source in derivative.made.sources]
        found = torch.ops.fusedsl.pull_back(ctx.name, arguments, *ctx.numbers)
        for index, gradient in zip(derivative.wanted, derivative.first.pick(arguments, found), strict=True):
            gradients[ctx.order[index]] = gradient
    # torch takes an empty list of numbers for an empty list of tensors.
    return (None, gradients, *([] if empty else None for empty in ctx.empty))


call.register_autograd(_backward, setup_context=_set_up)
