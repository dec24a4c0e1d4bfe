# SPDX-License-Identifier: Apache-2.0
"""Runs small kernel texts in the interpreter."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
import torch

from fusedsl.numba_cuda.dtypes import from_torch
from fusedsl.numba_cuda.interpreter import interpret
from fusedsl.numba_cuda.interpreter.errors import KernelFault
from fusedsl.numba_cuda.kernel import Geometry, KernelSource


def run_body(
    body: str,
    arguments: dict[str, Any],
    *,
    threads: int | tuple[int, int, int] = 1,
    grid: tuple[int, int, int] = (1, 1, 1),
    constants: str = "",
    order: str | int = "forward",
    dynamic_smem_bytes: int = 0,
    cooperative: bool = False,
    cluster: int = 1,
) -> None:
    """Interpret a kernel `k` of that body; tensors become pointers, ints int64, floats float64, bools boolean."""
    block = (threads, 1, 1) if isinstance(threads, int) else threads
    header = f"{constants}\n\ndef k({', '.join(arguments)}):\n"
    text = header + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    signature = tuple(_parameter(value) for value in arguments.values())
    source = KernelSource("k", text, signature, block[0] * block[1] * block[2])
    geometry = Geometry(grid, block, cluster, dynamic_smem_bytes=dynamic_smem_bytes, cooperative=cooperative)
    interpret(source, geometry, tuple(arguments.values()), order=order)


def _parameter(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{from_torch(value.dtype).name}"
    return {bool: "boolean", int: "int64", float: "float64"}[type(value)]


def evaluate(expression: str, *operands: torch.Tensor, result: torch.dtype | None = None) -> torch.Tensor:
    """A kernel expression over the tiles a, b, c, each a whole 1-d tensor, run by one thread."""
    n = max(len(t) for t in operands)
    dtype = result or operands[0].dtype
    out = torch.empty(n, dtype=dtype)
    names = "abc"[: len(operands)]
    loads = "\n".join(f"{v} = load({v}p, 0, None, {len(t)}, 1, 1)" for v, t in zip(names, operands, strict=True))
    body = f"{loads}\nstore(out, 0, None, {expression}, {n}, 1, 1)"
    run_body(body, {**{f"{v}p": t for v, t in zip(names, operands, strict=True)}, "out": out})
    return out


def fault_text(kind: type[KernelFault], body: str, arguments: dict[str, Any], **options: Any) -> str:
    """The message of the fault that a kernel must raise, with the hash in the pseudo file name replaced by `#`."""
    with pytest.raises(kind) as caught:
        run_body(body, arguments, **options)
    assert type(caught.value) is kind
    return re.sub(r"<fusedsl k [0-9a-f]{10}>", "<kernel>", str(caught.value))
