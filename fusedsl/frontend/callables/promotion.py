# SPDX-License-Identifier: Apache-2.0
"""torch's dtype rules: which dtype operands are computed in, and what torch refuses.

An operand is described by a key: ``(dtype, is_zero_dim)`` for a tensor, the Python type for a number. Answers are
cached by op
and keys, so that tracing asks torch once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fusedsl.frontend.callables.errors import OpError
from fusedsl.graph.ops import OPS
from fusedsl.graph.types import dtype_name

#: What promotion needs to know of an operand.
OperandKey = tuple[torch.dtype, bool] | type

_NUMBERS = {bool: True, int: 1, float: 1.0}


def promote(keys: Iterable[OperandKey]) -> torch.dtype:
    """The dtype torch's type promotion gives for operands together (``torch.result_type`` for any number of them).

    Tensors with dims outrank 0-dim tensors, which outrank Python numbers; a lower rank matters only when its kind is
    higher (a float
    among integers).
    """
    ranks: list[torch.dtype | None] = [None, None, None]
    for key in keys:
        if isinstance(key, tuple):
            place, dtype = (1 if key[1] else 0), key[0]
        else:
            place, dtype = 2, _number_dtype(key)
        known = ranks[place]
        ranks[place] = dtype if known is None else torch.promote_types(known, dtype)
    dtype_ = _combine(ranks[0], _combine(ranks[1], ranks[2]))
    assert dtype_ is not None, "promotion of no operands"
    if dtype_.is_complex:
        raise OpError(
            "complex numbers are not supported", expected="real tensors", hint="split real and imaginary parts"
        )
    return dtype_


def _number_dtype(kind: type) -> torch.dtype:
    if kind is bool:
        return torch.bool
    return torch.int64 if kind is int else torch.get_default_dtype()


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


_BOOL_FORMS = {"add": "bitwise_or", "mul": "bitwise_and", "maximum": "bitwise_or", "minimum": "bitwise_and"}
_BOOL_FORMS |= {"fmax": "bitwise_or", "fmin": "bitwise_and", "sign": "clone"}
_KEEPS_BOOL = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "clone", "contiguous"}
_WHOLE = {"floor", "ceil", "trunc", "round"}


@functools.lru_cache(maxsize=4096)
def pointwise_rule(
    op: str, keys: tuple[OperandKey, ...], default: torch.dtype, eager: Callable[..., Any] | None
) -> tuple[str, torch.dtype, torch.dtype]:
    """How to build a pointwise op.

    Args:
        op: row of the op table that takes operands of one dtype.
        keys: one an operand.
        default: ``torch.get_default_dtype()``, part of the cache key.
        eager: the torch callable to ask whether it takes these dtypes; None for the row's own.

    Returns:
        The op to build (a bit operation for bools), the dtype its operands are cast to, the dtype of the result.

    Raises:
        OpError: torch does not take these dtypes.
    """
    row = OPS[op]
    dtype = promote(keys)
    if row.domain == "int" or not all(isinstance(key, tuple) and key[0].is_floating_point for key in keys):
        ask(eager or row.torch, op, keys)
    if row.domain == "float" and not dtype.is_floating_point:
        dtype = default
    if op in _WHOLE and not dtype.is_floating_point:
        op = "clone"
    if dtype is torch.bool:
        op = _BOOL_FORMS.get(op, op)
        if op not in _KEEPS_BOOL:
            dtype = torch.uint8
    return op, dtype, torch.bool if row.result == "bool" else dtype


def ask(function: Callable[..., Any] | None, name: str, keys: tuple[OperandKey, ...]) -> torch.dtype:
    """Run torch on one-element operands of these kinds.

    Returns:
        The dtype of the result.

    Raises:
        OpError: torch refuses.
    """
    assert function is not None, f"{name} has no torch meaning"
    operands = [
        torch.ones(() if key[1] else (1,), dtype=key[0], device="cpu") if isinstance(key, tuple) else _NUMBERS[key]
        for key in keys
    ]
    try:
        return function(*operands).dtype  # type: ignore[no-any-return]
    except (RuntimeError, TypeError, NotImplementedError) as error:
        kinds = ", ".join(dtype_name(k[0]) if isinstance(k, tuple) else k.__name__ for k in keys)
        text = str(error).strip().splitlines()[0]
        raise OpError(f"{name} does not take {kinds}", expected=f"what torch takes; it says: {text}") from None
