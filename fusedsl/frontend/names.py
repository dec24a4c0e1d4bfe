# SPDX-License-Identifier: Apache-2.0
"""Names: reading them by Python's rules, and binding them."""

from __future__ import annotations

import ast
import builtins
import difflib
from typing import Any

from fusedsl.frontend.callables import ScalarValue, TensorValue
from fusedsl.frontend.errors import UnassignedName, UndefinedName
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import Function


def read_name(tr: Tracer, frame: Frame, node: ast.Name) -> Any:
    """A name by Python's rules: local, enclosing function, module, builtins."""
    name = node.id
    owner = frame.owner(name)
    if owner is not None:
        if name not in owner.values:
            tr.fail(UnassignedName, frame, node, name=name)
        return owner.values[name]
    tr.at(frame, node)
    captured: Function = frame.captured()
    function = captured.function
    assert function is not None
    free = function.__code__.co_freevars
    if name in free:
        try:
            value = (function.__closure__ or ())[free.index(name)].cell_contents
        except ValueError:
            tr.fail(UnassignedName, frame, node, name=name)
        return tr.captures.wrap(value, captured.closure_path(free.index(name)))
    if name in function.__globals__:
        return tr.captures.wrap(function.__globals__[name], tr.captures.global_path(captured, name))
    if hasattr(builtins, name):
        path = tr.captures.global_path(captured, name)
        tr.captures.guard(path, "absent", None, f"{name} is Python's own")
        return getattr(builtins, name)
    return tr.fail(UndefinedName, frame, node, name=name, hint=_suggest(name, frame, function.__globals__))


def _suggest(name: str, frame: Frame, module: dict[str, Any]) -> str | None:
    known = set(module)
    current: Frame | None = frame
    while current is not None:
        known |= current.names
        current = current.parent
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"'{close[0]}'" if close else None


def assign_target(tr: Tracer, frame: Frame, name: str, value: Any) -> None:
    """Bind a name; a computed value takes it as its own name in the graph."""
    owner = frame.owner(name) or frame
    owner.values[name] = value
    if isinstance(value, (TensorValue, ScalarValue)):
        tr.builder.rename(value.id, name)
