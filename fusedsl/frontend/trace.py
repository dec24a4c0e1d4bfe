# SPDX-License-Identifier: Apache-2.0
"""``trace``: a Python function and example arguments become a Trace."""

from __future__ import annotations

import ast
import inspect
import types
from typing import Any

import attrs
import torch

from fusedsl.frontend.callables import ScalarValue, TensorValue
from fusedsl.frontend.calls import call
from fusedsl.frontend.errors import LambdaFunction, NotAFunction, RecursionTooDeep, UnsupportedResult
from fusedsl.frontend.expressions import EXPRESSIONS
from fusedsl.frontend.inline import DEPTH_LIMIT, walk_body
from fusedsl.frontend.records import (
    AccessPath,
    Guard,
    OutputInput,
    OutputStatic,
    OutputValue,
    SourceFunction,
    Trace,
    Update,
)
from fusedsl.frontend.scope import Frame, local_names
from fusedsl.frontend.source import capture, remember
from fusedsl.frontend.statements import STATEMENTS
from fusedsl.frontend.tracer import TraceOptions, Tracer, Walkers
from fusedsl.frontend.values import SYMBOLIC, Captured, Function, describe, describe_python
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.lower import lower
from fusedsl.graph.span import FuseError

__all__ = [
    "AccessPath",
    "Guard",
    "OutputInput",
    "OutputStatic",
    "OutputValue",
    "SourceFunction",
    "Trace",
    "TraceOptions",
    "Update",
    "check_function",
    "trace",
]

_WALKERS = Walkers(EXPRESSIONS, STATEMENTS, call)
_PLAIN_RESULTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def check_function(fn: Any) -> types.FunctionType:
    """``fn`` if it can be fused; called when it is decorated, so that its text is kept as it is then.

    Raises:
        NotAFunction, LambdaFunction, AsyncFunction, GeneratorFunction: it cannot.
    """
    if isinstance(fn, (staticmethod, classmethod)):
        found = f"a {type(fn).__name__}"
        raise NotAFunction(found=found, hint=f"@{type(fn).__name__} above @fuse")
    if not isinstance(fn, types.FunctionType):
        hint = "fuse its forward method, or a function that calls it" if isinstance(fn, torch.nn.Module) else None
        raise NotAFunction(found=describe_python(fn), hint=hint)
    if fn.__code__.co_name == "<lambda>":
        names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        raise LambdaFunction(arguments=", ".join(names))
    remember(fn)
    if fn.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR):
        capture(fn)
    return fn


def trace(fn: types.FunctionType, arguments: inspect.BoundArguments, options: Any = None) -> Trace:
    """Walk the text of ``fn`` with example arguments.

    Args:
        fn: a plain function (see ``check_function``).
        arguments: bound to the signature of ``fn``; tensors may be on any device, meta too. Missing defaults are
            filled in.
        options: anything with a ``fallback`` ("opaque" or "error"); see TraceOptions.

    Raises:
        FuseError: the function cannot be traced; the error shows the user's line.
    """
    check_function(fn)
    source = capture(fn)
    arguments.apply_defaults()
    tr = Tracer(fn.__name__, fn.__globals__, options or TraceOptions(), _WALKERS)
    frame = Frame(source, local_names(source.node), None, Function(fn), 0)
    tr.at(frame, source.node)
    _bind_arguments(tr, frame, fn, arguments)
    examples = list(tr.captures.examples.values())
    if examples:
        tr.device = examples[0].device
    try:
        result = walk_body(tr, frame)
        ids: list[int] = []
        outputs = _output(tr, frame, result, ids, {})
        updates = _updates(tr, ids)
    except RecursionError:
        raise RecursionTooDeep(source.span(source.node), limit=DEPTH_LIMIT, name=fn.__name__) from None
    except FuseError as error:
        error.span = error.span or tr.here()
        raise error.with_traceback(None) from None
    graph = lower(tr.builder.finish(ids))
    guards = tr.captures.finish_guards()
    numbers = [node for node in tr.builder.nodes if node.op == "scalar_input"]
    paths = [tr.captures.number_path(node.id) or AccessPath("draw", node.name) for node in numbers]
    graph, scalars = _without_unused_numbers(graph, paths)
    return Trace(graph, tuple(tr.captures.tensors), scalars, outputs, guards, tuple(tr.functions.values()), updates)


def _bind_arguments(tr: Tracer, frame: Frame, fn: types.FunctionType, arguments: inspect.BoundArguments) -> None:
    """Give the parameters of ``fn`` their values.

    ``arguments`` may be bound to the signature that ``fn`` shows (a wrapper made with functools.wraps shows that of the
    function it wraps); paths are in its terms.
    """
    args, kwargs = _arguments(tr, arguments)
    own = inspect.signature(fn, follow_wrapped=False)
    for name, found in own.bind(*args, **kwargs).arguments.items():
        match own.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                frame.values[name] = tuple(tr.captures.argument(*pair) for pair in found)
            case inspect.Parameter.VAR_KEYWORD:
                frame.values[name] = {key: tr.captures.argument(*pair) for key, pair in found.items()}
            case _:
                frame.values[name] = tr.captures.argument(*found)
    for parameter in own.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            frame.values.setdefault(parameter.name, ())
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            frame.values.setdefault(parameter.name, {})


_Place = tuple[Any, AccessPath]


def _arguments(tr: Tracer, arguments: inspect.BoundArguments) -> tuple[list[_Place], dict[str, _Place]]:
    """Positional and keyword arguments of the call, each with its path."""
    args: list[_Place] = []
    kwargs: dict[str, _Place] = {}
    for name, value in arguments.arguments.items():
        path = AccessPath("argument", name)
        match arguments.signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                tr.captures.guard(path, "length", len(value), f"{len(value)} positional arguments in *{name}")
                args += [(item, path.item(index)) for index, item in enumerate(value)]
            case inspect.Parameter.VAR_KEYWORD:
                tr.captures.guard(path, "keys", tuple(value), f"the keywords in **{name} are {list(value)}")
                kwargs |= {key: (item, path.item(key)) for key, item in value.items()}
            case inspect.Parameter.KEYWORD_ONLY:
                kwargs[name] = (value, path)
            case _:
                args.append((value, path))
    return args, kwargs


def _output(tr: Tracer, frame: Frame, value: Any, ids: list[int], known: dict[int, OutputValue]) -> Any:
    """The tree of results; ``ids`` collects the graph's outputs, one for each tensor object."""
    if isinstance(value, TensorValue):
        index = _returned_argument(tr, frame, value)
        if index is not None:
            return OutputInput(index)
        if id(value) not in known:
            known[id(value)] = OutputValue(len(ids))
            ids.append(value.id)
        return known[id(value)]
    if isinstance(value, ScalarValue) or tr.captures.is_container(value):
        value = tr.static(value)
    if isinstance(value, dict):
        return {key: _output(tr, frame, item, ids, known) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_output(tr, frame, item, ids, known) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, SYMBOLIC) or not isinstance(value, _PLAIN_RESULTS):
        found = describe(value.value) if isinstance(value, Captured) else describe(value)
        tr.fail(UnsupportedResult, frame, _last_return(frame), found=found)
    return OutputStatic(value)


def _returned_argument(tr: Tracer, frame: Frame, value: TensorValue) -> int | None:
    """The argument that a result is, changed in place or not."""
    index = tr.captures.input_index(value)
    if index is not None:
        return index
    index = tr.aliases.storage(value).argument
    if index is None or index not in tr.changes:
        return None
    base = tr.captures.handles[index]
    view = tr.aliases.view(value.id, base.id)
    if value.id == base.id:
        return index
    if view is not None:
        found = f"a view of '{tr.captures.tensors[index]}', which the function changes in place,"
        tr.fail(UnsupportedResult, frame, _last_return(frame), found=found)
    return None


def _updates(tr: Tracer, ids: list[int]) -> tuple[Update, ...]:
    """The arguments that were changed in place; their values are appended to the outputs."""
    found = []
    for index, change in sorted(tr.changes.items()):
        found.append(Update(len(ids), index, change.recorded, change.operation, change.span))
        ids.append(tr.captures.handles[index].id)
    return tuple(found)


def _last_return(frame: Frame) -> ast.AST:
    node = frame.source.node
    returns = [x for x in ast.walk(node) if isinstance(x, ast.Return) and x.value is not None]
    return returns[-1].value or node if returns else node


def _without_unused_numbers(graph: Graph, paths: list[AccessPath]) -> tuple[Graph, tuple[AccessPath, ...]]:
    """Drop scalar inputs that no node reads (those the structure depended on became static)."""
    users = graph.users()
    unused = {node_id for node_id in graph.scalars if not users[node_id]}
    if not unused:
        return graph, tuple(paths)
    kept_paths = [path for node_id, path in zip(graph.scalars, paths, strict=True) if node_id not in unused]
    renumber: dict[int, int] = {}
    kept: list[Node] = []
    count = 0
    for node in graph.nodes:
        if node.id in unused:
            continue
        renumber[node.id] = len(kept)
        attributes = node.attributes
        if node.op == "scalar_input":
            attributes = (("index", count),)
            count += 1
        sources = tuple(renumber[i] for i in node.inputs)
        kept.append(attrs.evolve(node, id=len(kept), inputs=sources, attributes=attributes))
    renumbered = Graph(
        graph.name,
        tuple(kept),
        tuple(renumber[i] for i in graph.inputs),
        tuple(renumber[i] for i in graph.scalars if i not in unused),
        tuple(renumber[i] for i in graph.outputs),
    )
    return renumbered, tuple(kept_paths)
