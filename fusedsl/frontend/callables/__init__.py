# SPDX-License-Identifier: Apache-2.0
"""Known callables: what the functions, methods, attributes and operators of torch and Python mean in the graph.

``lookup`` and its siblings give a handler, or None for what the table does not know. A handler is called as
``handler(builder, *args, **kwargs)`` with ``TensorValue``, ``ScalarValue`` and static Python values. It

* returns values of the same kinds, or (named) tuples of them;
* returns ``NotImplemented`` for a right call that the graph cannot express: run it as an opaque op;
* raises ``NeedsStatic`` (an ``OpError``) when the graph's structure depends on a host scalar: guard it, put its
  ``hint`` in its place, call again;
* raises ``OpError`` for a wrong call.
"""

from fusedsl.frontend.callables import (
    activations,
    arithmetic,
    attributes,
    casts,
    channels,
    classification,
    creation,
    dropout,
    elementary,
    hostmath,
    logic,
    losses,
    normalization,
    norms,
    positions,
    reductions,
    shapes,
    softmax,
)
from fusedsl.frontend.callables.errors import NeedsStatic, OpError
from fusedsl.frontend.callables.table import (
    ATTRIBUTES,
    CALLABLES,
    METHODS,
    OPERATORS,
    Handler,
    lookup,
    lookup_attribute,
    lookup_method,
    lookup_operator,
)
from fusedsl.frontend.callables.values import ScalarValue, TensorValue, Value, constant, host, is_value, size

#: The modules that fill the table when they are imported.
FAMILIES = (
    activations,
    arithmetic,
    attributes,
    casts,
    channels,
    classification,
    creation,
    dropout,
    elementary,
    hostmath,
    logic,
    losses,
    normalization,
    norms,
    positions,
    reductions,
    shapes,
    softmax,
)

__all__ = [
    "ATTRIBUTES",
    "CALLABLES",
    "FAMILIES",
    "METHODS",
    "OPERATORS",
    "Handler",
    "NeedsStatic",
    "OpError",
    "ScalarValue",
    "TensorValue",
    "Value",
    "constant",
    "host",
    "is_value",
    "lookup",
    "lookup_attribute",
    "lookup_method",
    "lookup_operator",
    "size",
]
