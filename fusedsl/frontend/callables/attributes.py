# SPDX-License-Identifier: Apache-2.0
"""What a tensor says about itself: dtype, rank, sizes."""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.frontend.callables.compose import common_dtype, one_dim, tensor
from fusedsl.frontend.callables.extents import count
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import size


@handles(".shape")
def shape(builder: Any, input: Any) -> tuple[Any, ...]:
    return tuple(size(input, dim) for dim in range(input.rank))


@handles("Tensor.size")
def tensor_size(builder: Any, self: Any, dim: Any = None) -> Any:
    return shape(builder, self) if dim is None else size(self, one_dim(dim, self.rank))


@handles("Tensor.dim", "Tensor.ndimension", ".ndim")
def rank(builder: Any, self: Any) -> int:
    return tensor(self, "dim").rank


@handles("Tensor.numel", "Tensor.nelement", "torch.numel")
def numel(builder: Any, input: Any) -> Any:
    return count(tensor(input, "numel"), range(input.rank))


@handles(".dtype")
def dtype(builder: Any, input: Any) -> torch.dtype:
    return tensor(input, "dtype").dtype


@handles(".itemsize", "Tensor.element_size")
def element_size(builder: Any, input: Any) -> int:
    return tensor(input, "element_size").dtype.itemsize


@handles("Tensor.is_floating_point", "torch.is_floating_point")
def is_floating_point(builder: Any, input: Any) -> bool:
    return tensor(input, "is_floating_point").dtype.is_floating_point


@handles("Tensor.is_complex", "torch.is_complex")
def is_complex(builder: Any, input: Any) -> bool:
    return tensor(input, "is_complex").dtype.is_complex


@handles("Tensor.is_signed")
def is_signed(builder: Any, self: Any) -> bool:
    return tensor(self, "is_signed").dtype.is_signed


@handles("torch.result_type")
def result_type(builder: Any, tensor1: Any, tensor2: Any) -> torch.dtype:
    return common_dtype(tensor1, tensor2)


@handles(".real")
def real(builder: Any, input: Any) -> Any:
    return input


@handles("builtins.len", "Tensor.__len__")
def length(builder: Any, input: Any) -> Any:
    return tensor_size(builder, input, 0) if hasattr(input, "hint_shape") else len(input)
