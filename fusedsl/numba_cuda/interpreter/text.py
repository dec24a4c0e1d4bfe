# SPDX-License-Identifier: Apache-2.0
"""Kernel text as a Python function: compiled once, registered in linecache, able to name its own lines."""

from __future__ import annotations

import ast
import hashlib
import linecache
import re
from collections.abc import Mapping
from functools import cached_property
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

import attrs

from fusedsl.graph.span import SourceSpan

_ASYNCHRONOUS = re.compile(r"\b(async_\w+|mbarrier\w+|cluster_\w+|remote_\w+|bulk_\w+|named_barrier)\(")


@attrs.frozen(slots=False, eq=False)
class KernelText:
    """A kernel's text.

    Attributes:
        name: the kernel's function.
        text: the module.
    """

    name: str
    text: str = attrs.field(repr=False)

    @cached_property
    def filename(self) -> str:
        """The pseudo file that tracebacks, debuggers and messages quote; the same text always has the same one."""
        return f"<fusedsl {self.name} {hashlib.sha256(self.text.encode()).hexdigest()[:10]}>"

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without newlines."""
        return self.text.splitlines()

    @cached_property
    def code(self) -> CodeType:
        """The compiled module."""
        entry = (len(self.text), None, [line + "\n" for line in self.lines], self.filename)
        linecache.cache[self.filename] = entry
        return compile(self.text, self.filename, "exec")

    @cached_property
    def is_asynchronous(self) -> bool:
        """Whether threads are ordered by more than the barriers of blocks and warps: see `ordering`."""
        return _ASYNCHRONOUS.search(self.text) is not None

    def function(self, names: Mapping[str, Any]) -> FunctionType:
        """The kernel as a function whose globals are ``names`` and the text's own constants."""
        namespace = dict(names)
        exec(self.code, namespace)
        function = namespace[self.name]
        assert isinstance(function, FunctionType), f"kernel text defines no function {self.name}"
        return function

    def line(self, number: int) -> str:
        """One line of the text, stripped; ``number`` counts from 1."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

    def origin(self, number: int) -> str | None:
        """The user's line that a kernel line was made from: the nearest ``# file.py:12  ...`` comment above it."""
        for line in reversed(self.lines[: number - 1]):
            stripped = line.strip()
            if stripped.startswith("def "):
                return None
            head = stripped.removeprefix("# ").split("  ")[0]
            if stripped.startswith("# ") and head.rpartition(":")[2].isdigit():
                return stripped.removeprefix("# ")
        return None

    def span(self, number: int, columns: tuple[int, int] | None = None) -> SourceSpan | None:
        """A span for a line of the text, or for ``columns`` of it."""
        if not 0 < number <= len(self.lines):
            return None
        text = self.lines[number - 1]
        start, end = columns or (len(text) - len(text.lstrip()), len(text))
        return SourceSpan(self.filename, number, start, number, end, text, self.name)

    @cached_property
    def _calls(self) -> dict[int, list[ast.Call]]:
        """The calls of the text by the lines they stretch over."""
        calls: dict[int, list[ast.Call]] = {}
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.Call):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    calls.setdefault(line, []).append(node)
        return calls

    @cached_property
    def _constants(self) -> set[str]:
        """Names bound at module level."""
        targets = [t for node in ast.parse(self.text).body if isinstance(node, ast.Assign) for t in node.targets]
        return {target.id for target in targets if isinstance(target, ast.Name)}

    @cached_property
    def _literals(self) -> dict[tuple[int, int, str], bool]:
        return {}

    def literal_argument(self, line: int, position: int, keyword: str) -> bool:
        """Whether in a call at ``line`` that has such an argument it is a literal or a module-level constant."""
        key = (line, position, keyword)
        if key not in self._literals:
            found = [argument for call in self._calls.get(line, []) for argument in _argument(call, position, keyword)]
            self._literals[key] = any(
                isinstance(a, ast.Constant) or (isinstance(a, ast.Name) and a.id in self._constants) for a in found
            )
        return self._literals[key]

    def line_of(self, frame: FrameType | None) -> int:
        """The kernel line a suspended stack stands at, 0 if it is not in the kernel."""
        while frame is not None:
            if frame.f_code.co_filename == self.filename:
                return frame.f_lineno
            frame = frame.f_back
        return 0

    def find(self, traceback: TracebackType | None) -> tuple[SourceSpan | None, str | None]:
        """The kernel line (and the expression, where Python knows it) an exception passed through, and its origin."""
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if code.co_filename == self.filename:
                line = traceback.tb_lineno
                return self.span(line, _columns(code, traceback.tb_lasti)), self.origin(line)
            traceback = traceback.tb_next
        return None, None


def _argument(call: ast.Call, position: int, keyword: str) -> list[ast.expr]:
    """The expression of one argument, if the call has it."""
    return call.args[position : position + 1] or [k.value for k in call.keywords if k.arg == keyword]


def _columns(code: CodeType, instruction: int) -> tuple[int, int] | None:
    """First and last column of the expression an instruction belongs to (Python 3.11 on), if it is on one line."""
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return None
    line, end_line, start, end = list(positions())[instruction // 2]
    return (start, end) if line == end_line and start is not None and end is not None else None


def line_at(code: CodeType, instruction: int) -> int:
    """The line an instruction offset of a code object belongs to, 0 if none."""
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line or 0
    return 0
