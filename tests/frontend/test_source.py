# SPDX-License-Identifier: Apache-2.0
"""Finding a function's text: files, notebook cells, exec, stdin, stacked decorators, indentation, non-ASCII columns."""

from __future__ import annotations

import functools
import linecache
import subprocess
import sys
import textwrap

import pytest
import torch

from fusedsl.frontend import errors
from fusedsl.frontend.source import capture, remember
from fusedsl.frontend.trace import check_function
from tests.frontend.tracing import check, holds, traced


def other(*args, **kwargs):
    return lambda fn: fn


def wrapping(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) * 2

    return wrapper


@other((1, 2), dict(k=lambda x: x + 1))
@other(
    "a ) string (",  # a comment with a (
    key=[lambda y: y, lambda: 3],
)
def decorated(x):
    # the line after this one is the third
    y = x + 1
    return y.nothing  # wrong


@wrapping
def wrapped(x, by=2.0):
    return x * by


class Holder:
    class Inner:
        @staticmethod
        def deep(x):
            text = """
not indented
"""
            return x + len(text) + x.nothing


def error_of(fn, *args):
    with pytest.raises(errors.FrontendError) as caught:
        traced(fn, *args)
    return caught.value


def test_decorators_do_not_shift_lines():
    error = error_of(decorated, torch.ones(2))
    assert error.span.text == "    return y.nothing  # wrong"
    assert error.span.text[error.span.column : error.span.end_column] == "y.nothing"
    with open(__file__) as file:
        assert file.readlines()[error.span.line - 1].rstrip("\n") == error.span.text


def test_a_wrapper_is_walked():
    check(wrapped, torch.randn(3))
    check(wrapped, torch.randn(3), by=3.0)


def test_indented_definition_keeps_columns_and_strings():
    error = error_of(Holder.Inner.deep, torch.ones(2))
    assert error.span.text[error.span.column : error.span.end_column] == "x.nothing"
    assert error.span.column == error.span.text.index("x.nothing")


def test_columns_are_characters():
    def greek(x):
        return (x * len("αβγδε")) + x.nothing

    error = error_of(greek, torch.ones(2))
    assert error.span.text[error.span.column : error.span.end_column] == "x.nothing"
    assert str(error).splitlines()[3].index("^") == str(error).splitlines()[2].index("x.nothing")


def test_tabs_comments_and_continuations():
    text = textwrap.dedent(
        """\
        def f(x):
        \t# comment
        # a comment to the left
        \ty = (x +
        1)

        \treturn y \\
        \t\t* 2
        # after
        z = 3
        """
    )
    f = from_linecache("<tabs>", text)["f"]
    assert capture(f).text.count("\n") == 8
    check(f, torch.randn(3))


def from_linecache(name, text):
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names = {"torch": torch, "__name__": name}
    exec(compile(text, name, "exec"), names)
    return names


def test_exec_with_text_in_linecache():
    f = from_linecache("<registered>", "def f(x):\n    return x * 3\n")["f"]
    check(f, torch.randn(3))


def test_cell_that_is_run_again_with_an_edit():
    cell = "def g(x):\n    return x * 2\ndef f(x):\n    return g(x)\n"
    names = from_linecache("<cell-1>", cell)
    value = torch.randn(3)
    found = check(names["f"], value)
    edited = from_linecache("<cell-2>", cell.replace("* 2", "* 5"))
    names["g"] = edited["g"]
    assert not holds(found, names["f"], value)
    check(names["f"], value)
    check(edited["f"], value)


def test_exec_without_text():
    names: dict = {}
    exec("def f(x):\n    return x\n", names)
    error = error_of(names["f"], torch.ones(2))
    assert str(error) == (
        "SourceNotAvailable: the source of 'f' cannot be found (it was made by exec or python -c)\n"
        "  expected: a function whose text Python can show: a file, a notebook cell, or text registered in linecache\n"
        "  try: put the function into a file"
    )


def test_helper_without_text():
    names: dict = {}
    exec("def helper(x):\n    return x\n", names)
    helper = names["helper"]

    def f(x):
        return helper(x)

    error = error_of(f, torch.ones(2))
    assert isinstance(error, errors.UnsupportedCall)
    assert "the source of 'helper' cannot be found" in str(error)
    assert error.span.text.strip() == "return helper(x)"


@pytest.mark.parametrize("way", ["-c", "stdin"])
def test_program_without_a_file(way):
    program = textwrap.dedent(
        """
        import inspect, torch
        from fusedsl.frontend.trace import trace
        def f(x):
            return x + 1
        try:
            print(len(trace(f, inspect.signature(f).bind(torch.ones(2))).graph.nodes))
        except Exception as error:
            print(type(error).__name__)
        """
    )
    if way == "-c":
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    else:
        done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True)
    assert done.stdout.strip() in ("SourceNotAvailable", "3"), done.stderr


def test_edit_of_the_file_after_the_definition(tmp_path):
    path = tmp_path / "user.py"
    text = "def f(x):\n    return x * 2\n"
    path.write_text(text)
    names: dict = {"__name__": "user"}
    exec(compile(text, str(path), "exec"), names)
    remember(names["f"])
    path.write_text("\n\n" + text.replace("2", "3"))
    linecache.checkcache(str(path))
    check(names["f"], torch.randn(3))


def test_text_that_is_not_the_functions(tmp_path):
    path = tmp_path / "user.py"
    text = "def f(x):\n    return x * 2\n"
    path.write_text("import os\n" + text)
    names: dict = {"__name__": "user"}
    exec(compile(text, str(path), "exec"), names)
    with pytest.raises(
        errors.SourceChanged, match=r"the source of 'f' in .*user.py is not the text it was compiled from"
    ):
        traced(names["f"], torch.ones(2))


def test_lambdas_on_one_line_are_told_apart():
    first, second = (lambda v: v + 1), (lambda v: v * 3)
    third = lambda v, w=2: v - w  # noqa: E731

    def f(x):
        return first(x) + second(x) * third(x)

    check(f, torch.randn(3))


def test_lambda_is_refused_when_decorated():
    with pytest.raises(errors.LambdaFunction):
        check_function(lambda x: x)


def test_long_function_is_found_whole():
    body = "".join(f"    y{i} = x + {i}\n" for i in range(300))
    f = from_linecache(
        "<long>", f"class C:\n  def f(x):\n{textwrap.indent(body, '  ')}      return y299\n\nC.f.z = 1\n"
    )["C"].f
    check(f, torch.randn(3))
