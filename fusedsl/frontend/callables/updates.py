# SPDX-License-Identifier: Apache-2.0
"""What a handler returns that changes tensors it was given."""

from __future__ import annotations

from typing import Any

import attrs

from fusedsl.frontend.callables.values import TensorValue


@attrs.frozen(eq=False)
class Updating:
    """A result, and operands with the values that they are given in place.

    Attributes:
        result: what the operation returns.
        updates: operand and its new value, which is cast and broadcast to the operand.
    """

    result: Any
    updates: tuple[tuple[TensorValue, TensorValue], ...]
