# SPDX-License-Identifier: Apache-2.0
"""Inputs of a row that are loaded one turn of a loop over rows ahead of their use."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.emit import Emitter, Variable

#: The variables of inputs that were loaded ahead.
Ahead = dict[int, Variable]


def load_ahead(e: Emitter, inputs: Iterable[int], into: Ahead | None = None) -> Ahead:
    """Load inputs of the row that the emitter stands at, to new variables or to those of an earlier call."""
    found = {}
    for node_id in inputs:
        batch, vector = e.varies(node_id)
        text = e.load_text(node_id, e.pointer(node_id), e.offset(node_id), batch, vector)
        name = e.fresh(f"{e.graph[node_id].name}_next") if into is None else into[node_id].text
        e.line(f"{name} = {text}")
        found[node_id] = Variable(name, batch, vector)
    return found


def take_ahead(e: Emitter, ahead: Ahead) -> None:
    """From here on the inputs are what was loaded; what needs no conversion is moved to a variable of its own."""
    for node_id, raw in ahead.items():
        dtype = e.graph[node_id].tensor.dtype
        if compute_dtype(dtype) == dtype:
            name = e.fresh(e.graph[node_id].name)
            e.line(f"{name} = {raw.text}")
            raw = attrs.evolve(raw, text=name)
        e.loaded(node_id, raw)
        e.value(node_id)
