# SPDX-License-Identifier: Apache-2.0
"""The keys under which calls and traces are found.

The key of a call holds all that a planned program assumes of its arguments: per tensor dtype, sizes, strides, device,
alignment, whether it requires grad and whether that is recorded; the value of static arguments; only the kind of
numbers. Lists, tuples and dicts are looked into. Of any other object only the type is held: what the trace read of it
is guarded by the trace.

Building it is a good part of a cached call, so the function that does it is generated for every combination of argument
types: straight code with no test of a type left.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

#: Address modulo 16 -> alignment in bytes, at most 16.
ALIGNMENT = (16, 1, 2, 1, 4, 1, 2, 1, 8, 1, 2, 1, 4, 1, 2, 1)

#: Types that are wholly described by (type, value): a change of value is another call.
STATIC_TYPES = frozenset(
    {
        bool,
        str,
        bytes,
        type(None),
        type(Ellipsis),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        types.FunctionType,
        types.BuiltinFunctionType,
        type,
        range,
    }
)


class NoKey(Exception):
    """A call that the fast path cannot describe; :func:`fusedsl.arguments.check_arguments` tells why."""


#: What the key holds of a tensor; ``{n}`` is the argument. A negative device index is the CPU's or a meta tensor's.
_TENSOR_CHECK = "    g{n} = a{n}.requires_grad and (2 if grad_enabled() else 1)\n    if a{n}.is_neg(): raise NoKey\n"
_TENSOR_DEVICE = "    d{n} = a{n}.get_device()\n    if d{n} < 0: d{n} = a{n}.device.type\n"
_TENSOR_ITEMS = "a{n}.dtype, a{n}.shape, a{n}.stride(), d{n}, alignment[a{n}.data_ptr() & 15], g{n}"


@functools.lru_cache(maxsize=4096)
def key_function(kinds: tuple[type, ...]) -> Callable[..., tuple[Any, ...]]:
    """The function that builds the key of a call whose arguments have exactly these types."""
    body = ""
    items = ["kinds", "default_dtype()"]
    for n, kind in enumerate(kinds):
        if kind is Tensor or kind is Parameter:
            body += _TENSOR_CHECK.format(n=n) + _TENSOR_DEVICE.format(n=n)
            items.append(_TENSOR_ITEMS.format(n=n))
        elif kind in STATIC_TYPES:
            items.append(f"a{n}")
        elif kind is not float and kind is not int:
            items.append(f"describe(a{n}, kinds[{n}])")
    parameters = ", ".join(f"a{n}" for n in range(len(kinds)))
    text = f"def key({parameters}):\n{body}    return ({', '.join(items)})\n"
    names = {
        "NoKey": NoKey,
        "alignment": ALIGNMENT,
        "default_dtype": torch.get_default_dtype,
        "describe": _describe,
        "grad_enabled": torch.is_grad_enabled,
        "kinds": kinds,
    }
    exec(text, names)
    found: Callable[..., tuple[Any, ...]] = names["key"]  # type: ignore[assignment]
    return found


def call_key(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The exact key of a call.

    Raises:
        NoKey, RuntimeError: some tensor is not one that kernels can read as it is.
    """
    return key_function(tuple(map(type, values)))(*values)


def _tensor_guards(tensors: Sequence[Tensor]) -> Callable[..., bool] | None:
    """A function that tells whether tensors are like these, or None where this torch has no such guard.

    Alike means type, dtype, device, sizes, strides, requires_grad and all that torch dispatches on (negative bits,
    functorch, inference mode).
    """
    kind = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)
    if kind is None:
        return None
    try:
        made = kind(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        found: Callable[..., bool] = made.check
        return found if found(*tensors) else None
    except (TypeError, ValueError, RuntimeError):
        return None


@functools.lru_cache(maxsize=4096)
def _check_factory(kinds: tuple[type, ...], requires_grad: bool) -> Callable[..., Callable[..., bool]] | None:
    tensors = [n for n, kind in enumerate(kinds) if kind is Tensor or kind is Parameter]
    statics = [n for n, kind in enumerate(kinds) if kind in STATIC_TYPES]
    others = [kind for n, kind in enumerate(kinds) if n not in tensors and n not in statics]
    if not tensors or any(kind is not float and kind is not int for kind in others):
        return None
    tests = [f"alike({', '.join(f'a{n}' for n in tensors)})", "default_dtype() is dtype"]
    tests += ["grad_enabled() is recording"] if requires_grad else []
    tests += [f"a{n}.data_ptr() & 15 == e{n}" for n in tensors] + [f"a{n} == e{n}" for n in statics]
    parameters = ", ".join(f"a{n}" for n in range(len(kinds)))
    expected = ", ".join(f"e{n}" for n in range(len(kinds)))
    text = f"def make(alike, dtype, recording, {expected}):\n    return lambda {parameters}: {' and '.join(tests)}\n"
    names: dict[str, Any] = {"default_dtype": torch.get_default_dtype, "grad_enabled": torch.is_grad_enabled}
    exec(text, names)
    found: Callable[..., Callable[..., bool]] = names["make"]
    return found


def quick_check(values: tuple[Any, ...]) -> Callable[..., bool] | None:
    """A function that tells whether arguments of the same types surely have the key of these, at a tenth of the work.

    None where there is none: the arguments have other than tensors, numbers and plain static values.
    """
    requires_grad = any(isinstance(value, Tensor) and value.requires_grad for value in values)
    factory = _check_factory(tuple(map(type, values)), requires_grad)
    alike = _tensor_guards([value for value in values if isinstance(value, Tensor)]) if factory is not None else None
    if factory is None or alike is None:
        return None
    expected = (value.data_ptr() & 15 if isinstance(value, Tensor) else value for value in values)
    return factory(alike, torch.get_default_dtype(), torch.is_grad_enabled(), *expected)


def _describe(value: Any, kind: type) -> Any:
    """What the key holds of an argument that is neither a tensor, a number nor a plain static value."""
    if isinstance(value, (tuple, list)):
        return call_key(tuple(value))
    if isinstance(value, dict):
        return (tuple(value), call_key(tuple(value.values())))
    if kind is slice:
        return call_key((value.start, value.stop, value.step))
    if isinstance(value, Tensor):
        raise NoKey
    return value if isinstance(value, enum.Enum) else None


def trace_key(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a trace assumes of a call that its guards do not check.

    That is dtype, rank, device and which extents are 0 or 1 of tensors, and types and values of static arguments.
    """
    key: list[Any] = [torch.get_default_dtype()]
    for value in values:
        kind = type(value)
        if isinstance(value, Tensor):
            extents = tuple(size if size < 2 else -1 for size in value.shape)
            key.append((value.dtype, extents, value.device, value.requires_grad))
        elif isinstance(value, (tuple, list)):
            key.append((kind, trace_key(tuple(value))))
        elif isinstance(value, dict):
            key.append((kind, tuple(value), trace_key(tuple(value.values()))))
        elif kind in STATIC_TYPES or isinstance(value, enum.Enum):
            key.append((kind, value))
        else:
            key.append(kind)
    return tuple(key)
