# SPDX-License-Identifier: Apache-2.0
"""Python's scoping: which names a function binds, and the frames that hold their values while tracing."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import Any

from fusedsl.frontend.source import FunctionSource

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Frame:
    """The local variables of one function (or comprehension) being traced.

    Attributes:
        source: text of the function.
        names: names that are local here, assigned or not.
        values: those that are assigned.
        parent: the frame whose variables are visible here (the enclosing function's or, for a comprehension, its own).
        function: the ``Function`` being traced; None for a comprehension.
        depth: how many calls deep.
    """

    __slots__ = ("depth", "function", "names", "parent", "source", "values")

    def __init__(
        self, source: FunctionSource, names: frozenset[str], parent: Frame | None, function: Any, depth: int
    ) -> None:
        self.source = source
        self.names = names
        self.values: dict[str, Any] = {}
        self.parent = parent
        self.function = function
        self.depth = depth

    def owner(self, name: str) -> Frame | None:
        """The innermost frame in which ``name`` is local, if any."""
        frame: Frame | None = self
        while frame is not None and name not in frame.names:
            frame = frame.parent
        return frame

    def captured(self) -> Any:
        """The captured function in whose text this frame stands (it gives closure, globals and builtins)."""
        frame = self
        while frame.parent is not None:
            frame = frame.parent
        return frame.function


@functools.lru_cache(maxsize=4096)
def local_names(node: ast.FunctionDef | ast.Lambda) -> frozenset[str]:
    """Names that are local to a function: parameters and what its body binds, but for ``global`` and ``nonlocal``."""
    arguments = node.args
    found = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    found |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
    body = node.body if isinstance(node.body, list) else [node.body]
    outer: set[str] = set()
    for child in body:
        for kind, name in _bindings(child):
            (outer if kind == "outer" else found).add(name)
    return frozenset(found - outer)


@functools.lru_cache(maxsize=4096)
def target_names(node: ast.expr) -> frozenset[str]:
    """Names bound by an assignment target."""
    return frozenset(x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store))


def _bindings(node: ast.AST, comprehension: bool = False) -> Iterator[tuple[str, str]]:
    """("local" | "outer", name) for every binding in the scope that ``node`` belongs to."""
    kind = "outer" if isinstance(node, (ast.Global, ast.Nonlocal)) else "local"
    for name in _own_bindings(node, comprehension):
        yield kind, name
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, ast.NamedExpr):
        yield from _bindings(node.value, comprehension)
        return
    inside = comprehension or isinstance(node, _COMPREHENSIONS)
    for child in ast.iter_child_nodes(node):
        yield from _bindings(child, inside)


def _own_bindings(node: ast.AST, comprehension: bool) -> list[str]:
    """Names that this very node binds; a comprehension's targets are its own, a walrus inside it is not."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [] if comprehension else [name]
        case ast.NamedExpr(target=ast.Name(id=name)) | ast.ExceptHandler(name=str(name)):
            return [name]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        case ast.Global() | ast.Nonlocal():
            return list(node.names)
    return []
