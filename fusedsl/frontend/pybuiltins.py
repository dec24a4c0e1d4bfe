# SPDX-License-Identifier: Apache-2.0
"""Python's builtins on values of the trace."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.attributes import read_attribute
from fusedsl.frontend.callables import ScalarValue, TensorValue, lookup
from fusedsl.frontend.callables.values import host
from fusedsl.frontend.containers import iterate
from fusedsl.frontend.errors import (
    DataDependentBranch,
    HostValue,
    LoopTooLong,
    MissingAttribute,
    PrintCall,
    UnsupportedCall,
)
from fusedsl.frontend.operators import binary, object_of
from fusedsl.frontend.queries import length
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import SYMBOLIC, Captured, Function, Super, describe, hints

_MISSING = object()
_RANGE_LIMIT = 10_000


def _len(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> Any:
    if isinstance(value, TensorValue):
        return length(tr, frame, node, value)
    if isinstance(value, Captured):
        number = tr.run_static(frame, node, len, value.value)
        tr.at(frame, node)
        tr.captures.guard(value.path, "length", number, f"len({value.path}) == {number}")
        return number
    return tr.run_static(frame, node, len, value)


def _range(tr: Tracer, frame: Frame, node: ast.AST, *args: Any) -> range:
    for arg in args:
        if isinstance(arg, TensorValue):
            tr.fail(HostValue, frame, node, what="range", hint="a number, or the size of a dim")
    tr.at(frame, node)
    found: range = tr.run_static(frame, node, range, *(tr.static(x) for x in args))
    if len(found) > _RANGE_LIMIT:
        tr.fail(LoopTooLong, frame, node, limit=_RANGE_LIMIT)
    return found


def _isinstance(tr: Tracer, frame: Frame, node: ast.AST, value: Any, classes: Any) -> bool:
    classes = tr.static(classes)
    flat = classes if isinstance(classes, tuple) else (classes,)
    if isinstance(value, TensorValue):
        example = tr.captures.example(value)
        index = tr.captures.input_index(value)
        kind = torch.Tensor if example is None else type(example)
        if example is not None and index is not None and any(c is not torch.Tensor for c in flat):
            path = tr.captures.tensors[index]
            tr.at(frame, node)
            answer = isinstance(example, flat)
            tr.captures.guard(path, "instance", (flat, answer), f"isinstance({path}, ...) is {answer}")
            return answer
        return bool(tr.run_static(frame, node, issubclass, kind, flat))
    plain = value.hint if isinstance(value, ScalarValue) else object_of(value)
    return bool(tr.run_static(frame, node, isinstance, plain, flat))


def _type(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> type:
    if isinstance(value, TensorValue):
        return torch.Tensor
    return type(value.hint if isinstance(value, ScalarValue) else object_of(value))


def _getattr(tr: Tracer, frame: Frame, node: ast.AST, owner: Any, name: Any, default: Any = _MISSING) -> Any:
    if default is _MISSING:
        return read_attribute(tr, frame, node, owner, name)
    return read_attribute(tr, frame, node, owner, name) if _hasattr(tr, frame, node, owner, name) else default


def _hasattr(tr: Tracer, frame: Frame, node: ast.AST, owner: Any, name: Any) -> bool:
    if isinstance(owner, Captured):
        answer = hasattr(owner.value, name)
        tr.at(frame, node)
        tr.captures.guard(owner.path, "has", (name, answer), f"hasattr({owner.path}, {name!r}) is {answer}")
        return answer
    if isinstance(owner, TensorValue):
        return hasattr(torch.Tensor, name)
    try:
        read_attribute(tr, frame, node, owner, name)
    except MissingAttribute:
        return False
    return True


def _callable(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> bool:
    if isinstance(value, SYMBOLIC) and not isinstance(value, Captured):
        return not isinstance(value, (TensorValue, ScalarValue, Super))
    return callable(object_of(value))


# numbers --------------------------------------------------------------------------------------------------------------


def _number(kind: type) -> Callable[..., Any]:
    def convert(tr: Tracer, frame: Frame, node: ast.AST, *args: Any) -> Any:
        for arg in args:
            if isinstance(arg, TensorValue):
                hint = "keep it as a 0-dim tensor" if kind is not bool else "torch.where(...)"
                tr.fail(HostValue, frame, node, what=f"{kind.__name__}()", hint=hint)
        if len(args) == 1 and isinstance(args[0], ScalarValue):
            if kind is bool:
                return tr.condition(args[0])
            return tr.apply(frame, node, lambda builder, x: host(kind.__name__, x), args, {})
        if kind is bool and args:
            return tr.truth(frame, node, args[0], "'bool()'")
        return tr.run_static(frame, node, kind, *(tr.static(x) for x in args))

    return convert


def _extreme(function: Any) -> Callable[..., Any]:
    name = function.__name__

    def extreme(tr: Tracer, frame: Frame, node: ast.AST, *args: Any, **kwargs: Any) -> Any:
        items = list(iterate(tr, frame, node, args[0])) if len(args) == 1 else list(args)
        if any(isinstance(x, TensorValue) for x in items):
            hint = f"torch.{name}imum(a, b)"
            tr.fail(DataDependentBranch, frame, node, construct=f"'{name}'", hint=hint)
        if any(isinstance(x, ScalarValue) for x in items) and items and not kwargs:
            return items[0] if len(items) == 1 else tr.apply(frame, node, lambda builder, *x: host(name, *x), items, {})
        _no_symbols(tr, frame, node, name, [*items, *kwargs.values()])
        return tr.run_static(frame, node, function, items, **kwargs)

    return extreme


def _abs(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> Any:
    if isinstance(value, TensorValue):
        handler = lookup(torch.abs)
        assert handler is not None
        return tr.apply(frame, node, handler, (value,), {})
    if isinstance(value, ScalarValue):
        return host("abs", value)
    return tr.run_static(frame, node, abs, value)


def _round(tr: Tracer, frame: Frame, node: ast.AST, value: Any, ndigits: Any = None) -> Any:
    if isinstance(value, TensorValue):
        handler = lookup(torch.round)
        assert handler is not None
        return tr.apply(frame, node, handler, (value,), {} if ndigits is None else {"decimals": ndigits})
    if isinstance(value, ScalarValue) and ndigits is None:
        return host("round", value)
    return tr.run_static(frame, node, round, tr.static(value), tr.static(ndigits))


def _pow(tr: Tracer, frame: Frame, node: ast.AST, base: Any, exp: Any) -> Any:
    return binary(tr, frame, node, ast.Pow, base, exp)


def _divmod(tr: Tracer, frame: Frame, node: ast.AST, a: Any, b: Any) -> tuple[Any, Any]:
    return binary(tr, frame, node, ast.FloorDiv, a, b), binary(tr, frame, node, ast.Mod, a, b)


def _sum(tr: Tracer, frame: Frame, node: ast.AST, items: Any, start: Any = 0) -> Any:
    return functools.reduce(functools.partial(binary, tr, frame, node, ast.Add), iterate(tr, frame, node, items), start)


# containers -----------------------------------------------------------------------------------------------------------


def _container(kind: Any) -> Callable[..., Any]:
    def make(tr: Tracer, frame: Frame, node: ast.AST, items: Any = _MISSING) -> Any:
        return kind() if items is _MISSING else tr.run_static(frame, node, kind, iterate(tr, frame, node, items))

    return make


def _dict(tr: Tracer, frame: Frame, node: ast.AST, items: Any = _MISSING, **kwargs: Any) -> dict[Any, Any]:
    if items is _MISSING:
        return kwargs
    return {**tr.run_static(frame, node, dict, tr.static(items)), **kwargs}


def _zip(tr: Tracer, frame: Frame, node: ast.AST, *iterables: Any, strict: bool = False) -> list[Any]:
    parts = [list(iterate(tr, frame, node, x)) for x in iterables]
    return list(tr.run_static(frame, node, lambda: list(zip(*parts, strict=strict))))


def _enumerate(tr: Tracer, frame: Frame, node: ast.AST, items: Any, start: Any = 0) -> list[Any]:
    return list(enumerate(iterate(tr, frame, node, items), tr.static(start)))


def _reversed(tr: Tracer, frame: Frame, node: ast.AST, items: Any) -> list[Any]:
    return list(iterate(tr, frame, node, items))[::-1]


def _sorted(tr: Tracer, frame: Frame, node: ast.AST, items: Any, *, key: Any = None, reverse: Any = False) -> list[Any]:
    parts = list(iterate(tr, frame, node, items))
    keys = parts if key is None else [tr.call(frame, node, key, (x,), {}) for x in parts]
    keys = [tr.static(x) for x in keys]
    _no_symbols(tr, frame, node, "sorted", keys)
    order = tr.run_static(frame, node, lambda: sorted(range(len(parts)), key=keys.__getitem__, reverse=reverse))
    return [parts[i] for i in order]


def _map(tr: Tracer, frame: Frame, node: ast.AST, function: Any, *iterables: Any) -> list[Any]:
    return [tr.call(frame, node, function, x, {}) for x in _zip(tr, frame, node, *iterables)]


def _filter(tr: Tracer, frame: Frame, node: ast.AST, function: Any, items: Any) -> list[Any]:
    def keeps(item: Any) -> bool:
        return tr.truth(
            frame, node, item if function is None else tr.call(frame, node, function, (item,), {}), "'filter'"
        )

    return [item for item in iterate(tr, frame, node, items) if keeps(item)]


def _reduce(tr: Tracer, frame: Frame, node: ast.AST, function: Any, items: Any, *initial: Any) -> Any:
    def step(a: Any, b: Any) -> Any:
        return tr.call(frame, node, function, (a, b), {})

    return tr.run_static(frame, node, functools.reduce, step, iterate(tr, frame, node, items), *initial)


def _quantifier(function: Any) -> Callable[..., bool]:
    def decide(tr: Tracer, frame: Frame, node: ast.AST, items: Any) -> bool:
        if isinstance(items, TensorValue):
            tr.fail(
                DataDependentBranch, frame, node, construct=f"'{function.__name__}'", hint=f"x.{function.__name__}()"
            )
        hint = f"torch.{function.__name__}"
        parts = list(iterate(tr, frame, node, items))
        return bool(function(tr.truth(frame, node, x, f"'{function.__name__}'", hint) for x in parts))

    return decide


def _text(function: Any) -> Callable[..., str]:
    def show(tr: Tracer, frame: Frame, node: ast.AST, *args: Any) -> str:
        if any(isinstance(x, TensorValue) for x in args):
            hint = "format it outside the fused function"
            tr.fail(HostValue, frame, node, what=f"{function.__name__}()", hint=hint)
        return str(tr.run_static(frame, node, function, *(hints(tr.static_inside(x)) for x in args)))

    return show


# refusals -------------------------------------------------------------------------------------------------------------


def _print(tr: Tracer, frame: Frame, node: ast.AST, *args: Any, **kwargs: Any) -> None:
    tr.fail(PrintCall, frame, node)


def _refuse(name: str, reason: str) -> Callable[..., Any]:
    def refuse(tr: Tracer, frame: Frame, node: ast.AST, *args: Any, **kwargs: Any) -> Any:
        tr.fail(UnsupportedCall, frame, node, name=f"'{name}'", reason=reason, hint=_HINTS.get(name))

    return refuse


_HINTS = {"breakpoint": "fn.reference(...), which runs the plain function; debuggers also stop in kernel text"}


def _no_symbols(tr: Tracer, frame: Frame, node: ast.AST, name: str, items: list[Any]) -> None:
    bad = next((x for x in items if isinstance(x, SYMBOLIC)), None)
    if bad is not None:
        tr.fail(UnsupportedCall, frame, node, name=f"'{name}'", reason=f"it compares {describe(bad)}", hint=None)


def _super(tr: Tracer, frame: Frame, node: ast.AST, *args: Any) -> Super:
    captured: Function = frame.captured()
    function = captured.function
    free = () if function is None else function.__code__.co_freevars
    first = next(iter(frame.values.values()), None)
    if args or function is None or "__class__" not in free or not isinstance(first, Captured):
        tr.fail(UnsupportedCall, frame, node, name="'super'", reason="it is not a plain super() in a method", hint=None)
    return Super((function.__closure__ or ())[free.index("__class__")].cell_contents, first)


BUILTINS: dict[Any, Callable[..., Any]] = {
    abs: _abs,
    all: _quantifier(all),
    any: _quantifier(any),
    bool: _number(bool),
    callable: _callable,
    dict: _dict,
    divmod: _divmod,
    enumerate: _enumerate,
    filter: _filter,
    float: _number(float),
    format: _text(format),
    functools.reduce: _reduce,
    getattr: _getattr,
    hasattr: _hasattr,
    int: _number(int),
    isinstance: _isinstance,
    iter: _container(list),
    len: _len,
    list: _container(list),
    map: _map,
    max: _extreme(max),
    min: _extreme(min),
    pow: _pow,
    print: _print,
    range: _range,
    repr: _text(repr),
    reversed: _reversed,
    round: _round,
    set: _container(set),
    sorted: _sorted,
    str: _text(str),
    sum: _sum,
    super: _super,
    tuple: _container(tuple),
    type: _type,
    zip: _zip,
}
for _name, _reason in [
    ("breakpoint", "the function is read, not run"),
    ("compile", "the function is read, not run"),
    ("delattr", "it changes an object, which would outlive the call"),
    ("dir", "it depends on more than values"),
    ("eval", "the function is read, not run"),
    ("exec", "the function is read, not run"),
    ("globals", "it depends on more than values"),
    ("hash", "it depends on more than values"),
    ("id", "it depends on more than values"),
    ("input", "it talks to the outside"),
    ("locals", "it depends on more than values"),
    ("next", "iterators have no state while tracing"),
    ("open", "it talks to the outside"),
    ("setattr", "it changes an object, which would outlive the call"),
    ("vars", "it depends on more than values"),
]:
    BUILTINS[getattr(builtins, _name)] = _refuse(_name, _reason)
