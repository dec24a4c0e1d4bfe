# SPDX-License-Identifier: Apache-2.0
"""Overhead, cliffs between neighbouring sizes, torch.compile around a fused function, and machines with no GPU."""

from __future__ import annotations

import inspect
import itertools
import struct
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from benchmarks.timing import L2Flush, measure_gpu, measure_host
from fusedsl.numba_cuda.compile import compile_kernel
from tests.faults.programs import run_python


@fusedsl.fuse
def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), None, None, 1e-5)


@fusedsl.fuse
def three_ops(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x * 2.0 + y)


@fusedsl.fuse
def eight_tensors(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor) -> Tensor:
    return a * b + c * d + e * f + g * h


@pytest.mark.gpu
@pytest.mark.perf
@pytest.mark.parametrize(("function", "count", "limit_us"), [(three_ops, 2, 9.0), (eight_tensors, 8, 15.0)])
def test_host_time_of_a_cached_call_is_that_of_one_eager_op(function, count: int, limit_us: float) -> None:
    arguments = [torch.randn(32, 64, device="cuda") for _ in range(count)]
    calls = {"fusedsl": lambda: function(*arguments), "eager": lambda: function.reference(*arguments)}
    for call in calls.values():
        for _ in range(10):
            call()
    timings = measure_host(calls, 1000, 9)
    assert timings["fusedsl"].median_us <= limit_us
    assert timings["fusedsl"].median_us <= timings["eager"].median_us


@pytest.mark.gpu
@pytest.mark.perf
def test_no_cliff_between_neighbouring_row_lengths() -> None:
    flush, rates = L2Flush(), []
    for columns in range(1024, 32769, 1024):
        x = torch.randn(2**27 // columns, columns, device="cuda", dtype=torch.bfloat16)
        calls = {"fusedsl": lambda x=x: layer_norm(x), "eager": lambda x=x: layer_norm.reference(x)}
        for call in calls.values():
            call()
        timings = measure_gpu(calls, flush, 10)
        assert timings["fusedsl"].median_us <= 1.05 * timings["eager"].median_us, f"slower than eager at {columns}"
        rates.append(2 * x.nbytes / timings["fusedsl"].median_us)
    drops = [after / before for before, after in itertools.pairwise(rates)]
    assert min(drops) > 0.75, f"row length {1024 * (drops.index(min(drops)) + 2)}"


@pytest.mark.parametrize("columns", [1024, 8192, 15360, 16384, 16385, 32768])
def test_no_spills_over_a_range_of_row_lengths(columns: int) -> None:
    for kernel in layer_norm.compile(torch.empty(64, columns, dtype=torch.bfloat16, device="meta"), arch="sm_90a"):
        assert kernel.spill_bytes == 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_fused_function_inside_torch_compile(device: str, backend: str, dynamic: bool | None) -> None:
    """torch.compile sees the plain function: no graph break, right values, forward and backward."""

    def outer(x: Tensor) -> Tensor:
        return layer_norm(x) * 2

    torch.compiler.reset()
    compiled = torch.compile(outer, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (2, 3, 4):
        x = torch.randn(rows, 32, device=device)
        torch.testing.assert_close(compiled(x), layer_norm.reference(x) * 2)
    x.requires_grad_()
    other = x.detach().clone().requires_grad_()
    compiled(x).pow(3).sum().backward()
    (layer_norm.reference(other) * 2).pow(3).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_fused_function_inside_torch_export(device: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return three_ops(layer_norm(x), x)

    x = torch.randn(3, 32, device=device)
    program = torch.export.export(Module(), (x,))
    torch.testing.assert_close(program.module()(x), three_ops.reference(layer_norm.reference(x), x))


def sections(cubin: bytes) -> dict[str, bytes]:
    """The sections of a cubin (an ELF file) by name."""
    table, size, count, names = (*struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58))
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * index) for index in range(count)]
    begin = headers[names][4]
    label = {h[0]: cubin[begin + h[0] : cubin.index(b"\0", begin + h[0])].decode() for h in headers}
    return {label[h[0]]: cubin[h[4] : h[4] + h[5]] for h in headers}


def test_line_information_changes_no_instruction() -> None:
    x = torch.empty(64, 4096, dtype=torch.bfloat16, device="meta")
    for function in (layer_norm, three_ops):
        arguments = (x, x)[: len(inspect.signature(function).parameters)]
        for segment in function.explain(*arguments, arch="sm_90a").segments:
            for launch in segment.plan.launches:
                plain, with_lines = (compile_kernel(launch.source, "sm_90a", lineinfo=on) for on in (False, True))
                code, code_with_lines = sections(plain.cubin), sections(with_lines.cubin)
                name = f".text.{launch.source.name}"
                assert len(code[name]) > 100
                assert code[name] == code_with_lines[name]
                assert ".debug_line" in code_with_lines and ".debug_line" not in code
                assert plain.registers == with_lines.registers


_NO_GPU = """
import torch, fusedsl
assert not torch.cuda.is_available()

@fusedsl.fuse
def f(x):
    return torch.softmax(x, -1)

x = torch.randn(2, 33)
assert torch.allclose(f(x), torch.softmax(x, -1))
print("fine")
"""


def test_import_and_run_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(_NO_GPU)
    assert "fine" in run_python(str(path), CUDA_VISIBLE_DEVICES="")
