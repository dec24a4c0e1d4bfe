# SPDX-License-Identifier: Apache-2.0
"""Where in the user's file a value came from, and the root of every error that fusedsl raises."""

from __future__ import annotations

import attrs


@attrs.frozen
class SourceSpan:
    """A stretch of the user's source.

    Attributes:
        file: path as Python reports it.
        line: first line, counted from 1.
        column: first column in characters, counted from 0.
        end_line: last line, counted from 1.
        end_column: column after the last character.
        text: the source line at ``line``, without its newline.
        function: name of the function the line stands in.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    function: str = ""

    def caret(self) -> str:
        """The location, the user's line and a caret line under the span."""
        last = self.end_column if self.end_line == self.line else len(self.text)
        stripped = self.text.lstrip()
        shift = len(self.text) - len(stripped)
        start = max(self.column - shift, 0)
        width = max(last - self.column, 1)
        return f"  {self.file}:{self.line}:{self.column}\n    {stripped}\n    {' ' * start}{'^' * width}"


class FuseError(Exception):
    """Root of every failure fusedsl raises: what happened, where, what was expected, what to do.

    Args:
        message: one sentence.
        span: the user's source, if a line is to blame.
        expected: what would have been accepted.
        hint: what to try instead.
    """

    def __init__(
        self,
        message: str,
        span: SourceSpan | None = None,
        *,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.span = span
        self.expected = expected
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        parts = [f"{type(self).__name__}: {self.message}"]
        if self.span is not None:
            parts.append(self.span.caret())
        if self.expected is not None:
            parts.append(f"  expected: {self.expected}")
        if self.hint is not None:
            parts.append(f"  try: {self.hint}")
        return "\n".join(parts)
