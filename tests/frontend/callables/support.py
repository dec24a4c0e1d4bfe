# SPDX-License-Identifier: Apache-2.0
"""Builds a graph by one handler and compares what it means with the torch callable itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedsl.frontend.callables import OpError, ScalarValue, TensorValue, lookup, lookup_method
from fusedsl.graph.builder import Builder
from fusedsl.graph.evaluate import evaluate
from fusedsl.graph.graph import Graph
from fusedsl.graph.verify import verify

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
ALL = (*FLOATS, *INTS, torch.bool)

#: Relative and absolute error allowed against torch of the same dtype: a few roundings.
TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (3e-6, 2e-6),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3e-2, 1.6e-2),
}


def special(dtype: torch.dtype, shape: Sequence[int] = (4, 6), seed: int = 0) -> torch.Tensor:
    """Numbers of a dtype, with NaN, infinities, zeros of both signs, and extremes among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    if not dtype.is_floating_point:
        low = 0 if not dtype.is_signed else -5
        return torch.randint(low, 9, tuple(shape), generator=generator).to(dtype)
    values = torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * 2
    marks = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0, 0.5, 3.0]
    flat = values.flatten()
    for place, mark in enumerate(marks[: flat.numel() // 2]):
        flat[(place * 2 + seed) % flat.numel()] = mark
    return values.to(dtype)


def plain(dtype: torch.dtype, shape: Sequence[int] = (4, 6), seed: int = 0) -> torch.Tensor:
    """Finite numbers of a dtype."""
    if not dtype.is_floating_point:
        return special(dtype, shape, seed)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


class Built:
    """A graph made by one handler call, and the arguments for it."""

    def __init__(self, graph: Graph, tensors: list[torch.Tensor], scalars: list[Any], outputs: Any) -> None:
        self.graph = graph
        self.tensors = tensors
        self.scalars = scalars
        self.outputs = outputs

    def run(self, compute: Any = "eager") -> list[torch.Tensor]:
        return evaluate(self.graph, self.tensors, self.scalars, compute)


class Runtime:
    """Marks a number that the handler sees as a host scalar, known only at call time."""

    def __init__(self, value: Any) -> None:
        self.value = value


def build(handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a handler with graph values in place of tensors and ``Runtime`` numbers; a Built, or NotImplemented."""
    builder = Builder("test")
    tensors: list[torch.Tensor] = []
    scalars: list[Any] = []

    def convert(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            return TensorValue(builder, builder.input(f"x{len(tensors)}", item.dtype, item.shape))
        if isinstance(item, Runtime):
            scalars.append(item.value)
            kind = type(item.value).__name__
            return ScalarValue(builder, builder.scalar_input(f"s{len(scalars)}", kind), item.value)
        if type(item) in (list, tuple):
            return type(item)(convert(x) for x in item)
        return item

    result = handler(builder, *map(convert, args), **{k: convert(v) for k, v in kwargs.items()})
    if result is NotImplemented:
        return NotImplemented
    outputs = result if isinstance(result, tuple) else (result,)
    graph = verify(builder.finish([x.id for x in outputs]))
    return Built(graph, tensors, scalars, result)


def strip(item: Any) -> Any:
    """The arguments as eager torch takes them."""
    if isinstance(item, Runtime):
        return item.value
    return type(item)(strip(x) for x in item) if type(item) in (list, tuple) else item


def compare(found: torch.Tensor, wanted: torch.Tensor, label: str, scale: float = 1.0) -> None:
    assert found.dtype is wanted.dtype, f"{label}: dtype {found.dtype}, torch gives {wanted.dtype}"
    assert found.shape == wanted.shape, f"{label}: shape {tuple(found.shape)}, torch gives {tuple(wanted.shape)}"
    rtol, atol = TOLERANCE.get(wanted.dtype, (0, 0))
    torch.testing.assert_close(
        found, wanted, rtol=rtol * scale, atol=atol * scale, equal_nan=True, msg=lambda text: f"{label}: {text}"
    )


def check(
    function: Callable[..., Any],
    *args: Any,
    handler: Callable[..., Any] | None = None,
    scale: float = 1.0,
    **kwargs: Any,
) -> Built | None:
    """A call through the table gives what torch gives: values, dtype and shape, in both numerics; or both refuse.

    Returns:
        What was built; None if torch refuses the call.
    """
    name = getattr(function, "__name__", str(function))
    label = f"{name}({', '.join(_shown(x) for x in args)}{kwargs or ''})"
    found_handler = handler or lookup(function)
    assert found_handler is not None, f"{name} is not in the table"
    try:
        wanted = function(*map(strip, args), **{k: strip(v) for k, v in kwargs.items()})
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        try:
            built = build(found_handler, *args, **kwargs)
        except OpError:
            return None
        assert built is NotImplemented, f"{label}: torch refuses ({error}), fusedsl builds\n{built.graph}"
        return None
    built = build(found_handler, *args, **kwargs)
    assert built is not NotImplemented, f"{label} is not implemented"
    parts = wanted if isinstance(wanted, tuple) else (wanted,)
    for compute in ("eager", "kernel"):
        results = built.run(compute)
        assert len(results) == len(parts), label
        for result, part in zip(results, parts, strict=True):
            compare(result, part, f"{label} {compute}", scale)
    return built


def check_method(name: str, *args: Any, **kwargs: Any) -> Built | None:
    """``check`` for a method, called with the tensor first."""
    handler = lookup_method(name)
    assert handler is not None, f"Tensor.{name} is not in the table"
    return check(getattr(torch.Tensor, name), *args, handler=handler, **kwargs)


def _shown(item: Any) -> str:
    if isinstance(item, torch.Tensor):
        return f"{str(item.dtype).removeprefix('torch.')}{list(item.shape)}"
    return repr(strip(item))
