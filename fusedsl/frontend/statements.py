# SPDX-License-Identifier: Apache-2.0
"""Walking statements: one function a kind of node, ``(tracer, frame, node) -> Signal | None``."""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from fusedsl.frontend.callables import TensorValue
from fusedsl.frontend.containers import bind, iterate
from fusedsl.frontend.errors import (
    AssertionFailed,
    CapturedMutation,
    EndlessLoop,
    ItemAssignment,
    LoopTooLong,
    RaisedByFunction,
    UnsupportedStatement,
)
from fusedsl.frontend.expressions import define
from fusedsl.frontend.inplace import update
from fusedsl.frontend.names import assign_target
from fusedsl.frontend.operators import binary, object_of
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Signal, Tracer
from fusedsl.frontend.values import SYMBOLIC, Captured, describe, hints

#: Loops are unrolled; more turns than this are taken for a mistake.
LOOP_LIMIT = 10_000

_WHERE_HINT = "torch.where(condition, a, b), or branch outside the fused function"

#: Contexts that a function may open, and whether gradients are recorded inside (None: as outside).
_CONTEXTS: dict[Any, bool | None] = {
    torch.no_grad: False,
    torch.inference_mode: False,
    torch.enable_grad: True,
    contextlib.nullcontext: None,
}


# assignment -----------------------------------------------------------------------------------------------------------


def _assign(tr: Tracer, frame: Frame, node: ast.Assign) -> None:
    value = tr.evaluate(frame, node.value)
    for target in node.targets:
        _store(tr, frame, target, value)


def _annotated(tr: Tracer, frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        _store(tr, frame, node.target, tr.evaluate(frame, node.value))


def _store(tr: Tracer, frame: Frame, target: ast.expr, value: Any) -> None:
    match target:
        case ast.Attribute():
            owner = tr.evaluate(frame, target.value)
            what = f"attribute '{target.attr}' of {describe(owner)}"
            tr.fail(ItemAssignment, frame, target, what=what, hint="return the value instead")
        case ast.Subscript():
            _store_item(tr, frame, target, value)
        case ast.Name() if (frame.owner(target.id) is None) and frame.function is not None:
            tr.fail(UnsupportedStatement, frame, target, what=f"assigning to global '{target.id}'", hint="return it")
        case _:
            bind(tr, frame, target, value)


def _store_item(tr: Tracer, frame: Frame, target: ast.Subscript, value: Any) -> None:
    container = tr.evaluate(frame, target.value)
    key = tr.static(tr.evaluate(frame, target.slice))
    if isinstance(container, TensorValue):
        hint = "torch.where(mask, new, x), or torch.cat of the parts"
        tr.fail(ItemAssignment, frame, target, what="an item of a tensor", hint=hint)
    if isinstance(container, Captured):
        tr.fail(CapturedMutation, frame, target, path=f"'{container.path}'")
    if not isinstance(container, (list, dict)) or isinstance(key, SYMBOLIC):
        tr.fail(ItemAssignment, frame, target, what=f"an item of {describe(container)}", hint=None)
    tr.run_static(frame, target, container.__setitem__, key, value)


def _augmented(tr: Tracer, frame: Frame, node: ast.AugAssign) -> None:
    target = node.target
    if not isinstance(target, ast.Name):
        _augment_item(tr, frame, node)
        return
    load = ast.copy_location(ast.Name(target.id, ast.Load()), target)
    old = tr.evaluate(frame, load)
    value = tr.evaluate(frame, node.value)
    if isinstance(old, TensorValue):
        update(tr, frame, node, f"'{_OPERATORS[type(node.op)]}='", old, lambda: _binary(tr, frame, node, old, value))
        return
    if isinstance(old, list) and isinstance(node.op, ast.Add):
        old.extend(iterate(tr, frame, node.value, value))
        return
    if isinstance(old, Captured) and isinstance(old.value, (list, dict, set)):
        tr.fail(CapturedMutation, frame, node, path=f"'{old.path}'")
    _store(tr, frame, target, _binary(tr, frame, node, old, value))


def _augment_item(tr: Tracer, frame: Frame, node: ast.AugAssign) -> None:
    target = node.target
    assert isinstance(target, (ast.Subscript, ast.Attribute))
    if isinstance(target, ast.Subscript):
        container = tr.evaluate(frame, target.value)
        key = tr.static(tr.evaluate(frame, target.slice))
        if isinstance(container, (list, dict)) and not isinstance(key, SYMBOLIC):
            old = tr.run_static(frame, target, container.__getitem__, key)
            value = tr.evaluate(frame, node.value)
            operation = f"'{_OPERATORS[type(node.op)]}='"
            if isinstance(old, TensorValue):
                update(tr, frame, node, operation, old, lambda: _binary(tr, frame, node, old, value))
            else:
                container[key] = _binary(tr, frame, node, old, value)
            return
    elif isinstance(old := tr.evaluate(frame, ast.copy_location(_loaded(target), target)), TensorValue):
        # The object that holds the tensor gets the same one again.
        value = tr.evaluate(frame, node.value)
        update(tr, frame, node, f"'{_OPERATORS[type(node.op)]}='", old, lambda: _binary(tr, frame, node, old, value))
        return
    _store(tr, frame, target, None)


def _loaded(target: ast.Attribute) -> ast.Attribute:
    return ast.Attribute(target.value, target.attr, ast.Load())


def _binary(tr: Tracer, frame: Frame, node: ast.AugAssign, old: Any, value: Any) -> Any:
    return binary(tr, frame, node, type(node.op), old, value)


_OPERATORS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.MatMult: "@",
}


def _delete(tr: Tracer, frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        if not isinstance(target, ast.Name):
            tr.fail(UnsupportedStatement, frame, target, what="deleting an item or attribute", hint=None)
        tr.evaluate(frame, ast.copy_location(ast.Name(target.id, ast.Load()), target))
        del (frame.owner(target.id) or frame).values[target.id]


# control flow ---------------------------------------------------------------------------------------------------------


def _if(tr: Tracer, frame: Frame, node: ast.If) -> Signal | None:
    test = tr.truth(frame, node.test, tr.evaluate(frame, node.test), "'if'", _WHERE_HINT)
    return tr.execute(frame, node.body if test else node.orelse)


def _for(tr: Tracer, frame: Frame, node: ast.For) -> Signal | None:
    for count, item in enumerate(iterate(tr, frame, node.iter, tr.evaluate(frame, node.iter))):
        if count >= LOOP_LIMIT:
            tr.fail(LoopTooLong, frame, node.iter, limit=LOOP_LIMIT)
        bind(tr, frame, node.target, item)
        signal = tr.execute(frame, node.body)
        if signal is not None and signal.kind != "continue":
            return None if signal.kind == "break" else signal
    return tr.execute(frame, node.orelse)


def _while(tr: Tracer, frame: Frame, node: ast.While) -> Signal | None:
    if isinstance(node.test, ast.Constant) and node.test.value and not _can_leave(node.body):
        tr.fail(EndlessLoop, frame, node.test)
    count = 0
    while tr.truth(frame, node.test, tr.evaluate(frame, node.test), "'while'", "a loop with a fixed number of steps"):
        if count >= LOOP_LIMIT:
            tr.fail(LoopTooLong, frame, node.test, limit=LOOP_LIMIT)
        count += 1
        signal = tr.execute(frame, node.body)
        if signal is not None and signal.kind != "continue":
            return None if signal.kind == "break" else signal
    return tr.execute(frame, node.orelse)


def _can_leave(body: list[ast.stmt]) -> bool:
    leaving = (ast.Break, ast.Return, ast.Raise)
    return any(isinstance(node, leaving) for statement in body for node in ast.walk(statement))


def _with(tr: Tracer, frame: Frame, node: ast.With) -> Signal | None:
    outside = tr.recording
    for item in node.items:
        context = item.context_expr
        callee = tr.evaluate(frame, context.func) if isinstance(context, ast.Call) else None
        known = any(callee is context_type for context_type in _CONTEXTS)
        if not known or not isinstance(context, ast.Call) or context.args or context.keywords:
            hint = "with torch.no_grad(), or open the context outside the fused function"
            tr.fail(UnsupportedStatement, frame, context, what="this 'with'", hint=hint)
        if item.optional_vars is not None:
            bind(tr, frame, item.optional_vars, None)
        recording = _CONTEXTS[callee]
        tr.recording = tr.recording if recording is None else recording
    try:
        return tr.execute(frame, node.body)
    finally:
        tr.recording = outside


def _return(tr: Tracer, frame: Frame, node: ast.Return) -> Signal:
    return Signal("return", None if node.value is None else tr.evaluate(frame, node.value))


def _assert(tr: Tracer, frame: Frame, node: ast.Assert) -> None:
    hint = "torch._assert_async outside, or an assert on shapes"
    if not tr.truth(frame, node.test, tr.evaluate(frame, node.test), "'assert'", hint):
        reason = "the condition is false" if node.msg is None else str(hints(tr.evaluate(frame, node.msg)))
        tr.fail(AssertionFailed, frame, node.test, reason=reason)


def _raise(tr: Tracer, frame: Frame, node: ast.Raise) -> NoReturn:
    reason = "again"
    match node.exc:
        case ast.Call(func=function, args=args):
            kind = object_of(tr.evaluate(frame, function))
            texts = [str(hints(tr.evaluate(frame, arg))) for arg in args]
            reason = f"{getattr(kind, '__name__', kind)}: {', '.join(texts)}"
        case ast.expr() as expression:
            kind = object_of(tr.evaluate(frame, expression))
            reason = str(getattr(kind, "__name__", kind))
    tr.fail(RaisedByFunction, frame, node, reason=reason)


# definitions, imports -------------------------------------------------------------------------------------------------


def _define(tr: Tracer, frame: Frame, node: ast.FunctionDef) -> None:
    if any(isinstance(x, (ast.Yield, ast.YieldFrom)) for x in ast.walk(node)):
        tr.fail(UnsupportedStatement, frame, node, what="a generator function", hint="return a list")
    value: Any = define(tr, frame, node)
    for decorator in reversed(node.decorator_list):
        value = tr.call(frame, decorator, tr.evaluate(frame, decorator), (value,), {})
    assign_target(tr, frame, node.name, value)


def _import(tr: Tracer, frame: Frame, node: ast.Import) -> None:
    for alias in node.names:
        module = tr.run_static(frame, node, importlib.import_module, alias.name)
        if alias.asname is None:
            alias_name = alias.name.partition(".")[0]
            assign_target(tr, frame, alias_name, importlib.import_module(alias_name))
        else:
            assign_target(tr, frame, alias.asname, module)


def _import_from(tr: Tracer, frame: Frame, node: ast.ImportFrom) -> None:
    function = frame.captured().function
    package = function.__globals__.get("__package__")
    name = "." * node.level + (node.module or "")
    module = tr.run_static(frame, node, importlib.import_module, name, package)
    for alias in node.names:
        if not hasattr(module, alias.name):
            value = tr.run_static(frame, node, importlib.import_module, f"{module.__name__}.{alias.name}")
        else:
            value = getattr(module, alias.name)
        assign_target(tr, frame, alias.asname or alias.name, value)


def _expression(tr: Tracer, frame: Frame, node: ast.Expr) -> None:
    tr.evaluate(frame, node.value)


def _nothing(tr: Tracer, frame: Frame, node: ast.stmt) -> None:
    """``pass``, and ``global`` and ``nonlocal``, which scoping has read already."""


_WORDS = {
    "AsyncFor": "'async for'",
    "AsyncFunctionDef": "an async function",
    "AsyncWith": "'async with'",
    "ClassDef": "a class definition",
    "Match": "'match'",
    "Try": "'try'",
    "TryStar": "'try'",
    "TypeAlias": "a type alias",
}


def _unsupported(tr: Tracer, frame: Frame, node: ast.stmt) -> NoReturn:
    name = type(node).__name__
    hint = "if and elif" if name == "Match" else "put it outside the fused function"
    tr.fail(UnsupportedStatement, frame, node, what=_WORDS[name], hint=hint)


STATEMENTS: dict[type[ast.stmt], Callable[[Tracer, Frame, Any], Signal | None]] = {
    ast.AnnAssign: _annotated,
    ast.Assert: _assert,
    ast.Assign: _assign,
    ast.AugAssign: _augmented,
    ast.Break: lambda tr, frame, node: Signal("break"),
    ast.Continue: lambda tr, frame, node: Signal("continue"),
    ast.Delete: _delete,
    ast.Expr: _expression,
    ast.For: _for,
    ast.FunctionDef: _define,
    ast.Global: _nothing,
    ast.If: _if,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Nonlocal: _nothing,
    ast.Pass: _nothing,
    ast.Raise: _raise,
    ast.Return: _return,
    ast.While: _while,
    ast.With: _with,
}
STATEMENTS |= {getattr(ast, name): _unsupported for name in _WORDS if hasattr(ast, name)}
