# SPDX-License-Identifier: Apache-2.0
"""What a name can hold while tracing, beside tensors, host scalars and plain Python values."""

from __future__ import annotations

import types
from typing import Any

import attrs
import torch

from fusedsl.frontend.callables import ScalarValue, TensorValue
from fusedsl.frontend.records import AccessPath
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.source import FunctionSource, capture
from fusedsl.graph.types import ScalarType, dtype_name, extent_hint


@attrs.frozen(eq=False)
class Captured:
    """A Python object from outside the function, whose parts are fetched (and guarded) when they are used."""

    value: Any
    path: AccessPath


@attrs.frozen(eq=False)
class Function:
    """A Python function whose body can be walked.

    A captured function has ``function`` and ``path`` (None for the fused function itself); one that is defined inside
    the traced text has ``local`` (its source), ``frame`` (where it was defined) and its evaluated defaults.
    """

    function: Any = None  # types.FunctionType, which mypy would take for a method here
    path: AccessPath | None = None
    local: FunctionSource | None = None
    frame: Frame | None = None
    defaults: tuple[Any, ...] = ()
    kwdefaults: dict[str, Any] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__ if self.function is not None else self.source().name

    def source(self) -> FunctionSource:
        """The function's text; raises what ``capture`` raises."""
        if self.local is not None:
            return self.local
        assert self.function is not None
        return capture(self.function)

    def closure_path(self, index: int) -> AccessPath:
        """Where the function's free variable ``index`` is found."""
        assert self.function is not None
        if self.path is None:
            return AccessPath("closure", self.function.__code__.co_freevars[index])
        return self.path.attribute("__closure__").item(index).attribute("cell_contents")

    def global_path(self, name: str) -> AccessPath:
        """Where a name of the function's module is found."""
        return AccessPath("global", name) if self.path is None else self.path.attribute("__globals__").item(name)


@attrs.frozen(eq=False)
class Method:
    """A function bound to its first argument."""

    function: Any
    owner: Any


@attrs.frozen(eq=False)
class TensorMethod:
    """A method of a tensor, by name."""

    owner: TensorValue
    name: str


@attrs.frozen(eq=False)
class Super:
    """``super()``: attributes are looked up behind ``cls`` in the owner's method resolution order."""

    cls: type
    owner: Captured


@attrs.frozen(eq=False)
class Partial:
    """``functools.partial`` made inside the function."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


SYMBOLIC = (TensorValue, ScalarValue, Captured, Function, Method, TensorMethod, Super, Partial)


def describe(value: Any) -> str:
    """A value in a few words, for messages."""
    match value:
        case TensorValue():
            return f"a {dtype_name(value.dtype)} tensor of shape {value.hint_shape}"
        case ScalarValue():
            type_ = value.builder.type(value.id)
            assert isinstance(type_, ScalarType)
            return f"the host {type_.kind} {value.hint!r}"
        case Captured():
            return f"'{value.path}' ({describe_python(value.value)})"
        case Function():
            return f"the function '{value.name}'"
        case Method():
            return f"the method '{value.function.name}'" if isinstance(value.function, Function) else "a method"
        case TensorMethod():
            return f"the tensor method '{value.name}'"
        case Super() | Partial():
            return f"a {type(value).__name__.lower()} object"
        case _:
            return describe_python(value)


def describe_python(value: Any) -> str:
    """A plain Python value in a few words."""
    if isinstance(value, torch.Tensor):
        return f"a {dtype_name(value.dtype)} tensor of shape {tuple(value.shape)} on {value.device}"
    if isinstance(value, types.ModuleType):
        return f"the module '{value.__name__}'"
    if isinstance(value, type):
        return f"the class '{value.__name__}'"
    if callable(value) and hasattr(value, "__name__"):
        return f"'{value.__name__}'"
    if value is None or isinstance(value, (bool, int, float, str)):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    article = "an" if type(value).__name__[0] in "aeiouAEIOU" else "a"
    return f"{article} {type(value).__name__}"


def hints(value: Any) -> Any:
    """``value`` with host scalars replaced by the numbers seen while tracing, for messages."""
    if isinstance(value, ScalarValue):
        return value.hint
    if isinstance(value, TensorValue):
        sizes = ", ".join(str(extent_hint(e)) for e in value.type.shape)
        return _Shown(f"<{dtype_name(value.dtype)}[{sizes}]>")
    if isinstance(value, Captured):
        return value.value
    if isinstance(value, SYMBOLIC):
        return _Shown(describe(value))
    if type(value) in (list, tuple, set):
        return type(value)(hints(item) for item in value)
    if type(value) is dict:
        return {key: hints(item) for key, item in value.items()}
    return value


@attrs.frozen
class _Shown:
    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text
