# SPDX-License-Identifier: Apache-2.0
"""Dtype conversions and copies. A conversion to the dtype a tensor has already gives the tensor itself, as in torch."""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.frontend.callables.compose import dtype_argument, static, tensor
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.table import everywhere, handles
from fusedsl.frontend.callables.values import TensorValue, cast, detached, pointwise

_NAMES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "long": torch.int64,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
}


def _enter_conversion(name: str, dtype: torch.dtype) -> None:
    def handler(builder: Any, self: Any, memory_format: Any = torch.preserve_format) -> Any:
        if memory_format is not torch.preserve_format:
            return NotImplemented
        return cast(tensor(self, name), dtype, explicit=True)

    handler.__name__ = name
    handles(f"Tensor.{name}")(handler)


for _name, _dtype in _NAMES.items():
    _enter_conversion(_name, _dtype)


@handles("Tensor.to")
def to(
    builder: Any,
    self: Any,
    *targets: Any,
    dtype: Any = None,
    device: Any = None,
    other: Any = None,
    non_blocking: Any = False,
    copy: Any = False,
    memory_format: Any = torch.preserve_format,
) -> Any:
    value = tensor(self, "to")
    wanted, device, copy = _targets(targets, dtype, device, other, copy)
    if device is not None or memory_format is not torch.preserve_format:
        return NotImplemented
    result = value if wanted is None else cast(value, wanted, explicit=True)
    return pointwise("clone", value) if result is value and static(copy, "copy") else result


def _targets(targets: tuple[Any, ...], dtype: Any, device: Any, other: Any, copy: Any) -> tuple[Any, Any, Any]:
    """The dtype, device and copy flag of the forms ``to(dtype)``, ``to(device, dtype)`` and ``to(other)``."""
    rest = list(targets)
    if rest and isinstance(rest[0], TensorValue):
        other = rest.pop(0)
    elif rest and isinstance(rest[0], (torch.device, str)):
        device = rest.pop(0)
        dtype = rest.pop(0) if rest else dtype
    elif rest:
        dtype = rest.pop(0)
    if len(rest) > 1:  # (non_blocking, copy)
        copy = rest[1]
    if isinstance(other, TensorValue):
        dtype = other.dtype
    return dtype_argument(dtype), device, copy


@handles("Tensor.type")
def type_(builder: Any, self: Any, dtype: Any = None, non_blocking: Any = False) -> Any:
    value = tensor(self, "type")
    if dtype is None:
        return NotImplemented
    if isinstance(dtype, str):
        name = dtype.rsplit(".", 1)[-1].removesuffix("Tensor").lower()
        if name not in _NAMES:
            raise OpError(f"type {dtype!r} is not supported", expected="a torch.dtype")
        dtype = _NAMES[name]
    return cast(value, dtype_argument(dtype) or value.dtype, explicit=True)


@handles("Tensor.type_as")
def type_as(builder: Any, self: Any, other: Any) -> TensorValue:
    return cast(tensor(self, "type_as"), tensor(other, "type_as").dtype, explicit=True)


@handles(*everywhere("clone"))
def clone(builder: Any, input: Any, *, memory_format: Any = torch.preserve_format) -> Any:
    value = tensor(input, "clone")
    if memory_format is torch.preserve_format or memory_format is None:
        return pointwise("clone", value)
    return pointwise("contiguous", value) if memory_format is torch.contiguous_format else NotImplemented


@handles("Tensor.contiguous")
def contiguous(builder: Any, self: Any, memory_format: Any = torch.contiguous_format) -> Any:
    return (
        pointwise("contiguous", tensor(self, "contiguous"))
        if memory_format is torch.contiguous_format
        else NotImplemented
    )


@handles(*everywhere("detach"))
def detach(builder: Any, input: Any) -> TensorValue:
    return detached(tensor(input, "detach"))
