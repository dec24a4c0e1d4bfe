# SPDX-License-Identifier: Apache-2.0
"""The state of one trace, and what every part of the visitor needs: evaluating, deciding, calling handlers, failing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import attrs
import torch

from fusedsl.frontend.aliasing import Aliases
from fusedsl.frontend.callables import NeedsStatic, OpError, ScalarValue, TensorValue
from fusedsl.frontend.callables.updates import Updating
from fusedsl.frontend.callables.values import detached, host
from fusedsl.frontend.captures import Captures
from fusedsl.frontend.errors import (
    DataDependentBranch,
    FrontendError,
    OperationFailed,
    StaticFailure,
    UnsupportedExpression,
)
from fusedsl.frontend.records import AccessPath, SourceFunction
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.source import FunctionSource
from fusedsl.frontend.values import SYMBOLIC, Captured, describe
from fusedsl.graph.builder import Builder
from fusedsl.graph.span import FuseError, SourceSpan

Evaluate = Callable[["Tracer", Frame, Any], Any]


@attrs.frozen
class TraceOptions:
    """What changes a trace.

    Attributes:
        fallback: "opaque" (calls that the table does not know are run by eager torch) or "error".
    """

    fallback: str = "opaque"


@attrs.frozen
class Walkers:
    """The parts of the visitor, tied together: a function for each kind of node, and the call."""

    expressions: Mapping[type[ast.expr], Evaluate]
    statements: Mapping[type[ast.stmt], Evaluate]
    call: Callable[..., Any]


@attrs.frozen
class Changed:
    """An in-place operation on an argument: as the user wrote it, whether autograd would record it, and where."""

    operation: str
    recorded: bool
    span: SourceSpan


class Signal:
    """How a block of statements ended, if not by running to its end."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: Any = None) -> None:
        self.kind = kind  # "break", "continue" or "return"
        self.value = value


class Tracer:
    """One trace under way."""

    def __init__(self, name: str, module: dict[str, Any], options: Any, walkers: Walkers) -> None:
        self.builder = Builder(name)
        self.captures = Captures(self.builder, self._where, module)
        self.aliases = Aliases(self.builder)
        self.fallback: str = getattr(options, "fallback", "opaque")
        self.walkers = walkers
        self.functions: dict[int, SourceFunction] = {}
        self.device = torch.device("cpu")
        self.recording = True  # False inside torch.no_grad()
        self.changes: dict[int, Changed] = {}  # by the index of the argument
        self._place: tuple[FunctionSource, ast.AST] | None = None

    # walking -------------------------------------------------------------------------------------------------------

    def evaluate(self, frame: Frame, node: ast.expr) -> Any:
        """The value of an expression."""
        walk = self.walkers.expressions.get(type(node))
        if walk is None:
            self.fail(UnsupportedExpression, frame, node, what=f"'{type(node).__name__.lower()}'", hint=None)
        return walk(self, frame, node)

    def execute(self, frame: Frame, body: Sequence[ast.stmt]) -> Signal | None:
        """Run statements; a Signal if they end early."""
        for statement in body:
            signal = self.walkers.statements[type(statement)](self, frame, statement)
            if signal is not None:
                return signal  # type: ignore[no-any-return]
        return None

    def call(self, frame: Frame, node: ast.AST, callee: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call any callable value."""
        return self.walkers.call(self, frame, node, callee, args, kwargs)

    def at(self, frame: Frame, node: ast.AST) -> None:
        """Say which node is being walked, for spans and guard reasons."""
        self._place = (frame.source, node)

    def _where(self) -> str:
        if self._place is None:
            return self.builder.name
        source, node = self._place
        return f"{source.file}:{node.lineno + source.shift}"  # type: ignore[attr-defined]

    def here(self) -> SourceSpan | None:
        """The user's source that is being walked."""
        return None if self._place is None else self._place[0].span(self._place[1])

    def fail(self, error: type[FrontendError], frame: Frame, node: ast.AST, **fields: Any) -> NoReturn:
        """Raise ``error`` at the user's line."""
        raise error(frame.source.span(node), **fields) from None

    def changed(self, argument: int, change: Changed) -> None:
        """Note that an argument was changed in place; of several changes the first one that is recorded counts."""
        known = self.changes.get(argument)
        if known is None or (change.recorded and not known.recorded):
            self.changes[argument] = change

    # host values ---------------------------------------------------------------------------------------------------

    def static(self, value: Any) -> Any:
        """A host scalar as the number it has now (guarded), a captured container as a container; others as they are."""
        if isinstance(value, ScalarValue):
            return self.concretize(value)
        if self.captures.is_container(value):
            return self.captures.contents(value)
        return value

    def static_inside(self, value: Any) -> Any:
        """``static``, and the items of lists, tuples and dicts too."""
        value = self.static(value)
        if type(value) in (list, tuple):
            return type(value)(self.static_inside(item) for item in value)
        if type(value) is dict:
            return {key: self.static_inside(item) for key, item in value.items()}
        return value

    def concretize(self, value: ScalarValue) -> bool | int | float:
        """The number a host scalar has now; the trace then holds for this number only."""
        node = self.builder.nodes[value.id]
        path = self.captures.number_path(value.id)
        if path is not None:
            self.captures.guard(path, "equal", value.hint, f"{path} == {value.hint!r}")
        elif node.op != "constant":
            expression = self.captures.expression(value.id)
            if expression is None:
                self.captures.guard_all_sizes()
            elif expression[0] == "size":
                self.captures.guard_size(expression[1], expression[2], int(value.hint))
            else:
                self.condition(host("eq", value, value.hint))
        return value.hint

    def condition(self, value: Any) -> bool:
        """The truth of a host scalar; the trace then holds while the truth stays."""
        if not isinstance(value, ScalarValue):
            return bool(value)
        truth = bool(value.hint)
        expression = self.captures.expression(value.id)
        if expression is None:
            self.captures.guard_all_sizes()
        elif expression[0] != "constant":
            text = show(expression)
            first = first_path(expression)
            words = text if truth else f"not {text}"
            self.captures.guard(first, "condition", (expression, truth), words)
        return truth

    def truth(self, frame: Frame, node: ast.AST, value: Any, construct: str, hint: str | None = None) -> bool:
        """The truth of any value, as ``if`` sees it."""
        self.at(frame, node)
        if isinstance(value, TensorValue):
            self.fail(DataDependentBranch, frame, node, construct=construct, hint=hint)
        if isinstance(value, ScalarValue):
            return self.condition(value)
        value = self.static(value)
        if isinstance(value, Captured):
            if hasattr(type(value.value), "__bool__") or hasattr(type(value.value), "__len__"):
                self.fail(UnsupportedExpression, frame, node, what=f"the truth of {describe(value)}", hint=None)
            return True
        return True if isinstance(value, SYMBOLIC) else bool(value)

    # operations ----------------------------------------------------------------------------------------------------

    def apply(
        self, frame: Frame, node: ast.AST, handler: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a handler of the table; NotImplemented if it cannot express the call."""
        self.at(frame, node)
        self.builder.span = frame.source.span(node)
        args_, kwargs_ = tuple(self._operand(x) for x in args), {k: self._operand(x) for k, x in kwargs.items()}
        while True:
            try:
                result = handler(self.builder, *args_, **kwargs_)
            except NeedsStatic as error:
                number = self.concretize(error.value)
                replaced = (_replace(args_, error.value.id, number), _replace(kwargs_, error.value.id, number))
                if replaced == (args_, kwargs_):
                    self._fail_operation(frame, node, error)
                args_, kwargs_ = replaced
            except FrontendError:
                raise
            except OpError as error:
                self._fail_operation(frame, node, error)
            else:
                if isinstance(result, Updating):
                    made = self.aliases.track(self.unrecorded(result.result, args_), args_, kwargs_)
                    return Updating(made, result.updates)
                return self.aliases.track(self.unrecorded(result, args_), args_, kwargs_)

    def unrecorded(self, result: Any, operands: Sequence[Any] = ()) -> Any:
        """``result`` of an operation; inside ``torch.no_grad()`` new tensors carry no gradient."""
        if self.recording or any(result is operand for operand in operands):
            return result
        if isinstance(result, TensorValue):
            return detached(result)
        if isinstance(result, (tuple, list)):
            items = [self.unrecorded(item, operands) for item in result]
            return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
        return result

    def _operand(self, value: Any) -> Any:
        if self.captures.is_container(value):
            return self.captures.contents(value)
        if isinstance(value, Captured):
            return value.value
        return value

    def _fail_operation(self, frame: Frame, node: ast.AST, error: FuseError) -> NoReturn:
        self.fail(
            OperationFailed,
            frame,
            node,
            reason=error.message,
            expected=error.expected or "None",
            hint=error.hint or "None",
        )

    def run_static(self, frame: Frame, node: ast.AST, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run plain Python on static values; its exception becomes an error at the user's line."""
        try:
            return function(*args, **kwargs)
        except FuseError:
            raise
        except Exception as error:
            reason = repr(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
            self.fail(StaticFailure, frame, node, kind=type(error).__name__, reason=reason)


def _replace(item: Any, node_id: int, number: Any) -> Any:
    """``item`` with the host scalar ``node_id`` replaced by a number, inside tuples, lists, dicts and slices too."""
    if isinstance(item, ScalarValue):
        return number if item.id == node_id else item
    if isinstance(item, (tuple, list)):
        items = [_replace(x, node_id, number) for x in item]
        return type(item)(*items) if hasattr(item, "_fields") else type(item)(items)
    if isinstance(item, dict):
        return {key: _replace(x, node_id, number) for key, x in item.items()}
    if isinstance(item, slice):
        return slice(*(_replace(x, node_id, number) for x in (item.start, item.stop, item.step)))
    return item


def first_path(expression: Any) -> AccessPath:
    """The first call-time value an expression reads."""
    if expression[0] in ("number", "size"):
        return expression[1]  # type: ignore[no-any-return]
    for operand in expression[2]:
        if operand[0] != "constant":
            return first_path(operand)
    raise AssertionError("an expression of constants alone")


_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "eq": "=="}
_SYMBOLS |= {"ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and_": "&", "or_": "|"}


def show(expression: Any) -> str:
    """An expression on host numbers as Python text."""
    match expression[0]:
        case "constant":
            return repr(expression[1])
        case "number":
            return str(expression[1])
        case "size":
            return f"{expression[1]}.shape[{expression[2]}]"
    function, operands = expression[1], [show(x) for x in expression[2]]
    if function in _SYMBOLS and len(operands) == 2:
        return f"({operands[0]} {_SYMBOLS[function]} {operands[1]})"
    return f"{function}({', '.join(operands)})"
