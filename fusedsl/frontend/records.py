# SPDX-License-Identifier: Apache-2.0
"""What tracing hands on: paths to values, guards, the tree of results, and the Trace."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import attrs

from fusedsl.graph.graph import Graph
from fusedsl.graph.span import SourceSpan


@attrs.frozen
class AccessPath:
    """How to fetch a value at call time.

    Attributes:
        root: "argument" (of the fused function), "closure" (a free variable of it), "global" (of its module) or "draw"
            (a new :class:`fusedsl.graph.random.Draw` at every call).
        name: parameter, free variable or global name; of a draw, its node's.
        steps: ("attribute", name) or ("item", key) pairs, applied in order.
    """

    root: str
    name: str
    steps: tuple[tuple[str, Any], ...] = ()

    def attribute(self, name: str) -> AccessPath:
        """The path of an attribute of the value."""
        return AccessPath(self.root, self.name, (*self.steps, ("attribute", name)))

    def item(self, key: Any) -> AccessPath:
        """The path of an item of the value."""
        return AccessPath(self.root, self.name, (*self.steps, ("item", key)))

    def fetch(self, arguments: Mapping[str, Any], fn: types.FunctionType) -> Any:
        """The value now; raises what the steps raise (AttributeError, LookupError, ValueError for an empty cell)."""
        match self.root:
            case "argument":
                value = arguments[self.name]
            case "closure":
                value = (fn.__closure__ or ())[fn.__code__.co_freevars.index(self.name)].cell_contents
            case "global":
                value = fn.__globals__[self.name]
            case _:
                raise AssertionError(f"unknown root {self.root}")
        for kind, key in self.steps:
            value = getattr(value, key) if kind == "attribute" else value[key]
        return value

    def __str__(self) -> str:
        text = self.name
        for kind, key in self.steps:
            text += f".{key}" if kind == "attribute" else f"[{key!r}]"
        return text


@attrs.frozen
class Guard:
    """A condition under which a trace holds.

    Attributes:
        path: the value that is checked; for "same_size" and "condition" the first one.
        check: what is checked, of the value ``v`` at ``path``:

            * "is": ``v is value``
            * "equal": same type and equal (NaN equals NaN, 0.0 differs from -0.0)
            * "type": ``type(v) is value``
            * "instance": ``isinstance(v, value[0])`` is ``value[1]``
            * "length": ``len(v) == value``
            * "keys": ``tuple(v) == value`` (a dict's keys in order)
            * "has": ``hasattr(v, value[0])`` is ``value[1]``
            * "absent": the module has no such global, so the name is a builtin
            * "code": ``v.__code__ is value`` (a function's text)
            * "size": value is (dim, extent): ``v.shape[dim] == extent``
            * "same_size": value is (dim, other path, other dim): two extents are equal
            * "condition": value is (expression, truth): an expression on host numbers has this truth; expressions are
              ("constant", number), ("number", path), ("size", path, dim), ("call", host function name, expressions)
        value: what it is compared with.
        reason: one line for people: file:line and the condition.
    """

    path: AccessPath
    check: str
    value: Any
    reason: str = attrs.field(default="", eq=False)


@attrs.frozen
class OutputValue:
    """``graph.outputs[index]``."""

    index: int


@attrs.frozen
class OutputInput:
    """The tensor at ``Trace.tensors[index]`` itself."""

    index: int


@attrs.frozen
class OutputStatic:
    """A Python value known when tracing."""

    value: Any


@attrs.frozen
class Update:
    """An argument or captured tensor that the function changes in place: its value at the end is an output.

    Attributes:
        output: index of the output.
        input: index of the tensor in ``Trace.tensors``.
        recorded: whether autograd would record the change (it was not made inside ``torch.no_grad()`` throughout).
        operation: as the user wrote it, quoted.
        span: where.
    """

    output: int
    input: int
    recorded: bool = True
    operation: str = ""
    span: SourceSpan | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class SourceFunction:
    """A user function whose text took part in the trace."""

    name: str
    file: str
    line: int
    text: str


@attrs.frozen(eq=False)
class Trace:
    """A function as a graph, with what is needed to call it.

    Attributes:
        graph: the graph; its inputs and scalar inputs are in the order of ``tensors`` and ``scalars``.
        tensors: where the graph's tensor inputs come from.
        scalars: where its scalar inputs come from.
        outputs: nested tuple (named tuples too), list or dict of OutputValue, OutputInput and OutputStatic.
        updates: the tensors that are changed in place; their new values are the graph's last outputs.
        guards: the conditions under which the trace holds, beside the dtype, rank, device and 0-or-1
            extents of tensors.
        functions: every function whose source was read, in order of reading.
    """

    graph: Graph
    tensors: tuple[AccessPath, ...]
    scalars: tuple[AccessPath, ...]
    outputs: Any
    guards: tuple[Guard, ...]
    functions: tuple[SourceFunction, ...]
    updates: tuple[Update, ...] = ()
