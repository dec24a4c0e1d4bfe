# SPDX-License-Identifier: Apache-2.0
"""Guards and access paths as fast functions: Python text generated once a trace.

* ``compile_guards(trace, fn)`` -> ``check(arguments) -> bool``
* ``compile_accessors(trace, fn)`` -> ``fetch(arguments) -> (tensors, scalars)``
* ``explain_failure(trace, fn, arguments)`` -> the first guard that does not hold, in words

``arguments`` maps every parameter of ``fn`` to its value (``BoundArguments.arguments`` after ``apply_defaults``).
``fn`` is the fused function itself; its closure and globals are read at every call.
"""

from __future__ import annotations

import linecache
import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from fusedsl.frontend.records import AccessPath, Guard, Trace
from fusedsl.graph.host import host_function
from fusedsl.graph.random import Draw

#: What a guard's code may raise when the value it reads is not there any more.
_GONE = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError)
_STATIC_TYPES = (bool, str, type(None), torch.dtype, torch.device, bytes)

Arguments = Mapping[str, Any]


def compile_guards(
    trace: Trace, fn: types.FunctionType, select: Callable[[Guard], bool] | None = None
) -> Callable[[Arguments], bool]:
    """A function that tells whether the trace holds for these arguments and for the captured values as they are now.

    Args:
        trace: a trace of ``fn``.
        fn: the fused function.
        select: which guards to check; default all. ``is_volatile`` selects those a dispatch key does not cover.
    """
    guards = [guard for guard in trace.guards if select is None or select(guard)]
    text = _Text(fn)
    for guard in guards:
        text.line(f"if not ({_condition(text, guard)}): return False")
    return text.function("check", "return True", guarded=True)


def compile_accessors(
    trace: Trace, fn: types.FunctionType
) -> Callable[[Arguments], tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """A function that fetches the graph's tensors and scalars; raises what a missing attribute or item raises."""
    text = _Text(fn)
    names = [text.path(path) for path in trace.tensors]
    tensors = _tuple(names)
    scalars = _tuple(text.draw(names) if path.root == "draw" else text.path(path) for path in trace.scalars)
    return text.function("fetch", f"return {tensors}, {scalars}", guarded=False)


def explain_failure(trace: Trace, fn: types.FunctionType, arguments: Arguments) -> str | None:
    """Reason of the first guard that fails; None if all hold."""
    for guard in trace.guards:
        text = _Text(fn)
        text.line(f"if not ({_condition(text, guard)}): return False")
        if not text.function("check", "return True", guarded=True)(arguments):
            return f"{guard.reason}{_now(guard, fn, arguments)}"
    return None


def is_volatile(guard: Guard) -> bool:
    """Whether a guard must be checked at every call, even if all tensors look the same and static arguments are equal.

    Guards that read only shapes of tensor arguments, or static arguments (bool, str, None, dtype), are covered by a key
    made of them; those that read captured values, attributes, items or numbers are not.
    """
    match guard.check:
        case "size":
            return _is_nested(guard.path)
        case "same_size":
            return _is_nested(guard.path) or _is_nested(guard.value[1])
        case "condition":
            return not _reads_shapes_only(guard.value[0])
        case "is" | "equal":
            return _is_nested(guard.path) or type(guard.value) not in _STATIC_TYPES
    return True


def _is_nested(path: AccessPath) -> bool:
    return path.root != "argument" or bool(path.steps)


def _reads_shapes_only(expression: Any) -> bool:
    match expression[0]:
        case "constant":
            return True
        case "size":
            return not _is_nested(expression[1])
        case "call":
            return all(_reads_shapes_only(x) for x in expression[2])
    return False


def _now(guard: Guard, fn: types.FunctionType, arguments: Arguments) -> str:
    """What the guarded value is now, for checks where that helps."""
    if guard.check not in ("is", "equal", "size", "length"):
        return ""
    try:
        value = guard.path.fetch(arguments, fn)
        if guard.check == "size":
            value = value.shape[guard.value[0]]
        elif guard.check == "length":
            value = len(value)
    except _GONE:
        return ", it is gone now"
    shown = repr(value) if isinstance(value, (bool, int, float, str, type(None), torch.dtype)) else type(value).__name__
    return f", it is {shown} now"


def _tuple(items: Iterable[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items) + ")"


class _Text:
    """Source of one generated function; equal prefixes of paths are fetched once."""

    def __init__(self, fn: types.FunctionType) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"fn": fn, "module": fn.__globals__, "closure": fn.__closure__}
        self.free = fn.__code__.co_freevars
        self._paths: dict[AccessPath, str] = {}

    def line(self, text: str) -> None:
        self.lines.append(text)

    def constant(self, value: Any) -> str:
        """A name for any object."""
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def path(self, path: AccessPath) -> str:
        """A local variable that holds the value at a path."""
        if path not in self._paths:
            self._paths[path] = name = f"v{len(self._paths)}"
            self.line(f"{name} = {self._fetch(path)}")
        return self._paths[path]

    def _fetch(self, path: AccessPath) -> str:
        if not path.steps:
            match path.root:
                case "argument":
                    return f"arguments[{path.name!r}]"
                case "closure":
                    return f"closure[{self.free.index(path.name)}].cell_contents"
                case _:
                    return f"module[{path.name!r}]"
        kind, key = path.steps[-1]
        owner = self.path(AccessPath(path.root, path.name, path.steps[:-1]))
        if kind == "attribute":
            return f"{owner}.{key}"
        return f"{owner}[{key!r}]" if type(key) in (int, str) else f"{owner}[{self.constant(key)}]"

    def draw(self, tensors: list[str]) -> str:
        """A new draw of random numbers on the device of the call's tensors."""
        device = f"{tensors[0]}.device" if tensors else self.constant(torch.device("cpu"))
        return f"{self.constant(Draw)}({device})"

    def owner(self, path: AccessPath) -> str:
        """Text of the namespace in which the last name of a global path stands."""
        return self.path(AccessPath(path.root, path.name, path.steps[:-1])) if path.steps else "module"

    def function(self, name: str, last: str, guarded: bool) -> Callable[..., Any]:
        """Compile the lines into a function of ``arguments``; ``guarded``: a value that is gone gives False."""
        body = [*self.lines, last]
        if guarded:
            body = ["try:", *(f"    {line}" for line in body), "except GONE: return False"]
            self.names["GONE"] = _GONE
        text = f"def {name}(arguments):\n" + "".join(f"    {line}\n" for line in body)
        file = f"<fusedsl {name} {self.names['fn'].__qualname__}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), self.names)
        return self.names[name]  # type: ignore[no-any-return]


#: Python text of each check; ``v``: the value, ``c``: a name for what it is compared with, ``x``: that as text.
_CHECKS = {
    "is": "{v} is {c}",
    "type": "type({v}) is {c}",
    "instance": "isinstance({v}, {c}[0]) is {x[1]}",
    "length": "len({v}) == {x}",
    "keys": "tuple({v}) == {c}",
    "has": "hasattr({v}, {x[0]!r}) is {x[1]}",
    "code": "{v}.__code__ is {c}",
    "size": "{v}.shape[{x[0]}] == {x[1]}",
}


def _condition(text: _Text, guard: Guard) -> str:
    """Python text of a guard's condition."""
    value = guard.value
    match guard.check:
        case "equal":
            return _equal(text, text.path(guard.path), value)
        case "absent":
            name = guard.path.steps[-1][1] if guard.path.steps else guard.path.name
            return f"{name!r} not in {text.owner(guard.path)}"
        case "same_size":
            return f"{text.path(guard.path)}.shape[{value[0]}] == {text.path(value[1])}.shape[{value[2]}]"
        case "condition":
            return f"bool({_expression(text, value[0])}) is {value[1]}"
    return _CHECKS[guard.check].format(v=text.path(guard.path), c=text.constant(value), x=value)


def _equal(text: _Text, v: str, value: Any) -> str:
    kind = f"type({v}) is {type(value).__name__}" if type(value) in (int, float, str) else ""
    kind = kind or f"type({v}) is {text.constant(type(value))}"
    if type(value) is float and math.isnan(value):
        return f"{kind} and {v} != {v}"
    if type(value) is float and value == 0.0:
        return f"{kind} and {v} == 0.0 and str({v}) == {str(value)!r}"
    return f"{kind} and {v} == {text.constant(value)}"


def _expression(text: _Text, expression: Any) -> str:
    match expression[0]:
        case "constant":
            return text.constant(expression[1])
        case "number":
            return text.path(expression[1])
        case "size":
            return f"{text.path(expression[1])}.shape[{expression[2]}]"
        case "call":
            operands = ", ".join(_expression(text, x) for x in expression[2])
            return f"{text.constant(host_function(expression[1]))}({operands})"
        case kind:
            raise AssertionError(f"unknown expression {kind}")
