# SPDX-License-Identifier: Apache-2.0
"""The table of known callables, and the decorator that fills it.

A handler is called as ``handler(builder, *args, **kwargs)`` with torch's own signature. It returns values of the
trace (or static
objects), raises ``OpError`` for a wrong use, and returns ``NotImplemented`` for a right use that the graph cannot
express.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional

from fusedsl.frontend.callables.errors import OpError

Handler = Callable[..., Any]

CALLABLES: dict[Any, Handler] = {}
METHODS: dict[str, Handler] = {}
ATTRIBUTES: dict[str, Handler] = {}
OPERATORS: dict[type[ast.AST], Handler] = {}

_ROOTS = {
    "torch": torch,
    "F": torch.nn.functional,
    "special": torch.special,
    "linalg": torch.linalg,
    "operator": operator,
    "math": math,
    "builtins": builtins,
}


#: NumPy's names of arguments, which torch understands too.
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}

Function = TypeVar("Function", bound=Handler)


def handles(*names: str) -> Callable[[Function], Function]:
    """Enter a handler into the tables.

    Args:
        names: ``torch.add``, ``F.relu``, ``special.expit``, ``linalg.vector_norm``, ``operator.add``, ``math.sqrt``,
        ``builtins.abs`` name
            functions; ``Tensor.add`` a method (and the unbound function); ``.T`` an attribute; ``ast.Add`` an
            operator. A name that this version of torch lacks is skipped.
    """

    def enter(function: Function) -> Function:
        handler = _guarded(function)
        for name in names:
            root, _, rest = name.partition(".")
            if root == "ast":
                OPERATORS[getattr(ast, rest)] = handler
            elif root == "":
                ATTRIBUTES[rest] = handler
            elif root == "Tensor":
                if hasattr(torch.Tensor, rest):
                    METHODS[rest] = handler
                    _enter_callable(getattr(torch.Tensor, rest), handler)
            else:
                _enter_callable(getattr(_ROOTS[root], rest, None), handler)
        return function

    return enter


def _enter_callable(found: Any, handler: Handler) -> None:
    if found is not None:
        CALLABLES[found] = handler


def everywhere(name: str, *more: str) -> tuple[str, ...]:
    """``torch.name`` and ``Tensor.name``, and more names."""
    return (f"torch.{name}", f"Tensor.{name}", *more)


def _guarded(function: Handler) -> Handler:
    """``function`` with ``out=`` refused and wrong arguments reported as an OpError."""

    names = inspect.signature(function).parameters
    aliases = {alias: name for alias, name in _NUMPY_NAMES.items() if name in names and alias not in names}

    @functools.wraps(function)
    def handler(builder: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs and not aliases.keys().isdisjoint(kwargs):
            kwargs = {aliases.get(key, key): value for key, value in kwargs.items()}
        if "out" in kwargs and kwargs.pop("out") is not None:
            raise OpError("out= is not supported", hint="assign the result")
        try:
            return function(builder, *args, **kwargs)
        except TypeError:
            try:
                inspect.signature(function).bind(builder, *args, **kwargs)
            except TypeError as error:
                raise OpError(f"{function.__name__}: {error}") from None
            raise

    return handler


def lookup(function: Any) -> Handler | None:
    """The handler of a callable object, or None for one the table does not know."""
    try:
        return CALLABLES.get(function)
    except TypeError:
        return None


def lookup_method(name: str) -> Handler | None:
    """The handler of a tensor method, called with the tensor first."""
    return METHODS.get(name)


def lookup_attribute(name: str) -> Handler | None:
    """The handler of a tensor attribute, called with the tensor."""
    return ATTRIBUTES.get(name)


def lookup_operator(node: ast.AST | type[ast.AST]) -> Handler | None:
    """The handler of a Python operator (``ast.Add``, its instance, ``ast.USub``, ``ast.Lt``, ``ast.Subscript`` ...)."""
    return OPERATORS.get(node if isinstance(node, type) else type(node))
