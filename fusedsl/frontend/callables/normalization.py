# SPDX-License-Identifier: Apache-2.0
"""layer_norm and rms_norm over the last dims; computed in at least float32 and rounded once, as torch does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedsl.frontend.callables.compose import common_dtype, packed, static, tensor, widen
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.extents import match_extent
from fusedsl.frontend.callables.reductions import averaged, centred_variance
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import TensorValue, cast, is_value, pointwise


def _normalized_dims(value: TensorValue, normalized_shape: Any, name: str) -> tuple[int, ...]:
    """The trailing dims that ``normalized_shape`` names."""
    sizes: Sequence[Any] = (
        normalized_shape
        if isinstance(normalized_shape, (tuple, list))
        else (static(normalized_shape, "normalized_shape"),)
    )
    first = value.rank - len(sizes)
    fits = first >= 0 and len(sizes) > 0
    for dim, written in enumerate(sizes, first):
        fits = fits and (written == value.shape[dim] or match_extent(value.builder, written, value.shape[dim]))
    if not fits:
        text = tuple(getattr(s, "hint", s) for s in sizes)
        raise OpError(f"{name}: normalized_shape {text} does not match the last dims of shape {value.hint_shape}")
    return tuple(range(first, value.rank))


def _check_parameter(value: TensorValue, parameter: Any, dims: Sequence[int], name: str) -> TensorValue | None:
    if parameter is None:
        return None
    found = tensor(parameter, name)
    if found.hint_shape != tuple(value.hint_shape[d] for d in dims):
        raise OpError(
            f"{name} has shape {found.hint_shape}, the normalized dims are {tuple(value.hint_shape[d] for d in dims)}"
        )
    return found


@handles("F.layer_norm")
def layer_norm(
    builder: Any, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> TensorValue:
    value = tensor(input, "layer_norm")
    if not value.dtype.is_floating_point:
        raise OpError("layer_norm takes a floating tensor", hint="convert it with .float() first")
    dims = _normalized_dims(value, normalized_shape, "layer_norm")
    weight, bias = (_check_parameter(value, p, dims, n) for p, n in ((weight, "weight"), (bias, "bias")))
    wide = widen(value, value.dtype)
    variance, mean = centred_variance(wide, dims, keepdim=True)
    result = (wide - mean) * pointwise("rsqrt", variance + eps)
    if weight is not None:
        result = result * widen(weight, wide.dtype)
    if bias is not None:
        result = result + widen(bias, wide.dtype)
    return packed(cast(result, value.dtype))


@handles("torch.layer_norm")
def torch_layer_norm(
    builder: Any,
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-05,
    cudnn_enable: Any = True,
) -> TensorValue:
    return layer_norm(builder, input, normalized_shape, weight, bias, eps)


@handles("F.rms_norm", "torch.rms_norm")
def rms_norm(builder: Any, input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> TensorValue:
    value = tensor(input, "rms_norm")
    if not value.dtype.is_floating_point:
        raise OpError("rms_norm takes a floating tensor", hint="convert it with .float() first")
    dims = _normalized_dims(value, normalized_shape, "rms_norm")
    weight = _check_parameter(value, weight, dims, "weight")
    wide = widen(value, value.dtype)
    if not is_value(eps) and eps is None:
        eps = torch.finfo(wide.dtype).eps
    result = wide * pointwise("rsqrt", averaged(wide * wide, dims, keepdim=True) + eps)
    dtype = value.dtype
    if weight is not None:
        dtype = common_dtype(value, weight)
        result = result * widen(weight, wide.dtype)
    return cast(result, dtype)
