# SPDX-License-Identifier: Apache-2.0
"""Iterating, indexing and unpacking."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator
from typing import Any

from torch import nn

from fusedsl.frontend.callables import TensorValue, lookup_operator
from fusedsl.frontend.errors import TensorIteration, UnpackMismatch, UnsupportedExpression
from fusedsl.frontend.names import assign_target
from fusedsl.frontend.opaque import call_opaque
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import SYMBOLIC, Captured, describe

_MODULE_LISTS = (nn.ModuleList, nn.Sequential, nn.ParameterList)


def iterate(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> Iterator[Any]:
    """The items of an iterable."""
    tr.at(frame, node)
    value = tr.static(value)
    if isinstance(value, TensorValue):
        tr.fail(TensorIteration, frame, node)
    if isinstance(value, Captured) and isinstance(value.value, _MODULE_LISTS):
        return iter([read_item(tr, frame, node, value, i) for i in range(len(value.value))])
    if isinstance(value, SYMBOLIC):
        tr.fail(UnsupportedExpression, frame, node, what=f"iterating over {describe(value)}", hint=None)
    return iter(tr.run_static(frame, node, iter, value))


def read_item(tr: Tracer, frame: Frame, node: ast.AST, value: Any, key: Any) -> Any:
    """``value[key]``."""
    if isinstance(value, TensorValue):
        handler = lookup_operator(ast.Subscript)
        result = NotImplemented if handler is None else tr.apply(frame, node, handler, (value, key), {})
        return call_opaque(tr, frame, node, operator.getitem, (value, key), {}) if result is NotImplemented else result
    tr.at(frame, node)
    key = _static_key(tr, key)
    if isinstance(value, Captured):
        contained = isinstance(value.value, (list, tuple, dict, *_MODULE_LISTS))
        if isinstance(value.value, (nn.ParameterDict, nn.ModuleDict)) and isinstance(key, str):
            item = tr.run_static(frame, node, operator.getitem, value.value, key)
            return tr.captures.wrap(item, value.path.item(key))
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
