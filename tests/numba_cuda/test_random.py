# SPDX-License-Identifier: Apache-2.0
"""``random_uniform``: every form assembles without a spill, and the interpreter gives the numbers of the stream."""

from __future__ import annotations

import pytest
import torch

from fusedsl.graph.random import uniform
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.interpreter import KernelFault, interpret
from fusedsl.numba_cuda.kernel import Geometry, KernelSource

TEXT = """\
def numbers(out_ptr, count, stride, seed, offset, threads):
    first = (block_x() * 32 + thread_x()) * {step}
    tile = random_uniform(first + {shift}, 2, stride, {vector}, 1, seed, offset, threads, {chunk}, {aligned}, {wide})
    store(out_ptr, first, count - first, tile, 2, {stride}, {vector})
"""
SIGNATURE = ("*float32", "int64", "int64", "int64", "int64", "int64")
#: (vector, chunk, aligned)
FORMS = [(4, 8, True), (8, 4, True), (8, 8, False), (1, 1, False), (2, 2, False), (4, 1, False)]


def _source(vector: int, chunk: int, aligned: bool, wide: bool, shift: int = 0) -> KernelSource:
    text = TEXT.format(
        step=2 * vector, stride=vector, shift=shift, vector=vector, chunk=chunk, aligned=aligned, wide=wide
    )
    return KernelSource("numbers", text, SIGNATURE, 32)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms_assemble(form: tuple[int, int, bool], wide: bool) -> None:
    compiled = compile_kernel(_source(*form, wide), "sm_80")
    assert compiled.spill_bytes == 0 and compiled.local_bytes == 0


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_interpreter_follows_the_stream(form: tuple[int, int, bool], wide: bool) -> None:
    vector, chunk, _ = form
    count = 2 * 32 * 2 * vector
    out = torch.zeros(count)
    interpret(_source(*form, wide), Geometry((2, 1, 1), (32, 1, 1)), (out, count, vector, -(2**63), 12, 64))
    # the stream's own rule gives the same chunk for the item size it belongs to
    itemsize = {8: 2, 4: 4, 2: 8}.get(chunk)
    if itemsize is not None:
        assert torch.equal(out, uniform((count,), -(2**63), 12, 64, itemsize, torch.device("cpu")))
    else:
        odd = uniform((count + 1,), -(2**63), 12, 64, 4, torch.device("cpu"))
        assert torch.equal(out, odd[:-1])


def test_broken_promises_are_found() -> None:
    out = torch.zeros(512)
    geometry = Geometry((1, 1, 1), (32, 1, 1))
    with pytest.raises(KernelFault, match="not aligned at element 2"):
        interpret(_source(4, 8, True, False, shift=2), geometry, (out, 512, 4, 1, 0, 64))
    with pytest.raises(KernelFault, match="below 2\\*\\*31"):
        interpret(_source(4, 8, True, False, shift=2**31), geometry, (out, 512, 4, 1, 0, 64))
