# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel's text on CPU tensors, thread by thread."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch

from fusedsl.numba_cuda.dtypes import DTYPES
from fusedsl.numba_cuda.interpreter.block import Scheduler, Thread, quiet_context
from fusedsl.numba_cuda.interpreter.errors import InvalidOperand
from fusedsl.numba_cuda.interpreter.names import NAMES
from fusedsl.numba_cuda.interpreter.pointer import Pointer
from fusedsl.numba_cuda.interpreter.text import KernelText
from fusedsl.numba_cuda.kernel import Geometry, KernelSource

_CONTEXT = quiet_context()


@lru_cache(maxsize=256)
def _compiled(name: str, text: str) -> tuple[KernelText, FunctionType]:
    kernel = KernelText(name, text)
    return kernel, kernel.function(NAMES)


def bind_argument(name: str, type_: str, value: Any) -> Any:
    """One kernel argument as kernel text sees it: a Pointer, an int, a float (rounded to its type) or a bool.

    Raises:
        InvalidOperand: the value does not fit the parameter.
    """
    if type_.startswith("*"):
        dtype = DTYPES[type_[1:]]
        if not isinstance(value, torch.Tensor) or value.dtype != dtype.torch or value.device.type != "cpu":
            got = f"{value.dtype} on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise InvalidOperand(f"kernel argument {name} is {got}", expected=f"a CPU tensor of {dtype.torch}")
        return Pointer(name, dtype, value)
    if type_ == "boolean":
        return bool(value)
    if type_ == "int64":
        if not -(1 << 63) <= value < 1 << 63:
            raise InvalidOperand(f"kernel argument {name} is {value}", expected="a 64-bit integer")
        return int(value)
    if type_ == "float32":
        return _round_to_float32(float(value))
    return float(value)


def _round_to_float32(value: float) -> float:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return rounded


def _check_geometry(source: KernelSource, geometry: Geometry) -> None:
    threads = geometry.block[0] * geometry.block[1] * geometry.block[2]
    if not 0 < threads <= min(source.threads, 1024):
        raise InvalidOperand(
            f"{source.name} is launched with {threads} threads a block", expected=f"1 to {min(source.threads, 1024)}"
        )
    limits = (2**31 - 1, 65535, 65535)
    if any(not 0 < extent <= limit for extent, limit in zip(geometry.grid, limits, strict=True)):
        raise InvalidOperand(f"{source.name} is launched on the grid {geometry.grid}", expected=f"1 to {limits} blocks")
    if geometry.grid[0] % geometry.cluster:
        raise InvalidOperand(
            f"a grid of {geometry.grid} blocks in clusters of {geometry.cluster}", expected="a whole number of clusters"
        )


def _live_together(geometry: Geometry, order: str | int) -> Iterator[list[int]]:
    """Numbers of the blocks that are live at once, in the order they run."""
    count = geometry.grid[0] * geometry.grid[1] * geometry.grid[2]
    size = count if geometry.cooperative else geometry.cluster
    starts = range(0, count, size)
    if order == "reversed":
        starts = starts[::-1]
    elif order != "forward":
        shuffled = list(starts)
        random.Random(order).shuffle(shuffled)
        return ([*range(start, start + size)] for start in shuffled)
    return ([*range(start, start + size)] for start in starts)


def _thread_order(order: str | int) -> Callable[[list[Thread]], list[Thread]]:
    if order == "forward":
        return lambda threads: threads
    if order == "reversed":
        return lambda threads: threads[::-1]
    generator = random.Random(order)

    def shuffle(threads: list[Thread]) -> list[Thread]:
        generator.shuffle(threads)
        return threads

    return shuffle


def interpret(
    source: KernelSource, geometry: Geometry, arguments: tuple[Any, ...], *, order: str | int = "forward"
) -> None:
    """Run a kernel to its end on the CPU.

    Args:
        source: the kernel.
        geometry: its launch.
        arguments: one value a parameter: a CPU tensor for a pointer (the kernel may touch its first element to its
            last, gaps included), a number for a scalar.
        order: in which order blocks run and the threads of a block take turns: "forward", "reversed" or a random seed.
            A right kernel gives the same result in every order.

    Raises:
        KernelFault: the kernel did what a GPU would punish or not notice.
    """
    text, function = _compiled(source.name, source.text)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    if not len(names) == len(source.signature) == len(arguments):
        raise InvalidOperand(
            f"{source.name} has {len(names)} parameters, its signature {len(source.signature)}, "
            f"and it is given {len(arguments)} arguments"
        )
    _check_geometry(source, geometry)
    bound = [bind_argument(*item) for item in zip(names, source.signature, arguments, strict=True)]
    scheduler = Scheduler(text, code, lambda: function(*bound), geometry, _CONTEXT)
    scheduler.pointers = [value for value in bound if isinstance(value, Pointer)]
    thread_order = _thread_order(order)
    for numbers in _live_together(geometry, order):
        scheduler.run(numbers, thread_order)
