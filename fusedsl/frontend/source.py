# SPDX-License-Identifier: Apache-2.0
"""The text of a function: finding it, parsing it, and turning AST positions into places in the user's file.

Text comes from ``linecache``, which knows files, notebook cells and text that was registered for ``exec``. Only the
function's lines are parsed; an indented definition is put under ``if 1:`` instead of being dedented, so that columns
stay right.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

import attrs

from fusedsl.frontend.errors import AsyncFunction, GeneratorFunction, SourceChanged, SourceNotAvailable
from fusedsl.graph.span import SourceSpan

FunctionNode = ast.FunctionDef | ast.Lambda
T = TypeVar("T")


class _ByCode(Generic[T]):
    """A weak map from code objects by identity (equal code in two files is equal to Python)."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[types.CodeType], T]] = {}

    def get(self, code: types.CodeType) -> T | None:
        found = self._items.get(id(code))
        return found[1] if found is not None and found[0]() is code else None

    def set(self, code: types.CodeType, item: T) -> T:
        key = id(code)
        self._items[key] = (weakref.ref(code), item)
        weakref.finalize(code, self._items.pop, key, None).atexit = False
        return item


_LINES: _ByCode[list[str]] = _ByCode()
_SOURCES: _ByCode[FunctionSource] = _ByCode()


@attrs.frozen(eq=False)
class FunctionSource:
    """A parsed function.

    Attributes:
        name: the function's name.
        file: file name as Python reports it.
        lines: the lines of the whole file, with newlines.
        node: the definition (line numbers relative to ``shift``).
        shift: what to add to a line number of ``node`` for the line in the file.
    """

    name: str
    file: str
    lines: list[str] = attrs.field(repr=False)
    node: FunctionNode
    shift: int

    @property
    def line(self) -> int:
        """First line of the definition without its decorators, in the file."""
        return self.node.lineno + self.shift

    @property
    def text(self) -> str:
        """The definition's lines."""
        end = self.node.end_lineno or self.node.lineno
        return "".join(self.lines[self.node.lineno + self.shift - 1 : end + self.shift])

    def nested(self, node: FunctionNode) -> FunctionSource:
        """The source of a function that is defined inside this one."""
        return attrs.evolve(self, name=getattr(node, "name", "<lambda>"), node=node)

    def span(self, node: ast.AST) -> SourceSpan:
        """Where ``node`` (a node under ``self.node``) stands in the file; columns are in characters."""
        assert isinstance(node, (ast.expr, ast.stmt, ast.keyword, ast.arg, ast.alias))
        line = node.lineno + self.shift
        end_line = (node.end_lineno or node.lineno) + self.shift
        text = self._line(line)
        last = text if end_line == line else self._line(end_line)
        return SourceSpan(
            self.file,
            line,
            _characters(text, node.col_offset),
            end_line,
            _characters(last, node.end_col_offset or node.col_offset),
            text,
            self.name,
        )

    def _line(self, number: int) -> str:
        return self.lines[number - 1].rstrip("\r\n") if 0 < number <= len(self.lines) else ""


def _characters(text: str, offset: int) -> int:
    """The column in characters of a column in UTF-8 bytes."""
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="replace"))


def remember(function: types.FunctionType) -> None:
    """Keep the function's text as it is now (when it is defined), so that a later edit of the file does no harm.

    A function without text is left for ``capture`` to complain about.
    """
    code = function.__code__
    if _LINES.get(code) is None:
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, function.__globals__)
        if lines:
            _LINES.set(code, lines)


def capture(function: types.FunctionType) -> FunctionSource:
    """The parsed source of a function or lambda.

    Raises:
        SourceNotAvailable: Python cannot show the text.
        SourceChanged: the text found is not this function's.
        AsyncFunction, GeneratorFunction: the function is one.
    """
    code = function.__code__
    return _SOURCES.get(code) or _SOURCES.set(code, _parse(function))


def _parse(function: types.FunctionType) -> FunctionSource:
    code = function.__code__
    remember(function)
    lines = _LINES.get(code) or []
    if not 0 < code.co_firstlineno <= len(lines):
        raise SourceNotAvailable(name=function.__name__, where=_explain_missing(code.co_filename)) from None
    find = _parse_lambda if code.co_name == "<lambda>" else _parse_definition
    found = find(code, lines)
    if found is None:
        raise SourceChanged(name=code.co_name, file=code.co_filename, line=code.co_firstlineno) from None
    node, shift = found
    source = FunctionSource(code.co_name, code.co_filename, lines, node, shift)  # type: ignore[arg-type]
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise AsyncFunction(source.span(node), name=code.co_name) from None
    if code.co_flags & inspect.CO_GENERATOR:
        raise GeneratorFunction(_first_yield(source), name=code.co_name) from None
    return source


def _explain_missing(file: str) -> str:
    match file:
        case "<stdin>":
            return "it was typed at a prompt or piped to Python"
        case "<string>":
            return "it was made by exec or python -c"
        case _:
            return f"no text for {file}"


def _parse_definition(code: types.CodeType, lines: list[str]) -> tuple[ast.AST, int] | None:
    """The ``def`` that begins at the code's first line (a decorator's line, if there is one)."""
    first = code.co_firstlineno - 1
    indent = _indent(lines[first])
    prefix = "if 1:\n" if indent else ""
    shift = first - bool(indent)
    for end in _ends(lines, first, max(_code_lines(code)), indent):
        try:
            tree = ast.parse(prefix + "".join(lines[first:end]))
        except (SyntaxError, ValueError):
            continue
        body = tree.body[0].body if indent else tree.body  # type: ignore[attr-defined]
        node = body[0]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            return (node, shift) if _parameter_names(node.args) == _code_parameters(code) else None
        return None
    return None


def _ends(lines: list[str], first: int, last: int, indent: int) -> Iterator[int]:
    """Line counts at which a definition that begins at ``lines[first]`` and has code up to line ``last`` may end."""
    for number in range(max(last, first + 1), len(lines)):
        text = lines[number].strip()
        if text and not text.startswith("#") and _indent(lines[number]) <= indent:
            yield number
    yield len(lines)


def _parse_lambda(code: types.CodeType, lines: list[str]) -> tuple[ast.AST, int] | None:
    """The lambda of this code; several on one line are told apart by their bytecode."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    found = [node for node in found if _parameter_names(node.args) == _code_parameters(code)]
    if len(found) > 1:
        found = [node for node in found if _same_code(node, code)]
    if not found or len({ast.dump(node) for node in found}) > 1:
        return None
    return found[0], 0


def _same_code(node: ast.Lambda, code: types.CodeType) -> bool:
    compiled = compile(ast.Expression(node), code.co_filename, "eval")
    inner = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    names = set(inner.co_names) | set(inner.co_varnames)
    return (
        len(inner.co_code) == len(code.co_code)
        and inner.co_consts == code.co_consts
        and names == set(code.co_names) | set(code.co_varnames) | set(code.co_freevars)
        and (bool(code.co_freevars) or inner.co_code == code.co_code)
    )


def _code_lines(code: types.CodeType) -> Iterator[int]:
    yield code.co_firstlineno
    for _, _, line in code.co_lines():
        if line is not None:
            yield line
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_lines(constant)


def _code_parameters(code: types.CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return tuple(name.rpartition("__")[2] if name.startswith("_") else name for name in code.co_varnames[:count])


def _parameter_names(arguments: ast.arguments) -> tuple[str, ...]:
    """In the order of ``co_varnames``; private names without their (mangled) prefix."""
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    found += [x for x in (arguments.vararg, arguments.kwarg) if x is not None]
    names = [argument.arg for argument in found]
    return tuple(name.rpartition("__")[2] if name.startswith("_") else name for name in names)


def _first_yield(source: FunctionSource) -> SourceSpan:
    for node in ast.walk(source.node):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return source.span(node)
    return source.span(source.node)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
