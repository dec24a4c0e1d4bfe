# SPDX-License-Identifier: Apache-2.0
"""A refusal is a value: why something does not take a graph."""

from __future__ import annotations

import attrs


@attrs.frozen
class Refusal:
    """Why a scheduler or a check does not take a graph.

    Attributes:
        code: a stable short name, for tests and statistics.
        reason: what was found and what is needed.
        node: the node to blame, if there is one.
    """

    code: str
    reason: str
    node: int | None = None

    def __str__(self) -> str:
        return self.reason


def first_refusal(*refusals: Refusal | None) -> Refusal | None:
    """The first of several check results that refuses."""
    return next((r for r in refusals if r is not None), None)
