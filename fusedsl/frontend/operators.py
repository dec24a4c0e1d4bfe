# SPDX-License-Identifier: Apache-2.0
"""Operators and comparisons on any values."""

from __future__ import annotations

import ast
import operator
from typing import Any

from fusedsl.frontend.callables import ScalarValue, TensorValue, lookup_operator
from fusedsl.frontend.callables.values import host
from fusedsl.frontend.errors import HostValue, UnsupportedExpression
from fusedsl.frontend.opaque import call_opaque
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import SYMBOLIC, Captured, Function, describe

BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.MatMult: "matmul",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}


def binary(tr: Tracer, frame: Frame, node: ast.AST, op: type[ast.AST], left: Any, right: Any) -> Any:
    """An arithmetic operator or a comparison on any values."""
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        handler = lookup_operator(op)
        result = NotImplemented if handler is None else tr.apply(frame, node, handler, (left, right), {})
        if result is not NotImplemented:
            return result
        return call_opaque(tr, frame, node, getattr(operator, BINARY[op]), (left, right), {})
    if ScalarValue in (type(left), type(right)) and all(_is_number(x) for x in (left, right)):
        return _host_binary(tr, frame, node, BINARY[op], left, right)
    left, right = plain(tr, frame, node, left), plain(tr, frame, node, right)
    return tr.run_static(frame, node, getattr(operator, BINARY[op]), left, right)


def _is_number(value: Any) -> bool:
    return isinstance(value, (ScalarValue, bool, int, float))


def _host_binary(tr: Tracer, frame: Frame, node: ast.AST, name: str, left: Any, right: Any) -> Any:
    tr.at(frame, node)
    if name == "pow" and isinstance(right, ScalarValue) and type(right.hint) is int:
        tr.condition(host("ge", right, 0))
    return tr.apply(frame, node, lambda builder, *operands: host(name, *operands), (left, right), {})


def plain(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> Any:
    """A value that a Python operator can work on."""
    value = tr.static(value)
    if isinstance(value, SYMBOLIC):
        tr.fail(UnsupportedExpression, frame, node, what=f"an operator on {describe(value)}", hint=None)
    return value


def compare(tr: Tracer, frame: Frame, node: ast.AST, op: ast.cmpop, left: Any, right: Any) -> Any:
    """One comparison."""
    match op:
        case ast.Is():
            return _identical(tr, frame, node, left, right)
        case ast.IsNot():
            return not _identical(tr, frame, node, left, right)
        case ast.In():
            return _contains(tr, frame, node, left, right)
        case ast.NotIn():
            return not _contains(tr, frame, node, left, right)
    if isinstance(op, (ast.Eq, ast.NotEq)) and not _is_number_like(left, right):
        found = _equal(tr, left, right)
        if found is not None:
            return found is isinstance(op, ast.Eq)
    return binary(tr, frame, node, type(op), left, right)


def _is_number_like(left: Any, right: Any) -> bool:
    return any(isinstance(x, (TensorValue, ScalarValue)) for x in (left, right)) and not any(
        isinstance(x, (str, list, tuple, dict, Captured, Function)) or x is None for x in (left, right)
    )


def _equal(tr: Tracer, left: Any, right: Any) -> bool | None:
    """Equality where Python's own would not do: containers of host scalars, captured objects. None: compare plainly."""
    left, right = (tr.captures.contents(x) if tr.captures.is_container(x) else x for x in (left, right))
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        if isinstance(left, list) is not isinstance(right, list) or len(left) != len(right):
            return False
        for a, b in zip(left, right, strict=True):
            same = _equal(tr, a, b)
            if same is None:
                same = tr.condition(host("eq", a, b)) if ScalarValue in (type(a), type(b)) else bool(a == b)
            if not same:
                return False
        return True
    for value in (left, right):
        if isinstance(value, (Captured, Function)):
            tr.captures.guard(value.path, "is", object_of(value), f"{value.path} is the same object")  # type: ignore[arg-type]
    if isinstance(left, SYMBOLIC[2:]) or isinstance(right, SYMBOLIC[2:]):
        return bool(object_of(left) == object_of(right))
    if isinstance(left, (TensorValue, ScalarValue)) or isinstance(right, (TensorValue, ScalarValue)):
        numbers = isinstance(left, (ScalarValue, int, float)) and isinstance(right, (ScalarValue, int, float))
        return None if numbers else left is right
    return None


def object_of(value: Any) -> Any:
    """The Python object behind a captured value."""
    if isinstance(value, Captured):
        return value.value
    if isinstance(value, Function) and value.function is not None:
        return value.function
    return value


def _identical(tr: Tracer, frame: Frame, node: ast.AST, left: Any, right: Any) -> bool:
    for value, other in ((left, right), (right, left)):
        if isinstance(value, (Captured, Function)) and value.path is not None and other is not None:
            tr.at(frame, node)
            tr.captures.guard(value.path, "is", object_of(value), f"{value.path} is the same object")
    left, right = (tr.static(x) if isinstance(x, ScalarValue) else object_of(x) for x in (left, right))
    return left is right


def _contains(tr: Tracer, frame: Frame, node: ast.AST, item: Any, container: Any) -> bool:
    if isinstance(container, TensorValue) or isinstance(item, TensorValue):
        tr.fail(HostValue, frame, node, what="'in'", hint="(x == value).any(), as a tensor")
    tr.at(frame, node)
    container = tr.static(container)
    if isinstance(container, (list, tuple)):
        return any(
            x is item or bool(tr.truth(frame, node, compare(tr, frame, node, ast.Eq(), x, item), "'in'"))
            for x in container
        )
    item, container = plain(tr, frame, node, item), plain(tr, frame, node, container)
    return bool(tr.run_static(frame, node, operator.contains, container, item))
