# SPDX-License-Identifier: Apache-2.0
"""Walking expressions: one function a kind of node, ``(tracer, frame, node) -> value``."""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

from fusedsl.frontend.attributes import read_attribute
from fusedsl.frontend.callables import ScalarValue, TensorValue, lookup_method, lookup_operator
from fusedsl.frontend.callables.values import host
from fusedsl.frontend.errors import (
    HostValue,
    TensorIteration,
    UnassignedName,
    UndefinedName,
    UnsupportedExpression,
)
from fusedsl.frontend.opaque import call_opaque
from fusedsl.frontend.scope import Frame, target_names
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import SYMBOLIC, Captured, Function, describe
from fusedsl.frontend.errors import UnpackMismatch

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
_LOGICAL_HINTS = {ast.And: "a & b, or torch.logical_and(a, b)", ast.Or: "a | b, or torch.logical_or(a, b)"}


# names ----------------------------------------------------------------------------------------------------------------


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


def _named(tr: Tracer, frame: Frame, node: ast.NamedExpr) -> Any:
    value = tr.evaluate(frame, node.value)
    assign_target(tr, frame, node.target.id, value)
    return value


# operators ------------------------------------------------------------------------------------------------------------


def binary(tr: Tracer, frame: Frame, node: ast.AST, op: type[ast.AST], left: Any, right: Any) -> Any:
    """An arithmetic operator or a comparison on any values."""
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        handler = lookup_operator(op)
        result = NotImplemented if handler is None else tr.apply(frame, node, handler, (left, right), {})
        if result is not NotImplemented:
            return result
        return call_opaque(tr, frame, node, getattr(operator, BINARY[op]), (left, right), {})
    if isinstance(left, ScalarValue) or isinstance(right, ScalarValue):
        if all(isinstance(x, (ScalarValue, bool, int, float)) for x in (left, right)):
            return _host_binary(tr, frame, node, BINARY[op], left, right)
    left, right = _plain(tr, frame, node, left), _plain(tr, frame, node, right)
    return tr.run_static(frame, node, getattr(operator, BINARY[op]), left, right)


def _host_binary(tr: Tracer, frame: Frame, node: ast.AST, name: str, left: Any, right: Any) -> Any:
    tr.at(frame, node)
    if name == "pow" and isinstance(right, ScalarValue) and type(right.hint) is int:
        tr.condition(host("ge", right, 0))
    return tr.apply(frame, node, lambda builder, *operands: host(name, *operands), (left, right), {})


def _plain(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> Any:
    """A value that a Python operator can work on."""
    value = tr.static(value)
    if isinstance(value, SYMBOLIC):
        tr.fail(UnsupportedExpression, frame, node, what=f"an operator on {describe(value)}", hint=None)
    return value


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
    return tr.run_static(frame, node, getattr(operator, name), _plain(tr, frame, node, value))


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
            x is item or bool(tr.truth(frame, node, compare(tr, frame, node, ast.Eq(), x, item), "'in'")) for x in container
        )
    item, container = _plain(tr, frame, node, item), _plain(tr, frame, node, container)
    return bool(tr.run_static(frame, node, operator.contains, container, item))


def _ifexp(tr: Tracer, frame: Frame, node: ast.IfExp) -> Any:
    test = tr.truth(frame, node.test, tr.evaluate(frame, node.test), "'if'", "torch.where(condition, a, b)")
    return tr.evaluate(frame, node.body if test else node.orelse)


# containers, subscripts -----------------------------------------------------------------------------------------------


def iterate(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> Iterator[Any]:
    """The items of an iterable."""
    tr.at(frame, node)
    value = tr.static(value)
    if isinstance(value, TensorValue):
        tr.fail(TensorIteration, frame, node)
    if isinstance(value, Captured) and isinstance(value.value, _module_lists()):
        return iter([read_item(tr, frame, node, value, i) for i in range(len(value.value))])  # type: ignore[arg-type]
    if isinstance(value, SYMBOLIC):
        tr.fail(UnsupportedExpression, frame, node, what=f"iterating over {describe(value)}", hint=None)
    return iter(tr.run_static(frame, node, iter, value))


@functools.cache
def _module_lists() -> tuple[type, ...]:
    from torch import nn

    return (nn.ModuleList, nn.Sequential, nn.ParameterList)


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
    return {_plain(tr, frame, node, x) for x in _elements(tr, frame, node.elts)}


def _dict(tr: Tracer, frame: Frame, node: ast.Dict) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, part in zip(node.keys, node.values, strict=True):
        value = tr.evaluate(frame, part)
        if key is None:
            found.update(tr.run_static(frame, part, dict, tr.static(value)))
        else:
            found[_plain(tr, frame, key, tr.evaluate(frame, key))] = value
    return found


def _slice(tr: Tracer, frame: Frame, node: ast.Slice) -> slice:
    return slice(*(None if x is None else tr.evaluate(frame, x) for x in (node.lower, node.upper, node.step)))


def _subscript(tr: Tracer, frame: Frame, node: ast.Subscript) -> Any:
    return read_item(tr, frame, node, tr.evaluate(frame, node.value), tr.evaluate(frame, node.slice))


def read_item(tr: Tracer, frame: Frame, node: ast.AST, value: Any, key: Any) -> Any:
    """``value[key]``."""
    if isinstance(value, TensorValue):
        handler = lookup_operator(ast.Subscript) or lookup_method("__getitem__")
        result = NotImplemented if handler is None else tr.apply(frame, node, handler, (value, key), {})
        return call_opaque(tr, frame, node, operator.getitem, (value, key), {}) if result is NotImplemented else result
    tr.at(frame, node)
    key = _static_key(tr, key)
    if isinstance(value, Captured):
        contained = isinstance(value.value, (list, tuple, dict, *_module_lists()))
        if contained and not isinstance(key, slice) and not isinstance(key, SYMBOLIC):
            item = tr.run_static(frame, node, operator.getitem, value.value, key)
            return tr.captures.wrap(item, value.path.item(key))
        value = tr.static(value)
    if isinstance(value, SYMBOLIC) or isinstance(key, SYMBOLIC):
        wrong = value if isinstance(value, SYMBOLIC) else key
        tr.fail(UnsupportedExpression, frame, node, what=f"indexing with {describe(wrong)}", hint=None)
    return tr.run_static(frame, node, operator.getitem, value, key)


def _static_key(tr: Tracer, key: Any) -> Any:
    if isinstance(key, slice):
        return slice(*(tr.static(x) for x in (key.start, key.stop, key.step)))
    if isinstance(key, tuple):
        return tuple(_static_key(tr, x) for x in key)
    return tr.static(key)


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


def bind(tr: Tracer, frame: Frame, target: ast.expr, value: Any) -> None:
    """Bind names of a target (a name, or a tuple or list of targets) to a value."""
    match target:
        case ast.Name(id=name):
            assign_target(tr, frame, name, value)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            _unpack(tr, frame, target, parts, value)
        case _:
            raise AssertionError(f"{type(target).__name__} is not a plain target")


def _unpack(tr: Tracer, frame: Frame, target: ast.expr, parts: list[ast.expr], value: Any) -> None:
    if isinstance(value, TensorValue):
        hint = f"x.unbind(0), if it has {len(parts)} rows"
        tr.fail(UnpackMismatch, frame, target, found=describe(value), wanted=len(parts), hint=hint)
    items = list(iterate(tr, frame, target, value))
    star = next((i for i, part in enumerate(parts) if isinstance(part, ast.Starred)), None)
    if len(items) < len(parts) - (star is not None) or (star is None and len(items) != len(parts)):
        tr.fail(UnpackMismatch, frame, target, found=f"{len(items)} values", wanted=len(parts), hint=None)
    if star is not None:
        tail = len(parts) - star - 1
        end = len(items) - tail
        items = [*items[:star], items[star:end], *items[end:]]
    for part, item in zip(parts, items, strict=True):
        bind(tr, frame, part.value if isinstance(part, ast.Starred) else part, item)


def _listcomp(tr: Tracer, frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
    found: list[Any] = []
    _comprehension(tr, frame, node, lambda inner: found.append(tr.evaluate(inner, node.elt)), node.generators)
    return found


def _setcomp(tr: Tracer, frame: Frame, node: ast.SetComp) -> set[Any]:
    return {_plain(tr, frame, node, x) for x in _listcomp(tr, frame, node)}  # type: ignore[arg-type]


def _dictcomp(tr: Tracer, frame: Frame, node: ast.DictComp) -> dict[Any, Any]:
    found: dict[Any, Any] = {}

    def add(inner: Frame) -> None:
        key = _plain(tr, inner, node.key, tr.evaluate(inner, node.key))
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
    value = object_of(tr.static(value))
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
