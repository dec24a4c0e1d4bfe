# SPDX-License-Identifier: Apache-2.0
"""The schedulers, in the order they are asked."""

from __future__ import annotations

from types import ModuleType

from fusedsl.schedulers import (
    inner_outer_persistent,
    inner_persistent,
    no_op,
    outer_persistent,
    pointwise,
    reduction,
)

#: The registry: the first scheduler that takes a segment schedules it. Adding one is a module and a line here.
SCHEDULERS: tuple[ModuleType, ...] = (
    no_op,
    reduction,
    pointwise,
    inner_persistent,
    outer_persistent,
    inner_outer_persistent,
)
