# SPDX-License-Identifier: Apache-2.0
"""What composites share: common dtypes, arithmetic wider than 16 bits, static arguments, dims."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.callables.errors import NeedsStatic, OpError
from fusedsl.frontend.callables.promotion import OperandKey, ask, promote
from fusedsl.frontend.callables.values import Operand, ScalarValue, TensorValue, cast, plain_number, pointwise
from fusedsl.graph.types import compute_dtype

_asked = functools.lru_cache(maxsize=4096)(ask)


def key_of(operand: Operand) -> OperandKey:
    """What promotion needs to know of an operand."""
    if isinstance(operand, TensorValue):
        return operand.dtype, operand.rank == 0
    return operand.kind if isinstance(operand, ScalarValue) else type(plain_number(operand))


def check_dtypes(eager: Callable[..., Any], name: str, *operands: Operand) -> None:
    """Raise an OpError if torch's ``eager`` does not take the dtypes of ``operands``; floating tensors pass."""
    keys = tuple(key_of(x) for x in operands)
    if not all(isinstance(key, tuple) and key[0].is_floating_point for key in keys):
        _asked(eager, name, keys)


def torch_dtype(eager: Callable[..., Any], name: str, *operands: Operand) -> torch.dtype:
    """The dtype of what torch's ``eager`` gives for operands of these kinds; an OpError if it refuses them."""
    return _asked(eager, name, tuple(key_of(x) for x in operands))


def common_dtype(*operands: Operand, floating: bool = False) -> torch.dtype:
    """The promoted dtype of operands; with ``floating`` integers give the default float dtype."""
    dtype = promote(key_of(x) for x in operands)
    return torch.get_default_dtype() if floating and not dtype.is_floating_point else dtype


def widen(operand: Any, dtype: torch.dtype) -> Any:
    """A tensor as ``dtype``, or as float32 if that has 16 bits; numbers stay."""
    return cast(operand, compute_dtype(dtype)) if isinstance(operand, TensorValue) else operand


def composite(eager: Callable[..., Any], name: str) -> Callable[[Callable[..., TensorValue]], Callable[..., Any]]:
    """Make a handler of a formula over one tensor: it is computed in at least float32 and rounded once, as torch does.

    Args:
        eager: the torch callable, asked whether it takes the dtype when that is not floating.
        name: for error messages.
    """

    def decorate(formula: Callable[..., TensorValue]) -> Callable[..., Any]:
        @functools.wraps(formula)
        def handler(builder: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
            del builder
            value = tensor(input, name)
            check_dtypes(eager, name, value)
            dtype = common_dtype(value, floating=True)
            return cast(formula(widen(value, dtype), *args, **kwargs), dtype)

        signature = inspect.signature(formula)
        first = inspect.Parameter("builder", inspect.Parameter.POSITIONAL_ONLY)
        handler.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])  # type: ignore[attr-defined]
        return handler

    return decorate


def tensor(item: Any, name: str) -> TensorValue:
    """``item``, which must be a tensor of the trace."""
    if not isinstance(item, TensorValue):
        kind = "a host scalar" if isinstance(item, ScalarValue) else type(item).__name__
        raise OpError(f"{name} takes a tensor, got {kind}", expected="a tensor")
    return item


def static(item: Any, role: str) -> Any:
    """``item`` if it is known while tracing.

    Raises:
        NeedsStatic: it is a host scalar.
        OpError: it is a tensor.
    """
    if isinstance(item, ScalarValue):
        node = item.builder.nodes[item.id]
        if node.op == "constant":
            return node.attribute("value")
        raise NeedsStatic(item, role)
    if isinstance(item, TensorValue):
        raise OpError(f"{role} must be a Python value, got a tensor", hint="pass a number")
    return item


def static_int(item: Any, role: str) -> int:
    """``item`` as an int known while tracing."""
    value = static(item, role)
    if not isinstance(value, int) or isinstance(value, bool):
        raise OpError(f"{role} must be an int, got {value!r}")
    return value


def one_dim(item: Any, rank: int, role: str = "dim") -> int:
    """A dim counted from 0; a 0-dim tensor has a dim 0, as in torch."""
    dim = static_int(item, role)
    bound = max(rank, 1)
    if not -bound <= dim < bound:
        raise OpError(f"{role}={dim} is out of range for a tensor of {rank} dims", expected=f"{-bound} to {bound - 1}")
    return dim % bound


def many_dims(item: Any, rank: int, role: str = "dim") -> tuple[int, ...]:
    """Dims counted from 0, sorted; None and an empty sequence mean all. A 0-dim tensor gives ()."""
    item = static(item, role)
    if item is None or (isinstance(item, (tuple, list)) and not item):
        return tuple(range(rank))
    dims = [one_dim(d, rank, role) for d in (item if isinstance(item, (tuple, list)) else (item,))]
    if len(set(dims)) != len(dims):
        raise OpError(f"{role}={tuple(dims)} names a dim twice")
    return tuple(sorted(dims)) if rank else ()


def dtype_argument(item: Any) -> torch.dtype | None:
    """A ``dtype=`` argument: None or a real torch dtype."""
    if item is None:
        return None
    if item in (float, int, bool):
        return {float: torch.get_default_dtype(), int: torch.int64, bool: torch.bool}[item]
    if not isinstance(item, torch.dtype):
        raise OpError(f"dtype must be a torch.dtype, got {item!r}")
    if item.is_complex:
        raise OpError("complex dtypes are not supported", expected="a real dtype")
    return item


def widen_all(
    eager: Callable[..., Any], name: str, *operands: Operand, floating: bool = False
) -> tuple[torch.dtype, list[Any]]:
    """Operands cast to a common dtype of at least 32 bits, after the dtype that torch's ``eager`` would give them.

    Raises:
        OpError: torch does not take these dtypes.
    """
    check_dtypes(eager, name, *operands)
    dtype = common_dtype(*operands, floating=floating)
    return dtype, [widen(x, dtype) for x in operands]


def no_inplace(inplace: bool) -> None:
    """Refuse ``inplace=True``."""
    if inplace:
        raise OpError("inplace=True is not supported", hint="leave it out and assign the result")


def packed(value: TensorValue) -> TensorValue:
    """The value laid out row-major whatever its inputs' strides, as eager softmax and layer_norm return it."""
    return pointwise("contiguous", value)
