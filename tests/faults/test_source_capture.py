# SPDX-License-Identifier: Apache-2.0
"""Where a function's source comes from, whose names it means, and whether its mistakes are shown on its own lines."""

from __future__ import annotations

import bdb
import compileall
import functools
import linecache
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch as T
from torch import Tensor
from torch.nn import functional as FF

import fusedsl
from tests.faults.programs import run_python

x = 5
scale = 3.0


def other(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator with arguments that keeps the function as it is."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    return decorate


def wrapping(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator with arguments that wraps the function."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*a: Any, **k: Any) -> Any:
            return function(*a, **k)

        return wrapper

    return decorate


_BODY = """import torch, fusedsl
@fusedsl.fuse
def f(x):
    return x * 2 + 1
assert torch.equal(f(torch.ones(3)), torch.full((3,), 3.0))
print("fine")
"""


def fine_or_explained(output: str) -> bool:
    """The program worked, or its one error says that the source is missing and what to do."""
    return "fine" in output or ("fusedsl" in output and "try:" in output and "source" in output and "file" in output)


def test_function_made_by_exec() -> None:
    try:
        exec(compile(_BODY, "<string>", "exec"), {})
    except fusedsl.FuseError as error:
        assert "source" in str(error) and "file" in str(error)


def test_function_from_the_command_line_and_from_a_pipe() -> None:
    assert fine_or_explained(run_python("-c", _BODY, check=False))
    assert fine_or_explained(run_python("-", stdin=_BODY, check=False))


def test_notebook_cell_that_is_run_again_with_an_edit() -> None:
    """A notebook registers each cell in linecache under a name of its own."""
    namespace: dict[str, Any] = {"fusedsl": fusedsl}
    for number, body in enumerate(["x * 2", "x * 3"]):
        text = f"@fusedsl.fuse\ndef f(x):\n    return {body}\n"
        name = f"<ipython-input-{number}-test>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), namespace)
        assert namespace["f"](torch.ones(2)).tolist() == [2.0 + number] * 2


def test_module_without_its_source_file(tmp_path: Path) -> None:
    (tmp_path / "no_source.py").write_text(_BODY)
    assert compileall.compile_file(str(tmp_path / "no_source.py"), quiet=1, legacy=True)
    (tmp_path / "no_source.py").unlink()
    assert fine_or_explained(run_python(str(tmp_path / "no_source.pyc"), check=False))


def test_decorators_with_lambdas_and_parentheses() -> None:
    @other((1, 2), dict(k=lambda x: x + 1))
    @fusedsl.fuse(numerics="default")
    @other(((1), (2, (3))), key=lambda y: (y, (y)))
    def f(x: Tensor) -> Tensor:
        return x + 1

    assert f(torch.ones(2)).tolist() == [2.0, 2.0]


def test_line_of_an_error_below_stacked_decorators() -> None:
    @other((1, 2), dict(k=lambda x: x + 1))
    # a comment
    @fusedsl.fuse(
        fallback="error",
    )
    @other(
        1,
    )
    def f(x: Tensor) -> Tensor:
        y = x + 1

        if y.sum() > 0:
            return y
        return x

    with pytest.raises(fusedsl.FuseError) as caught:
        f(torch.ones(2))
    wanted = test_line_of_an_error_below_stacked_decorators.__code__.co_firstlineno + 12
    text = str(caught.value)
    assert f"{Path(__file__).name}:{wanted}:" in text
    assert "if y.sum() > 0:" in text and "^" in text


def test_a_parameter_hides_a_global_of_its_name() -> None:
    @fusedsl.fuse
    def f(x: Tensor, scale: float) -> Tensor:
        return x * scale

    assert f(torch.ones(2), 4.0).tolist() == [4.0, 4.0]


def test_local_names_and_loop_variables_hide_globals() -> None:
    @fusedsl.fuse
    def f(a: Tensor) -> Tensor:
        scale = 2.0
        for x in range(1, 4):
            a = a * x
        return a * scale + x

    assert f(torch.ones(2)).tolist() == [15.0, 15.0]


def test_aliased_modules() -> None:
    @fusedsl.fuse
    def f(a: Tensor) -> Tensor:
        return T.exp(a) + FF.relu(a)

    torch.testing.assert_close(f(torch.ones(2)), torch.exp(torch.ones(2)) + 1)


def exp(a: Tensor) -> Tensor:
    return a + 100


def test_a_users_exp_is_not_torch_exp() -> None:
    @fusedsl.fuse
    def f(a: Tensor) -> Tensor:
        return exp(a)

    assert f(torch.ones(2)).tolist() == [101.0, 101.0]


def test_a_wrapping_decorator_below_is_called_or_refused() -> None:
    @fusedsl.fuse
    @wrapping(1)
    def f(x: Tensor) -> Tensor:
        return x * 3

    try:
        assert f(torch.ones(2)).tolist() == [3.0, 3.0]
    except fusedsl.FuseError as error:
        assert "^" in str(error) or "wrapper" in str(error)


def test_printing_options_change_no_result(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusedsl.config, "print_source", True)
    monkeypatch.setattr(fusedsl.config, "log", "debug")

    @fusedsl.fuse
    def größe(
        a: Tensor,
        b: Tensor,
        activation: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
        nothing: None,
        names: tuple[str, ...],
        factor: float = 2.0,
    ) -> Tensor:
        ß = activation(a) + b
        if nothing is None and len(names) == 300:
            ß = ß * factor
        return ß.to(dtype)

    a, b = torch.randn(3, 4, device=device), torch.randn(4, device=device)
    arguments = (a, b, torch.relu, torch.float16, None, tuple(f"name {i}" for i in range(300)))
    y = größe(*arguments)
    torch.testing.assert_close(y, größe.reference(*arguments))
    assert y.dtype == torch.float16
    text = größe.source(*arguments)
    compile(text, "<kernel>", "exec")
    assert str(größe.explain(*arguments))


def test_shown_source_is_the_same_with_printing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(a: Tensor) -> Tensor:
        return a.softmax(-1)

    argument = torch.empty(8, 64, device="meta")
    plain = fusedsl.fuse(f).source(argument)
    monkeypatch.setattr(fusedsl.config, "print_source", True)
    assert fusedsl.fuse(f).source(argument) == plain


def unsupported_op(x: Tensor) -> Tensor:
    return torch.fft.fft(x)  # here


def endless(x: Tensor) -> Tensor:
    while True:  # here
        x = x + 1


def branch_on_data(x: Tensor) -> Tensor:
    if x.sum() > 0:  # here
        return x
    return -x


def undefined(x: Tensor) -> Tensor:
    return x + not_defined_anywhere  # type: ignore[name-defined]  # noqa: F821  # here


def comprehension_over_tensor(x: Tensor) -> Tensor:
    return sum([row * 2 for row in x])  # type: ignore[return-value]  # here


def item(x: Tensor) -> Tensor:
    return x * x.sum().item()  # here


def shapes(x: Tensor) -> Tensor:
    return (
        x
        + 1
        + torch.zeros(3, 5)  # here
        * 2
    )


MISTAKES = [unsupported_op, endless, branch_on_data, undefined, item, shapes]


@pytest.mark.parametrize("function", MISTAKES, ids=lambda f: f.__name__)
def test_a_mistake_is_shown_on_the_users_line(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(fusedsl.FuseError) as caught:
        fusedsl.fuse(function, fallback="error")(torch.ones(3, 4))
    text = str(caught.value)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    first = function.__code__.co_firstlineno
    here = next(number for number in range(first, first + 12) if "# here" in lines[number - 1])
    tolerated = {here} if function is not shapes else {here - 2, here - 1, here, here + 1}
    assert any(f"{Path(__file__).name}:{number}:" in text for number in tolerated), text
    assert "^" in text
    assert "try:" in text or "expected:" in text


def test_a_mistake_shows_no_frames_of_the_compiler() -> None:
    with pytest.raises(fusedsl.FuseError) as caught:
        fusedsl.fuse(branch_on_data)(torch.ones(3, 4))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_comprehension_over_a_tensor_is_as_in_eager_or_refused() -> None:
    fused, a = fusedsl.fuse(comprehension_over_tensor), torch.ones(3, 4)
    try:
        actual = fused(a)
    except fusedsl.FuseError as error:
        assert "^" in str(error)
        return
    torch.testing.assert_close(actual, comprehension_over_tensor(a))


def test_print_of_a_tensor_is_refused() -> None:
    def shows(a: Tensor) -> Tensor:
        print(a)
        return a + 1

    with pytest.raises(fusedsl.FuseError, match="print"):
        fusedsl.fuse(shows, fallback="error")(torch.ones(2))


def test_a_breakpoint_points_to_the_reference() -> None:
    def stops(a: Tensor) -> Tensor:
        breakpoint()
        return a + 1

    with pytest.raises(fusedsl.FuseError, match=r"fn\.reference"):
        fusedsl.fuse(stops)(torch.ones(2))


class Steps(bdb.Bdb):
    """A debugger that notes the kernel lines it stops at and the types of the variables there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, set[str]]] = []

    def user_line(self, frame: types.FrameType) -> None:
        name = frame.f_code.co_filename
        if name.startswith("<fusedsl "):
            line = linecache.getline(name, frame.f_lineno).strip()
            self.seen.append((line, {type(value).__name__ for value in frame.f_locals.values()}))
        self.set_step()


def test_a_debugger_steps_through_kernel_text() -> None:
    """Before and after a step the debugger sees the kernel's lines and its tiles."""

    @fusedsl.fuse
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    x = torch.arange(4.0)
    debugger = Steps()
    before = sys.gettrace()
    debugger.set_trace()
    try:
        y = doubled(x)
    finally:
        debugger.set_quit()
        sys.settrace(before)
    assert torch.equal(y, x * 2)
    lines = [line for line, _ in debugger.seen]
    assert any("load" in line for line in lines)
    assert any("* 2" in line for line in lines)
    assert any("Tile" in types_ for _, types_ in debugger.seen)
