# SPDX-License-Identifier: Apache-2.0
"""Factories of constant tensors. ``empty`` kinds are filled with zeros.

A ``device`` given as a ``torch.device`` (``x.device``) is taken to be the device of the arguments; one given as text
or a layout, pinned
memory and ``requires_grad`` are left to eager torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedsl.frontend.callables.compose import common_dtype, dtype_argument, tensor
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.extents import extent_of, sizes_argument
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import TensorValue, full, is_value, plain_number


def is_plain(
    device: Any = None,
    layout: Any = None,
    pin_memory: Any = None,
    requires_grad: Any = False,
    memory_format: Any = None,
) -> bool:
    return (
        (device is None or isinstance(device, torch.device))
        and layout in (None, torch.strided)
        and not pin_memory
        and not requires_grad
        and memory_format in (None, torch.preserve_format)
    )


def _number(value: Any) -> Any:
    if isinstance(value, TensorValue):
        raise OpError("the fill value must be a number, got a tensor", hint="expand the tensor, or multiply it by ones")
    return value if is_value(value) else plain_number(value)


def _enter_like(name: str, value: int) -> None:
    def like(builder: Any, input: Any, *, dtype: Any = None, **options: Any) -> Any:
        source = tensor(input, f"{name}_like")
        if not is_plain(**options):
            return NotImplemented
        return full(builder, value, dtype_argument(dtype) or source.dtype, source.shape)

    def new(builder: Any, self: Any, *size: Any, dtype: Any = None, **options: Any) -> Any:
        source = tensor(self, f"new_{name}")
        if not is_plain(**options):
            return NotImplemented
        return full(builder, value, dtype_argument(dtype) or source.dtype, map(extent_of, sizes_argument(size)))

    def make(builder: Any, *size: Any, dtype: Any = None, **options: Any) -> Any:
        if not is_plain(**options):
            return NotImplemented
        sizes = options.pop("size", None) or sizes_argument(size)
        return full(builder, value, dtype_argument(dtype) or torch.get_default_dtype(), map(extent_of, sizes))

    like.__name__, new.__name__, make.__name__ = f"{name}_like", f"new_{name}", name
    handles(f"torch.{name}_like")(like)
    handles(f"Tensor.new_{name}")(new)
    handles(f"torch.{name}")(make)


for _name, _value in [("zeros", 0), ("ones", 1), ("empty", 0)]:
    _enter_like(_name, _value)


@handles("torch.full_like")
def full_like(builder: Any, input: Any, fill_value: Any, *, dtype: Any = None, **options: Any) -> Any:
    source = tensor(input, "full_like")
    if not is_plain(**options):
        return NotImplemented
    return full(builder, _number(fill_value), dtype_argument(dtype) or source.dtype, source.shape)


@handles("Tensor.new_full")
def new_full(
    builder: Any, self: Any, size: Sequence[Any], fill_value: Any, *, dtype: Any = None, **options: Any
) -> Any:
    source = tensor(self, "new_full")
    if not is_plain(**options):
        return NotImplemented
    return full(builder, _number(fill_value), dtype_argument(dtype) or source.dtype, map(extent_of, size))


@handles("torch.full")
def torch_full(builder: Any, size: Sequence[Any], fill_value: Any, *, dtype: Any = None, **options: Any) -> Any:
    if not is_plain(**options):
        return NotImplemented
    number = _number(fill_value)
    return full(builder, number, dtype_argument(dtype) or common_dtype(number), map(extent_of, size))


@handles("torch.scalar_tensor", "torch.tensor", "torch.as_tensor")
def scalar_tensor(builder: Any, data: Any, *, dtype: Any = None, **options: Any) -> Any:
    if (not is_value(data) and not isinstance(data, (bool, int, float))) or not is_plain(**options):
        return NotImplemented
    if isinstance(data, TensorValue):
        raise OpError("torch.tensor of a tensor copies it to the host first", hint="clone().detach()")
    return full(builder, data, dtype_argument(dtype) or common_dtype(data), ())
