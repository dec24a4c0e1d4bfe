# SPDX-License-Identifier: Apache-2.0
"""The call of an ``opaque`` node: a hashable template with holes for the node's inputs, and names of callables.

``make_template(args, kwargs, is_value)`` takes the call apart, ``CallTemplate.fill(values)`` puts it together again.
"""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional


@attrs.frozen
class Hole:
    """Stands for ``node.inputs[index]``."""

    index: int


@attrs.frozen
class Pack:
    """A container or slice of a call, made hashable. ``kind`` is "list", "tuple", "dict" or "slice"."""

    kind: str
    items: tuple[Any, ...]


@attrs.frozen
class CallTemplate:
    """Arguments of a call; each item is a Hole, a Pack or a static value."""

    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def fill(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with ``values[i]`` in place of ``Hole(i)``."""
        return tuple(_fill(x, values) for x in self.args), {k: _fill(x, values) for k, x in self.kwargs}


def make_template(
    args: Sequence[Any], kwargs: Mapping[str, Any], is_value: Callable[[Any], bool]
) -> tuple[CallTemplate, tuple[Any, ...]]:
    """Split a call into a template and the values that fill its holes, in order of appearance.

    Args:
        args: positional arguments; values may stand inside lists, tuples, dicts and slices.
        kwargs: keyword arguments.
        is_value: tells graph values from static ones.
    """
    values: list[Any] = []

    def strip(item: Any) -> Any:
        if is_value(item):
            values.append(item)
            return Hole(len(values) - 1)
        if isinstance(item, slice):
            return Pack("slice", tuple(strip(x) for x in (item.start, item.stop, item.step)))
        if isinstance(item, list):
            return Pack("list", tuple(strip(x) for x in item))
        if isinstance(item, dict):
            return Pack("dict", tuple((key, strip(x)) for key, x in item.items()))
        if type(item) in (tuple, torch.Size):
            return Pack("tuple", tuple(strip(x) for x in item))
        return item

    template = CallTemplate(tuple(strip(x) for x in args), tuple((k, strip(x)) for k, x in kwargs.items()))
    return template, tuple(values)


def _fill(item: Any, values: Sequence[Any]) -> Any:
    if isinstance(item, Hole):
        return values[item.index]
    if not isinstance(item, Pack):
        return item
    match item.kind:
        case "slice":
            return slice(*(_fill(x, values) for x in item.items))
        case "list":
            return [_fill(x, values) for x in item.items]
        case "tuple":
            return tuple(_fill(x, values) for x in item.items)
        case "dict":
            return {key: _fill(x, values) for key, x in item.items}
        case _:
            raise AssertionError(f"unknown container {item.kind}")


@functools.cache
def resolve_function(name: str) -> Callable[..., Any]:
    """The callable of a qualified name such as ``torch.matmul``, ``torch.Tensor.view`` or ``operator.getitem``.

    Raises:
        KeyError: nothing has this name.
    """
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    raise KeyError(f"no callable is named {name}")


_HOMES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.special", torch.special),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    ("operator", operator),
    ("torch.Tensor", torch.Tensor),
)


def qualified_name(function: Callable[..., Any]) -> str | None:
    """A name under which ``resolve_function`` finds ``function`` again, or None."""
    name = getattr(function, "__name__", None)
    if name is None:
        return None
    for home, namespace in _HOMES:
        if getattr(namespace, name, None) is function:
            return f"{home}.{name}"
    full = f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', name)}"
    try:
        return full if resolve_function(full) is function else None
    except KeyError:
        return None
