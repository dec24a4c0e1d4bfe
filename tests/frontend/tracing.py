# SPDX-License-Identifier: Apache-2.0
"""Helpers of the frontend's tests: trace a function, run its graph, compare with eager torch."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

from fusedsl.frontend.guards import compile_accessors, compile_guards
from fusedsl.frontend.trace import OutputInput, OutputStatic, OutputValue, Trace, TraceOptions, trace
from fusedsl.graph.evaluate import evaluate


def bind(fn: Any, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def traced(fn: Any, *args: Any, fallback: str = "opaque", **kwargs: Any) -> Trace:
    return trace(fn, bind(fn, *args, **kwargs), TraceOptions(fallback=fallback))


def holds(found: Trace, fn: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the guards hold for other arguments."""
    return compile_guards(found, fn)(bind(fn, *args, **kwargs).arguments)


def run(found: Trace, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """The trace's results for these arguments, as the user would see them; arguments are changed as it says."""
    tensors, scalars = compile_accessors(found, fn)(bind(fn, *args, **kwargs).arguments)
    values = evaluate(found.graph, tensors, scalars)
    with torch.no_grad():
        for update in found.updates:
            tensors[update.input].copy_(values[update.output])

    def rebuild(tree: Any) -> Any:
        match tree:
            case OutputValue(index):
                return values[index]
            case OutputInput(index):
                return tensors[index]
            case OutputStatic(value):
                return value
            case dict():
                return {key: rebuild(item) for key, item in tree.items()}
        items = [rebuild(item) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)

    return rebuild(found.outputs)


def assert_same(found: Any, expected: Any) -> None:
    """Equal values, dtypes, shapes, containers."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, equal_nan=True)
        return
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    else:
        assert found == expected


def check(fn: Any, *args: Any, **kwargs: Any) -> Trace:
    """Trace, run, compare with eager, and what became of the arguments too; the trace."""
    copies = [copied(x) for x in args]
    found = traced(fn, *args, **kwargs)
    assert holds(found, fn, *args, **kwargs), "the guards do not hold for the arguments that were traced"
    assert_same(run(found, fn, *args, **kwargs), fn(*copies, **kwargs))
    for one, other in zip(args, copies, strict=True):
        if isinstance(one, (torch.Tensor, list, tuple)):
            assert_same(one, other)
    return found


def copied(item: Any) -> Any:
    """An argument with tensors of its own."""
    if isinstance(item, torch.Tensor):
        return item.clone()
    if isinstance(item, torch.nn.Module):
        return copy.deepcopy(item)
    return type(item)(copied(x) for x in item) if type(item) in (list, tuple) else item
