# SPDX-License-Identifier: Apache-2.0
"""The mistakes a user can make in the text of a fused function: one class each, with its message.

A class holds three templates (what happened, what was expected, what to try); the fields of a template are the keyword
arguments of the constructor.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fusedsl.graph.span import FuseError, SourceSpan


class FrontendError(FuseError):
    """A function that cannot be traced."""

    template: ClassVar[str] = "{reason}"
    expected_template: ClassVar[str | None] = None
    hint_template: ClassVar[str | None] = None

    def __init__(self, span: SourceSpan | None = None, **fields: Any) -> None:
        super().__init__(
            self.template.format_map(fields),
            span,
            expected=_fill(self.expected_template, fields),
            hint=_fill(self.hint_template, fields),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.span, self.expected, self.hint)


def _fill(template: str | None, fields: dict[str, Any]) -> str | None:
    if template is None:
        return None
    text = template.format_map(fields)
    return None if text == "None" else text


def _rebuild(cls: type[FuseError], message: str, span: SourceSpan | None, expected: str, hint: str) -> FuseError:
    error = cls.__new__(cls)
    FuseError.__init__(error, message, span, expected=expected, hint=hint)
    return error


# the function itself --------------------------------------------------------------------------------------------------


class SourceNotAvailable(FrontendError):
    template = "the source of '{name}' cannot be found ({where})"
    expected_template = (
        "a function whose text Python can show: a file, a notebook cell, or text registered in linecache"
    )
    hint_template = "put the function into a file"


class SourceChanged(FrontendError):
    template = "the source of '{name}' in {file} is not the text it was compiled from"
    expected_template = "line {line} of the file to begin the definition of '{name}'"
    hint_template = "import the module again, or restart the process, after an edit"


class NotAFunction(FrontendError):
    template = "fusedsl works on Python functions, this is {found}"
    expected_template = "a function defined with 'def'"
    hint_template = "{hint}"


class AsyncFunction(FrontendError):
    template = "'{name}' is an async function"
    expected_template = "a plain function defined with 'def'"
    hint_template = "fuse the arithmetic as a function of its own and call it from the coroutine"


class GeneratorFunction(FrontendError):
    template = "'{name}' is a generator: it has a 'yield'"
    expected_template = "a function that returns its results"
    hint_template = "return a tuple or a list"


class LambdaFunction(FrontendError):
    template = "a lambda cannot be fused"
    expected_template = "a function defined with 'def'"
    hint_template = "give it a name: def f({arguments}): return ..."


class UnsupportedArgument(FrontendError):
    template = "{path} is {found}, which a fused function cannot use"
    expected_template = "a tensor, a Python number, bool, str, None, dtype, or a container or object that holds them"
    hint_template = "{hint}"


# statements and expressions -------------------------------------------------------------------------------------------


class UnsupportedStatement(FrontendError):
    template = "{what} cannot be used in a fused function"
    expected_template = "assignments, if, for, while, with, assert, raise, return and nested functions"
    hint_template = "{hint}"


class UnsupportedExpression(FrontendError):
    template = "{what} cannot be used in a fused function"
    hint_template = "{hint}"


class UndefinedName(FrontendError):
    template = "name '{name}' is not defined"
    expected_template = "a parameter, a local variable, or a name of an enclosing function, the module or builtins"
    hint_template = "{hint}"


class UnassignedName(FrontendError):
    template = "'{name}' is read before it is assigned"
    expected_template = "an assignment to '{name}' on the path taken here: it is local, since the function assigns it"


class UnpackMismatch(FrontendError):
    template = "cannot unpack {found} into {wanted} names"
    hint_template = "{hint}"


class DataDependentBranch(FrontendError):
    template = "this {construct} needs a value that is known only on the GPU"
    expected_template = "a condition on shapes, dtypes or Python values"
    hint_template = "{hint}"


class TensorIteration(FrontendError):
    template = "a tensor cannot be iterated over"
    expected_template = "a loop over a Python container or a range"
    hint_template = "use operations on the whole tensor, or x.unbind(0) for its rows"


class HostValue(FrontendError):
    template = "{what} needs the value of a tensor on the host"
    expected_template = "values that stay on the GPU"
    hint_template = "{hint}"


class EndlessLoop(FrontendError):
    template = "this loop never ends: its condition is always true and nothing leaves it"
    expected_template = "a 'break', a 'return', or a condition that changes"
    hint_template = "for i in range(n)"


class LoopTooLong(FrontendError):
    template = "this loop runs more than {limit} times"
    expected_template = "at most {limit} iterations: loops are unrolled while tracing"
    hint_template = "write it as operations on whole tensors"


class RecursionTooDeep(FrontendError):
    template = "calls are nested more than {limit} deep, in '{name}'"
    expected_template = "a recursion that ends on static values"
    hint_template = "write it as a loop"


class PrintCall(FrontendError):
    template = "print in a fused function would print once, while tracing, and no values"
    expected_template = "no output from inside the function"
    hint_template = "return the value and print it outside, or run fn.reference(...)"


class AssertionFailed(FrontendError):
    template = "assertion failed: {reason}"


class RaisedByFunction(FrontendError):
    template = "the function raises {reason}"


# calls ----------------------------------------------------------------------------------------------------------------


class NotCallable(FrontendError):
    template = "{found} cannot be called"


class WrongArguments(FrontendError):
    template = "{function}: {reason}"
    expected_template = "{expected}"


class UnsupportedCall(FrontendError):
    template = "{name} cannot be called in a fused function: {reason}"
    expected_template = "torch functions, math, Python functions with source, and pure builtins"
    hint_template = "{hint}"


class MissingAttribute(FrontendError):
    template = "{found} has no attribute '{name}'"
    hint_template = "{hint}"


class StaticFailure(FrontendError):
    template = "{kind}: {reason}"


class OperationFailed(FrontendError):
    template = "{reason}"
    expected_template = "{expected}"
    hint_template = "{hint}"


class UnknownOperation(FrontendError):
    template = "{name} is not an operation that fusedsl can fuse"
    expected_template = "an operation of the op table, since fallback='error'"
    hint_template = "fuse(fallback='opaque') runs it by eager torch"


class UnsupportedOperation(FrontendError):
    template = "{name} cannot be used in a fused function: {reason}"
    expected_template = "an operation whose result has a shape and dtype that follow from its arguments' types"
    hint_template = "call it outside the fused function"


# in-place, and results ------------------------------------------------------------------------------------------------


class InPlaceOnArgument(FrontendError):
    template = "in-place {operation} would change {what} through a view that the graph cannot express"
    expected_template = "the tensor itself, or a view of all its elements that permutes, adds or drops dims"
    hint_template = "{hint}"


class InPlaceOnView(FrontendError):
    template = "in-place {operation} on a value that shares its memory with another live value"
    expected_template = "in-place operations on values that have no views"
    hint_template = "{hint}"


class InPlaceResult(FrontendError):
    template = "in-place {operation}: the result is {found}, the target is {target}"
    expected_template = "a result that fits into the target"
    hint_template = "{hint}"


class ItemAssignment(FrontendError):
    template = "assigning to {what} cannot be used in a fused function"
    expected_template = "values that do not change once computed"
    hint_template = "{hint}"


class CapturedMutation(FrontendError):
    template = "{path} is changed, which would outlive the call"
    expected_template = "changes to containers that the function itself made"
    hint_template = "make a copy first: list(...), dict(...)"


class UnsupportedResult(FrontendError):
    template = "{found} cannot be returned from a fused function"
    expected_template = "tensors, Python values, and tuples, lists and dicts of them"
