# SPDX-License-Identifier: Apache-2.0
"""Norms over channels (dim 1): group_norm, instance_norm and batch_norm.

Computed in at least float32 and rounded once. Running statistics are updated in place, without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusedsl.frontend.callables.compose import static, static_int, tensor, widen
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.extents import count
from fusedsl.frontend.callables.reductions import averaged, centred_variance
from fusedsl.frontend.callables.shapes import merge_dims, split_dim
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.updates import Updating
from fusedsl.frontend.callables.values import TensorValue, cast, detached, host, pointwise, reindex
from fusedsl.graph.types import Extent, dtype_name, extent_hint


def _input(input: Any, rank: int, name: str) -> TensorValue:
    value = tensor(input, name)
    if not value.dtype.is_floating_point:
        raise OpError(f"{name} takes a floating tensor, got {dtype_name(value.dtype)}", hint="input.float()")
    if value.rank < rank:
        raise OpError(f"{name} takes a tensor of at least {rank} dims, got {value.rank}")
    return value


def _per_channel(value: TensorValue, parameter: Any, name: str) -> TensorValue | None:
    """A parameter of one number a channel, checked; None if there is none."""
    if parameter is None:
        return None
    found = tensor(parameter, name)
    if found.hint_shape != (extent_hint(value.shape[1]),):
        raise OpError(f"{name} has shape {found.hint_shape}, there are {value.hint_shape[1]} channels")
    value.builder.unify(found.shape[0], value.shape[1])
    return tensor(parameter, name)


def _spread(parameter: TensorValue, dims: Sequence[int], like: TensorValue) -> TensorValue:
    """A parameter whose dims are ``dims`` of ``like``, in the dtype and shape of ``like``."""
    places = [dims.index(d) if d in dims else None for d in range(like.rank)]
    return widen(reindex(parameter, places, like.shape), like.dtype)  # type: ignore[no-any-return]


def _parameters(value: TensorValue, weight: Any, bias: Any) -> list[TensorValue | None]:
    """Weight and bias, one number a channel each, checked."""
    return [_per_channel(value, p, name) for p, name in ((weight, "weight"), (bias, "bias"))]


def _standardised(value: TensorValue, variance: TensorValue, mean: TensorValue, eps: Any) -> TensorValue:
    return (value - mean) * pointwise("rsqrt", variance + eps)


def _affine(result: TensorValue, parameters: Sequence[TensorValue | None], dims: Sequence[int]) -> TensorValue:
    weight, bias = parameters
    if weight is not None:
        result = result * _spread(weight, dims, result)
    return result if bias is None else result + _spread(bias, dims, result)


@handles("F.group_norm")
def group_norm(builder: Any, input: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    """Channels are split into groups by views; everything between the views is one normalisation."""
    value = _input(input, 2, "group_norm")
    groups = static_int(num_groups, "num_groups")
    channels = value.shape[1]
    if groups < 1 or extent_hint(channels) % groups:
        raise OpError(f"group_norm: {value.hint_shape[1]} channels do not split into {groups} groups")
    parameters = _parameters(value, weight, bias)
    if 0 in value.hint_shape:
        return NotImplemented
    value = tensor(input, "group_norm")
    split = split_dim(value, 1, groups)
    wide = widen(split, value.dtype)
    variance, mean = centred_variance(wide, tuple(range(2, wide.rank)), keepdim=True)
    result = _standardised(wide, variance, mean, eps)
    halves = [None if p is None else _like(split_dim(p, 0, groups), split.shape[1:3]) for p in parameters]
    return merge_dims(cast(_affine(result, halves, (1, 2)), value.dtype), 1, builder.resolve(channels))


def _like(value: TensorValue, shape: tuple[Extent, ...]) -> TensorValue:
    for a, b in zip(value.shape, shape, strict=True):
        value.builder.unify(a, b)
    return value


@handles("torch.group_norm")
def torch_group_norm(
    builder: Any,
    input: Any,
    num_groups: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-05,
    cudnn_enabled: Any = True,
) -> Any:
    return group_norm(builder, input, num_groups, weight, bias, eps)


@handles("F.instance_norm")
def instance_norm(
    builder: Any,
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: Any = True,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Any:
    """Running statistics, if given, get the mean over the batch of those of its instances."""
    if not static(use_input_stats, "use_input_stats"):
        return batch_norm(builder, input, running_mean, running_var, weight, bias, False, momentum, eps)
    value = _input(input, 3, "instance_norm")
    if 0 in value.hint_shape:
        return NotImplemented
    dims = tuple(range(2, value.rank))
    if all(extent_hint(value.shape[d]) == 1 for d in dims):
        raise OpError(f"instance_norm takes more than one element a channel, got shape {value.hint_shape}")
    parameters = _parameters(value, weight, bias)
    running = _running(value, running_mean, running_var, momentum, "instance_norm")
    wide = widen(tensor(input, "instance_norm"), value.dtype)
    variance, mean = centred_variance(wide, dims, keepdim=True)
    result = cast(_affine(_standardised(wide, variance, mean, eps), parameters, (1,)), value.dtype)
    return _updating(result, running, momentum, count(wide, dims), variance, mean)


@handles("torch.instance_norm")
def torch_instance_norm(
    builder: Any,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: Any,
    momentum: Any,
    eps: Any,
    cudnn_enabled: Any,
) -> Any:
    return instance_norm(builder, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


@handles("F.batch_norm")
def batch_norm(
    builder: Any,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Any:
    """With given statistics, or (``training``) with those of the batch, which also go to the running ones in place."""
    value = _input(input, 2, "batch_norm")
    if static(training, "training"):
        return _batch_statistics(input, running_mean, running_var, weight, bias, momentum, eps)
    mean, variance = _running(value, running_mean, running_var, momentum, "batch_norm")
    parameters = _parameters(value, weight, bias)
    if mean is None or variance is None:
        raise OpError("batch_norm needs running_mean and running_var when it is not training")
    wide = widen(tensor(input, "batch_norm"), value.dtype)
    inverse = pointwise("rsqrt", widen(variance, wide.dtype) + eps)
    result = (wide - _spread(mean, (1,), wide)) * _spread(inverse, (1,), wide)
    return cast(_affine(result, parameters, (1,)), value.dtype)


@handles("torch.batch_norm")
def torch_batch_norm(
    builder: Any,
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: Any,
    momentum: Any,
    eps: Any,
    cudnn_enabled: Any,
) -> Any:
    return batch_norm(builder, input, running_mean, running_var, weight, bias, training, momentum, eps)


def _batch_statistics(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, momentum: Any, eps: Any
) -> Any:
    """``batch_norm`` that is training."""
    value = _input(input, 2, "batch_norm")
    dims = (0, *range(2, value.rank))
    if all(extent_hint(value.shape[d]) == 1 for d in dims):
        raise OpError(f"Expected more than 1 value per channel when training, got input size {value.hint_shape}")
    parameters = _parameters(value, weight, bias)
    running = _running(value, running_mean, running_var, momentum, "batch_norm")
    if 0 in value.hint_shape:
        return NotImplemented
    wide = widen(tensor(input, "batch_norm"), value.dtype)
    variance, mean = centred_variance(wide, dims, keepdim=True)
    result = cast(_affine(_standardised(wide, variance, mean, eps), parameters, (1,)), value.dtype)
    return _updating(result, running, momentum, count(wide, dims), variance, mean)


def _running(value: TensorValue, mean: Any, variance: Any, momentum: Any, name: str) -> list[TensorValue | None]:
    """The running statistics, checked."""
    if momentum is None:
        raise OpError(f"{name}: momentum=None, the mean over all batches, is for modules", expected="a number")
    given = ((mean, "running_mean"), (variance, "running_var"))
    return [_per_channel(value, p, role) for p, role in given]


def _updating(
    result: TensorValue,
    running: Sequence[TensorValue | None],
    momentum: Any,
    number: Any,
    variance: TensorValue,
    mean: TensorValue,
) -> Any:
    """``result``, and what becomes of the running statistics.

    Args:
        result: of the norm.
        running: mean and variance, one number a channel each.
        momentum: the weight of the new statistics.
        number: how many elements they are of.
        variance: of these elements, without correction; dim 1 is the channel, dim 0 is averaged over.
        mean: of them.
    """
    unbiased = detached(variance) * (number / host("sub", number, 1))
    updates = []
    for old, new in zip(running, (detached(mean), unbiased), strict=True):
        if old is not None:
            wide = widen(old, new.dtype)
            updates.append((old, wide * (1 - momentum) + _of_channel(new) * momentum))
    return Updating(result, tuple(updates)) if updates else result


def _of_channel(value: TensorValue) -> TensorValue:
    """Statistics with all dims kept, as one number a channel: the mean over the batch."""
    if value.shape[0] != 1:
        value = averaged(value, (0,), keepdim=True)
    return reindex(value, (1,), (value.shape[1],))
