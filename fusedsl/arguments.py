# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call: binding them to parameters, and what is wrong with those that fusedsl cannot take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fusedsl.frontend.records import Update
from fusedsl.graph.span import FuseError
from fusedsl.graph.types import dtype_name

#: dtypes a tensor argument may have.
DTYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)

_ALLOWED = (
    "a dense CPU or CUDA torch.Tensor of a bool, integer or real floating dtype, a number, bool, str, None, dtype, "
    "or a tuple, list or dict of these"
)


class ArgumentError(FuseError, TypeError):
    """An argument that fusedsl cannot take: its name, what it is, and what is allowed."""


def make_binder(
    fn: Callable[..., Any], signature: inspect.Signature
) -> tuple[tuple[str, ...], Callable[..., tuple[Any, ...]]]:
    """The parameter names of ``fn`` and a function of the same signature that returns its arguments as a tuple.

    Python itself does the binding, so a wrong call raises the very TypeError that ``fn`` would. ``*args`` arrive as one
    tuple, ``**kwargs`` as one dict.
    """
    parameters = signature.parameters
    spelled: list[str] = []
    positional_only = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    starred = False
    defaults: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            spelled.append(f"*{parameter.name}")
            starred = True
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            spelled.append(f"**{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            spelled.append("*")
            starred = True
        text = parameter.name
        if parameter.default is not parameter.empty:
            slot = f"_default_{len(defaults)}_"
            defaults[slot] = parameter.default
            text += f"={slot}"
        spelled.append(text)
        if positional_only and parameter.name == positional_only[-1]:
            spelled.append("/")
    names = tuple(parameters)
    returned = ", ".join(names) + ("," if names else "")
    namespace: dict[str, Any] = dict(defaults)
    exec(f"def bind({', '.join(spelled)}):\n    return ({returned})", namespace)
    bind = namespace["bind"]
    bind.__name__ = fn.__name__
    bind.__qualname__ = fn.__qualname__
    return names, bind


def walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Everything in an argument that is not a tuple, list or dict, with its spelling: ``("xs[0]", ...)``."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(f"{name}[{key!r}]", item)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from walk(f"{name}[{index}]", item)
    else:
        yield name, value


def describe(value: Any) -> str:
    """Type, device, dtype and shape of a value, for a message."""
    if not isinstance(value, Tensor):
        shape = getattr(value, "shape", None)
        dtype = getattr(value, "dtype", None)
        extra = "" if shape is None or dtype is None else f" of dtype {dtype} and shape {tuple(shape)}"
        text = repr(value) if isinstance(value, (int, float, complex, str, type(None))) else ""
        return f"{type(value).__module__}.{type(value).__qualname__}{extra}{' ' + text if text else ''}"
    kind = "torch.Tensor" if type(value) is Tensor else f"{type(value).__module__}.{type(value).__qualname__}"
    layout = "" if value.layout is torch.strided else f"{str(value.layout).removeprefix('torch.')} "
    return f"{layout}{kind} on {value.device} of dtype {dtype_name(value.dtype)} and shape {tuple(value.shape)}"


def check_tensor(function: str, name: str, value: Tensor, *, allow_meta: bool) -> None:
    """Refuse a tensor that kernels cannot read.

    Args:
        function: the fused function, for the message.
        name: how the tensor is reached: ``"x"``, ``"xs[0]"``, ``"self.weight"``.
        value: the tensor.
        allow_meta: whether it may have no data (looking inside needs none).

    Raises:
        ArgumentError: subclass, functorch tensor, layout, device or dtype.
    """
    hint = _tensor_hint(value, allow_meta)
    if hint is not None:
        raise ArgumentError(
            f"argument {name!r} of {function} is a {describe(value)}",
            expected="a dense CPU or CUDA torch.Tensor of a bool, integer or real floating dtype",
            hint=hint,
        )


def _tensor_hint(value: Tensor, allow_meta: bool) -> str | None:
    """What to do about a tensor that cannot be taken; None if it can."""
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return "call the fused function outside torch.func transforms (grad, vmap, jvp), or its .reference inside them"
    if type(value) is not Tensor and type(value) is not Parameter:
        return "tensor.as_subclass(torch.Tensor), if the subclass only labels a dense tensor"
    if value.layout is not torch.strided or value.is_nested:
        return "tensor.to_dense()"
    if value.dtype not in DTYPES:
        if value.dtype.is_complex:
            return "torch.view_as_real(tensor), which has a last dim of size 2"
        return f"tensor.to(torch.float32): {dtype_name(value.dtype)} is not supported"
    if value.device.type == "meta":
        return None if allow_meta else "explain, graph, source and compile, which take meta tensors; a call needs data"
    if value.device.type not in ("cpu", "cuda"):
        return "a CUDA device, or the CPU, where kernels are interpreted"
    return None


def check_changed(function: str, update: Update, name: str, value: Tensor) -> None:
    """Refuse to change a tensor in place of which several elements are one element of memory.

    Raises:
        ArgumentError: it is one.
    """
    if any(size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride(), strict=True)):
        raise ArgumentError(
            f"in-place {update.operation} on {name!r} of {function}: more than one element of it is one memory "
            f"location (shape {tuple(value.shape)}, strides {tuple(value.stride())})",
            update.span,
            expected="a tensor each element of which has memory of its own",
            hint=f"{name}.clone() before the call",
        )


def check_arguments(
    function: str, names: tuple[str, ...], values: tuple[Any, ...], *, allow_meta: bool = False
) -> tuple[Any, ...]:
    """Refuse arguments that fusedsl cannot take; return the arguments with negative bits resolved.

    Raises:
        ArgumentError: a wrong type, layout, dtype or device, or tensors on two devices.
    """
    tensors: list[tuple[str, Tensor]] = []
    for name, value in zip(names, values, strict=True):
        for spelled, leaf in walk(name, value):
            if isinstance(leaf, Tensor):
                check_tensor(function, spelled, leaf, allow_meta=allow_meta)
                tensors.append((spelled, leaf))
            else:
                _check_other(function, spelled, leaf)
    check_devices(function, tensors)
    return tuple(_resolve(value) for value in values)


def _check_other(function: str, name: str, value: Any) -> None:
    hint = None
    if isinstance(value, complex):
        hint = "two real arguments"
    elif type(value).__module__ == "numpy":
        is_array = getattr(value, "ndim", 0) > 0
        hint = "torch.from_numpy(array)" if is_array else None if isinstance(value, float) else "float(number)"
    elif hasattr(value, "__cuda_array_interface__"):
        hint = "torch.as_tensor(array, device='cuda')"
    if hint is not None:
        raise ArgumentError(f"argument {name!r} of {function} is a {describe(value)}", expected=_ALLOWED, hint=hint)


def check_devices(function: str, tensors: list[tuple[str, Tensor]]) -> None:
    """Refuse tensors of two devices.

    Raises:
        ArgumentError: names the first two arguments that differ, and their devices.
    """
    for name, tensor in tensors[1:]:
        first_name, first = tensors[0]
        if tensor.device != first.device:
            raise ArgumentError(
                f"arguments of {function} are on different devices: {first_name!r} is a {describe(first)}, "
                f"{name!r} is a {describe(tensor)}",
                expected="all tensors on one device",
                hint=f"{name}.to({str(first.device)!r})" if tensor.dim() else f"{name}.item(), as a number",
            )


def _resolve(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.resolve_neg()
    if type(value) in (tuple, list):
        return type(value)(_resolve(item) for item in value)
    if type(value) is dict:
        return {key: _resolve(item) for key, item in value.items()}
    return value


def is_fake(values: tuple[Any, ...]) -> bool:
    """Whether a tensor argument is a FakeTensor or another that stands for data while some other tool is tracing."""
    return any(
        isinstance(leaf, Tensor) and type(leaf).__module__.startswith("torch._subclasses")
        for value in values
        for _, leaf in walk("", value)
    )
