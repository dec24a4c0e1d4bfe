# SPDX-License-Identifier: Apache-2.0
"""Walking expressions: one function a kind of node, ``(tracer, frame, node) -> value``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from fusedsl.frontend.attributes import read_attribute
from fusedsl.frontend.callables import ScalarValue, TensorValue, lookup_operator
from fusedsl.frontend.callables.values import host
from fusedsl.frontend.containers import bind, iterate, read_item
from fusedsl.frontend.errors import HostValue, UnsupportedExpression
from fusedsl.frontend.names import assign_target, read_name
from fusedsl.frontend.operators import UNARY, binary, compare, object_of, plain
from fusedsl.frontend.scope import Frame, target_names
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import Function, hints

_LOGICAL_HINTS = {ast.And: "a & b, or torch.logical_and(a, b)", ast.Or: "a | b, or torch.logical_or(a, b)"}


def _named(tr: Tracer, frame: Frame, node: ast.NamedExpr) -> Any:
    value = tr.evaluate(frame, node.value)
    assign_target(tr, frame, node.target.id, value)
    return value


# operators ------------------------------------------------------------------------------------------------------------


def _binop(tr: Tracer, frame: Frame, node: ast.BinOp) -> Any:
    left = tr.evaluate(frame, node.left)
    return binary(tr, frame, node, type(node.op), left, tr.evaluate(frame, node.right))


def _unaryop(tr: Tracer, frame: Frame, node: ast.UnaryOp) -> Any:
    value = tr.evaluate(frame, node.operand)
    if isinstance(node.op, ast.Not):
        return not tr.truth(frame, node.operand, value, "'not'", "torch.logical_not(...)")
    if isinstance(value, TensorValue):
        handler = lookup_operator(type(node.op))
        if handler is None:
            return value
        return tr.apply(frame, node, handler, (value,), {})
    name = UNARY[type(node.op)]
    if isinstance(value, ScalarValue):
        return tr.apply(frame, node, lambda builder, x: host(name, x), (value,), {})
    return tr.run_static(frame, node, getattr(operator, name), plain(tr, frame, node, value))


def _boolop(tr: Tracer, frame: Frame, node: ast.BoolOp) -> Any:
    wanted = isinstance(node.op, ast.Or)
    word = "'or'" if wanted else "'and'"
    value: Any = None
    for index, part in enumerate(node.values):
        value = tr.evaluate(frame, part)
        last = index == len(node.values) - 1
        if not last and tr.truth(frame, part, value, word, _LOGICAL_HINTS[type(node.op)]) is wanted:
            return value
    return value


def _compare(tr: Tracer, frame: Frame, node: ast.Compare) -> Any:
    left = tr.evaluate(frame, node.left)
    result: Any = True
    for index, (op, part) in enumerate(zip(node.ops, node.comparators, strict=True)):
        right = tr.evaluate(frame, part)
        result = compare(tr, frame, node, op, left, right)
        last = index == len(node.ops) - 1
        if not last and not tr.truth(frame, node, result, "chained comparison", "(a < b) & (b < c)"):
            return result
        left = right
    return result


def _ifexp(tr: Tracer, frame: Frame, node: ast.IfExp) -> Any:
    test = tr.truth(frame, node.test, tr.evaluate(frame, node.test), "'if'", "torch.where(condition, a, b)")
    return tr.evaluate(frame, node.body if test else node.orelse)


# containers, subscripts -----------------------------------------------------------------------------------------------


def _elements(tr: Tracer, frame: Frame, nodes: list[ast.expr]) -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            found.extend(iterate(tr, frame, node.value, tr.evaluate(frame, node.value)))
        else:
            found.append(tr.evaluate(frame, node))
    return found


def _list(tr: Tracer, frame: Frame, node: ast.List) -> list[Any]:
    return _elements(tr, frame, node.elts)


def _tuple(tr: Tracer, frame: Frame, node: ast.Tuple) -> tuple[Any, ...]:
    return tuple(_elements(tr, frame, node.elts))


def _set(tr: Tracer, frame: Frame, node: ast.Set) -> set[Any]:
    return {plain(tr, frame, node, x) for x in _elements(tr, frame, node.elts)}


def _dict(tr: Tracer, frame: Frame, node: ast.Dict) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, part in zip(node.keys, node.values, strict=True):
        value = tr.evaluate(frame, part)
        if key is None:
            found.update(tr.run_static(frame, part, dict, tr.static(value)))
        else:
            found[plain(tr, frame, key, tr.evaluate(frame, key))] = value
    return found


def _slice(tr: Tracer, frame: Frame, node: ast.Slice) -> slice:
    return slice(*(None if x is None else tr.evaluate(frame, x) for x in (node.lower, node.upper, node.step)))


def _subscript(tr: Tracer, frame: Frame, node: ast.Subscript) -> Any:
    return read_item(tr, frame, node, tr.evaluate(frame, node.value), tr.evaluate(frame, node.slice))


def _comprehension(
    tr: Tracer, frame: Frame, node: Any, add: Callable[[Frame], None], generators: list[ast.comprehension]
) -> None:
    """Run the loops of a comprehension; ``add`` evaluates its element in the innermost frame."""
    names = frozenset[str]().union(*(target_names(g.target) for g in generators))
    inner = Frame(frame.source, names, frame, None, frame.depth)

    def loop(level: int) -> None:
        if level == len(generators):
            add(inner)
            return
        generator = generators[level]
        if generator.is_async:
            tr.fail(UnsupportedExpression, frame, node, what="an async comprehension", hint=None)
        outer = frame if level == 0 else inner
        for item in iterate(tr, outer, generator.iter, tr.evaluate(outer, generator.iter)):
            bind(tr, inner, generator.target, item)
            if all(tr.truth(inner, test, tr.evaluate(inner, test), "'if'") for test in generator.ifs):
                loop(level + 1)

    loop(0)


def _listcomp(tr: Tracer, frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
    found: list[Any] = []
    _comprehension(tr, frame, node, lambda inner: found.append(tr.evaluate(inner, node.elt)), node.generators)
    return found


def _setcomp(tr: Tracer, frame: Frame, node: ast.SetComp) -> set[Any]:
    return {plain(tr, frame, node, x) for x in _listcomp(tr, frame, node)}  # type: ignore[arg-type]


def _dictcomp(tr: Tracer, frame: Frame, node: ast.DictComp) -> dict[Any, Any]:
    found: dict[Any, Any] = {}

    def add(inner: Frame) -> None:
        key = plain(tr, inner, node.key, tr.evaluate(inner, node.key))
        found[key] = tr.evaluate(inner, node.value)

    _comprehension(tr, frame, node, add, node.generators)
    return found


# the rest -------------------------------------------------------------------------------------------------------------


def _joined(tr: Tracer, frame: Frame, node: ast.JoinedStr) -> str:
    return "".join(str(tr.evaluate(frame, part)) for part in node.values)


def _formatted(tr: Tracer, frame: Frame, node: ast.FormattedValue) -> str:
    value = tr.evaluate(frame, node.value)
    if isinstance(value, TensorValue):
        tr.fail(HostValue, frame, node.value, what="an f-string", hint="format it outside the fused function")
    value = object_of(hints(tr.static_inside(value)))
    conversion = {-1: None, 115: str, 114: repr, 97: ascii}[node.conversion]
    if conversion is not None:
        value = conversion(value)
    spec = "" if node.format_spec is None else tr.evaluate(frame, node.format_spec)
    return str(tr.run_static(frame, node, format, value, spec))


def _lambda(tr: Tracer, frame: Frame, node: ast.Lambda) -> Function:
    return define(tr, frame, node)


def define(tr: Tracer, frame: Frame, node: ast.FunctionDef | ast.Lambda) -> Function:
    """A function defined inside the traced text; its defaults are evaluated now."""
    defaults = tuple(tr.evaluate(frame, default) for default in node.args.defaults)
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    kwdefaults = {arg.arg: tr.evaluate(frame, default) for arg, default in keywords if default is not None}
    return Function(local=frame.source.nested(node), frame=frame, defaults=defaults, kwdefaults=kwdefaults)


def _call(tr: Tracer, frame: Frame, node: ast.Call) -> Any:
    callee = tr.evaluate(frame, node.func)
    args = _elements(tr, frame, node.args)
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        value = tr.evaluate(frame, keyword.value)
        if keyword.arg is None:
            kwargs.update(tr.run_static(frame, keyword.value, dict, tr.static(value)))
        else:
            kwargs[keyword.arg] = value
    return tr.call(frame, node, callee, args, kwargs)


def _attribute(tr: Tracer, frame: Frame, node: ast.Attribute) -> Any:
    return read_attribute(tr, frame, node, tr.evaluate(frame, node.value), node.attr)


def _unsupported(tr: Tracer, frame: Frame, node: ast.expr) -> Any:
    words = {ast.Await: "'await'", ast.Yield: "'yield'", ast.YieldFrom: "'yield from'", ast.Starred: "'*' here"}
    tr.fail(UnsupportedExpression, frame, node, what=words[type(node)], hint=None)


EXPRESSIONS: dict[type[ast.expr], Callable[[Tracer, Frame, Any], Any]] = {
    ast.Attribute: _attribute,
    ast.Await: _unsupported,
    ast.BinOp: _binop,
    ast.BoolOp: _boolop,
    ast.Call: _call,
    ast.Compare: _compare,
    ast.Constant: lambda tr, frame, node: node.value,
    ast.Dict: _dict,
    ast.DictComp: _dictcomp,
    ast.FormattedValue: _formatted,
    ast.GeneratorExp: _listcomp,
    ast.IfExp: _ifexp,
    ast.JoinedStr: _joined,
    ast.Lambda: _lambda,
    ast.List: _list,
    ast.ListComp: _listcomp,
    ast.Name: read_name,
    ast.NamedExpr: _named,
    ast.Set: _set,
    ast.SetComp: _setcomp,
    ast.Slice: _slice,
    ast.Starred: _unsupported,
    ast.Subscript: _subscript,
    ast.Tuple: _tuple,
    ast.UnaryOp: _unaryop,
    ast.Yield: _unsupported,
    ast.YieldFrom: _unsupported,
}
