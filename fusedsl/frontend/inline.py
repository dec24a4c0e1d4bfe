# SPDX-License-Identifier: Apache-2.0
"""Calling Python functions: parameters are bound to values and the body is walked in a frame of its own."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fusedsl.frontend.errors import (
    AsyncFunction,
    GeneratorFunction,
    RecursionTooDeep,
    SourceChanged,
    SourceNotAvailable,
    UnsupportedCall,
    WrongArguments,
)
from fusedsl.frontend.records import SourceFunction
from fusedsl.frontend.scope import Frame, local_names
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import Function

#: Calls inside calls; deeper nesting is taken for a recursion without an end.
DEPTH_LIMIT = 50


def inline(
    tr: Tracer, frame: Frame, node: ast.AST, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result of calling ``function``."""
    if frame.depth >= DEPTH_LIMIT:
        tr.fail(RecursionTooDeep, frame, node, limit=DEPTH_LIMIT, name=function.name)
    try:
        source = function.source()
    except (SourceNotAvailable, SourceChanged, AsyncFunction, GeneratorFunction) as error:
        tr.fail(UnsupportedCall, frame, node, name=f"'{function.name}'", reason=error.message, hint=error.hint)
    inner = Frame(source, local_names(source.node), function.frame, function, frame.depth + 1)
    tr.at(frame, node)
    _bind_parameters(tr, frame, node, function, inner, args, kwargs)
    return walk_body(tr, inner)


def walk_body(tr: Tracer, frame: Frame) -> Any:
    """Walk the body of a frame whose parameters are bound; its return value."""
    source = frame.source
    if id(source.node) not in tr.functions:
        tr.functions[id(source.node)] = SourceFunction(source.name, source.file, source.line, source.text)
    if isinstance(source.node, ast.Lambda):
        return tr.evaluate(frame, source.node.body)
    signal = tr.execute(frame, source.node.body)
    return None if signal is None else signal.value


def _bind_parameters(
    tr: Tracer,
    frame: Frame,
    node: ast.AST,
    function: Function,
    inner: Frame,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    arguments = inner.source.node.args
    try:
        bound = _signature(arguments).bind(*args, **kwargs).arguments
    except TypeError as error:
        expected = f"{function.name}({ast.unparse(arguments)})"
        tr.fail(WrongArguments, frame, node, function=function.name, reason=str(error), expected=expected)
    values = inner.values
    values.update(bound)
    positional = [*arguments.posonlyargs, *arguments.args]
    first = len(positional) - len(arguments.defaults)
    for index, parameter in enumerate(positional[first:]):
        if parameter.arg not in bound:
            values[parameter.arg] = _default(tr, function, index)
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None and parameter.arg not in bound:
            values[parameter.arg] = _keyword_default(tr, function, parameter.arg)
    if arguments.vararg is not None:
        values.setdefault(arguments.vararg.arg, ())
    if arguments.kwarg is not None:
        values.setdefault(arguments.kwarg.arg, {})


def _default(tr: Tracer, function: Function, index: int) -> Any:
    if function.function is None or function.path is None:
        return function.defaults[index]
    defaults = function.function.__defaults__ or ()
    return tr.captures.wrap(defaults[index], function.path.attribute("__defaults__").item(index))


def _keyword_default(tr: Tracer, function: Function, name: str) -> Any:
    if function.function is None or function.path is None:
        return function.kwdefaults[name]
    defaults = function.function.__kwdefaults__ or {}
    return tr.captures.wrap(defaults[name], function.path.attribute("__kwdefaults__").item(name))


def _signature(arguments: ast.arguments) -> inspect.Signature:
    kinds = inspect.Parameter
    found: list[inspect.Parameter] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = len(positional) - len(arguments.defaults)
    for index, argument in enumerate(positional):
        kind = kinds.POSITIONAL_ONLY if index < len(arguments.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
        found.append(kinds(argument.arg, kind, default=None if index >= optional else kinds.empty))
    if arguments.vararg is not None:
        found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        empty = kinds.empty if default is None else None
        found.append(kinds(argument.arg, kinds.KEYWORD_ONLY, default=empty))
    if arguments.kwarg is not None:
        found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)
