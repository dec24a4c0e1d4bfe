# SPDX-License-Identifier: Apache-2.0
"""Functions on Python numbers that a ``scalar`` node may name, in Python's own precision."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from fusedsl.graph import random

_BUILTINS = ("abs", "bool", "float", "int", "max", "min", "pow", "round")


@functools.cache
def host_function(name: str) -> Callable[..., Any]:
    """The Python function behind the ``function`` attribute of a ``scalar`` node.

    Args:
        name: a name of ``operator`` (``"mul"``), of ``math`` with its prefix (``"math.sqrt"``), or one of the builtins
            ``abs bool float int max min pow round``; ``random.seed``, ``random.offset`` and ``random.threads`` read a
            draw of :mod:`fusedsl.graph.random`; ``"pow"`` and ``"abs"`` are the same function either way.

    Raises:
        KeyError: no such function.
    """
    if name.startswith("random."):
        found = getattr(random, name.removeprefix("random."), None)
    elif name.startswith("math."):
        found = getattr(math, name.removeprefix("math."), None)
    elif name in _BUILTINS:
        found = getattr(builtins, name)
    else:
        found = getattr(operator, name, None)
    if found is None:
        raise KeyError(f"no host function {name}")
    return found  # type: ignore[no-any-return]
