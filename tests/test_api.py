# SPDX-License-Identifier: Apache-2.0
"""``fuse`` and fused functions: decoration, methods, closures, pickling, threads, looking inside, options."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.api import CannotPickle
from fusedsl.options import OptionError


@fusedsl.fuse
def scale(x: torch.Tensor, factor: float = 2.0, *, shift: float = 0.0) -> torch.Tensor:
    """Scale and shift."""
    return x * factor + shift


def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 3.0


SCALED = fusedsl.fuse(plain, numerics="eager")


class Norm(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(size))
        self.eps = 1e-5

    @fusedsl.fuse
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weight


class Holder:
    factor = 4.0

    @fusedsl.fuse
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    @staticmethod
    @fusedsl.fuse
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 1.0

    @classmethod
    @fusedsl.fuse
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor


def test_all_ways_to_decorate(device: str) -> None:
    x = torch.randn(3, 5, device=device)

    @fusedsl.fuse()
    def with_parentheses(x: torch.Tensor) -> torch.Tensor:
        return x + 1.0

    @fusedsl.fuse(numerics="eager", fallback="error")
    def with_options(x: torch.Tensor) -> torch.Tensor:
        return x + 2.0

    assert torch.equal(scale(x), x * 2.0 + 0.0)
    assert torch.equal(with_parentheses(x), x + 1.0)
    assert torch.equal(with_options(x), x + 2.0)
    assert torch.equal(fusedsl.fuse(plain)(x), x * 3.0)
    assert torch.equal(fusedsl.fuse(SCALED)(x), x * 3.0)


def test_looks_like_the_plain_function() -> None:
    assert scale.__name__ == "scale"
    assert scale.__doc__ == "Scale and shift."
    assert scale.__module__ == __name__
    assert str(inspect.signature(scale)).startswith("(x: 'torch.Tensor', factor: 'float' = 2.0, *, shift")
    assert inspect.unwrap(scale) is scale.__wrapped__
    assert repr(scale) == f"<fused function {__name__}.scale>"


def test_defaults_and_keywords(device: str) -> None:
    x = torch.randn(7, device=device)
    assert torch.equal(scale(x, 3.0), x * 3.0)
    assert torch.equal(scale(x, factor=4.0), x * 4.0)
    assert torch.equal(scale(factor=4.0, x=x, shift=1.0), x * 4.0 + 1.0)
    assert torch.equal(scale.reference(x, 3.0, shift=2.0), x * 3.0 + 2.0)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"x": 2}), ((1,), {"wrong": 2}), ((1,), {"factor": 1, "y": 2})],
)
def test_a_wrong_call_raises_what_python_raises(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as theirs:
        scale.__wrapped__(*args, **kwargs)
    with pytest.raises(TypeError) as ours:
        scale(*args, **kwargs)
    assert str(ours.value) == str(theirs.value)


def test_star_arguments(device: str) -> None:
    @fusedsl.fuse
    def total(first: torch.Tensor, /, *rest: torch.Tensor, **named: Any) -> torch.Tensor:
        for other in rest:
            first = first + other
        return first * named["by"]

    x, y, z = (torch.randn(4, device=device) for _ in range(3))
    assert torch.equal(total(x, by=2.0), x * 2.0)
    assert torch.equal(total(x, y, z, by=3.0), (x + y + z) * 3.0)


def test_nested_functions_and_closures(device: str) -> None:
    def make(factor: float) -> Any:
        @fusedsl.fuse
        def inner(x: torch.Tensor) -> torch.Tensor:
            return x * factor

        return inner

    x = torch.randn(5, device=device)
    double, triple = make(2.0), make(3.0)
    assert torch.equal(double(x), x * 2.0)
    assert torch.equal(triple(x), x * 3.0)
    assert torch.equal(double(x), x * 2.0)


def test_methods(device: str) -> None:
    x = torch.randn(6, device=device)
    holder = Holder()
    assert torch.equal(holder.method(x), x * 4.0)
    assert torch.equal(Holder.method(holder, x), x * 4.0)
    holder.factor = 5.0
    assert torch.equal(holder.method(x), x * 5.0)
    assert torch.equal(Holder.static(x), x + 1.0)
    assert torch.equal(holder.static(x), x + 1.0)
    assert torch.equal(Holder.of_class(x), x * 4.0)
    assert torch.equal(holder.method.reference(x), x * 5.0)
    assert "holder" not in holder.method.source(x)
    assert holder.method.explain(x).segments[0].scheduler == "pointwise"
    assert holder.method == holder.method
    assert holder.method != Holder().method


def test_a_module(device: str) -> None:
    norm = Norm(33).to(device)
    x = torch.randn(4, 33, device=device)
    with torch.no_grad():
        first = norm(x)
        torch.testing.assert_close(first, norm.forward.reference(x))
        norm.weight = torch.nn.Parameter(torch.randn(33, device=device))
        torch.testing.assert_close(norm(x), norm.forward.reference(x))
        norm.eps = 0.5
        torch.testing.assert_close(norm(x), norm.forward.reference(x))
        again = copy.deepcopy(norm)
        torch.testing.assert_close(again(x), norm.forward.reference(x))
    for _ in range(2):
        (expected,) = torch.autograd.grad(norm.forward.reference(x).sum(), norm.weight)
        torch.testing.assert_close(torch.autograd.grad(norm(x).sum(), norm.weight), (expected,))


def test_results_keep_their_structure(device: str) -> None:
    @fusedsl.fuse
    def several(x: torch.Tensor) -> Any:
        doubled = x * 2.0
        return {"sum": doubled + 1.0, "pair": (doubled, [x, "label", None]), "n": 3}

    x = torch.randn(4, device=device)
    found = several(x)
    assert list(found) == ["sum", "pair", "n"]
    assert torch.equal(found["sum"], x * 2.0 + 1.0)
    assert torch.equal(found["pair"][0], x * 2.0)
    assert found["pair"][1][0] is x
    assert found["pair"][1][1:] == ["label", None]
    assert found["n"] == 3


def test_equal_results_do_not_share_storage(device: str) -> None:
    @fusedsl.fuse
    def twins(x: torch.Tensor) -> Any:
        return x * 2.0, x * 2.0, x * 1.0

    x = torch.randn(4, device=device)
    a, b, c = twins(x)
    a.add_(1.0)
    c.add_(1.0)
    assert torch.equal(b, x * 2.0)
    assert torch.equal(a, x * 2.0 + 1.0)
    assert torch.equal(c, x + 1.0)


def test_one_result_twice_is_one_tensor(device: str) -> None:
    @fusedsl.fuse
    def same(x: torch.Tensor) -> Any:
        y = x * 2.0
        return y, y

    a, b = same(torch.randn(4, device=device))
    assert a is b


def test_views_are_views(device: str) -> None:
    @fusedsl.fuse
    def view(x: torch.Tensor) -> Any:
        return x.t(), x.unsqueeze(0), x + 1.0

    x = torch.randn(3, 4, device=device)
    turned, lifted, more = view(x)
    assert turned.data_ptr() == x.data_ptr()
    assert torch.equal(turned, x.t())
    assert torch.equal(lifted, x.unsqueeze(0))
    assert torch.equal(more, x + 1.0)


def test_an_op_without_kernels_runs_in_eager_torch(device: str) -> None:
    @fusedsl.fuse
    def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.cumsum(x * 2.0, -1) + w)

    x, w = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    torch.testing.assert_close(mixed(x, w), mixed.reference(x, w))
    torch.testing.assert_close(mixed(x, w), mixed.reference(x, w))
    assert [segment.scheduler for segment in mixed.explain(x, w).segments] == ["pointwise", "eager", "pointwise"]
    strict = fusedsl.fuse(mixed, fallback="error")
    with pytest.raises(fusedsl.FuseError, match="cumsum"):
        strict(x, w)


def test_pickle_and_copy() -> None:
    x = torch.randn(3)
    assert pickle.loads(pickle.dumps(scale)) is scale
    again = pickle.loads(pickle.dumps(SCALED))
    assert again.options == SCALED.options
    assert torch.equal(again(x), x * 3.0)
    method = pickle.loads(pickle.dumps(Holder.method))
    assert method is Holder.method
    bound = pickle.loads(pickle.dumps(Holder().method))
    assert torch.equal(bound(x), x * 4.0)
    assert copy.copy(scale) is scale
    assert copy.deepcopy({"f": scale})["f"] is scale


def test_a_local_function_cannot_be_pickled() -> None:
    @fusedsl.fuse
    def local(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(CannotPickle) as caught:
        pickle.dumps(local)
    assert "<fused function" in str(caught.value)
    assert "cannot be pickled" in str(caught.value)
    assert copy.deepcopy(local) is local


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numerics": "fast"}, 'fuse(numerics=\'fast\') is not supported\n  expected: "default" or "eager"'),
        ({"fallback": None}, 'fuse(fallback=None) is not supported\n  expected: "opaque" or "error"'),
        ({"fastmath": True}, "fuse has no option 'fastmath'\n  expected: fallback, numerics"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        fusedsl.fuse(plain, **options)
    assert str(caught.value) == f"OptionError: {message}"
    with pytest.raises(OptionError):
        fusedsl.fuse(**options)


@pytest.mark.parametrize(
    "thing", [torch.nn.Linear(2, 2), functools.partial(plain), torch.relu, int, 3, staticmethod(plain)]
)
def test_what_is_not_a_function(thing: Any) -> None:
    with pytest.raises(fusedsl.FuseError):
        fusedsl.fuse(thing)


def test_looking_inside_without_data() -> None:
    x = torch.empty(64, 256, device="meta", dtype=torch.bfloat16)
    assert "mul" in str(scale.graph(x))
    explanation = scale.explain(x, arch="H200")
    assert explanation.device.name == "H200"
    assert [segment.scheduler for segment in explanation.segments] == ["pointwise"]
    (segment,) = explanation.segments
    assert segment.reductions == ()
    assert segment.persistent_buffers == ()
    assert "no_op" in segment.rejections
    assert segment.source in scale.source(x)
    text = str(explanation)
    assert text.startswith("scale on H200 (sm_90a): 1 segment\n")
    assert "def scale_pointwise(" in text
    assert str(segment.params) in text
    with pytest.raises(fusedsl.FuseError, match="a call needs data"):
        scale(x)


def test_source_is_the_same_every_time() -> None:
    x = torch.randn(9, 40)
    assert scale.source(x) == scale.source(x.clone()) == fusedsl.fuse(scale).source(x)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "H100"])
def test_compile_without_a_gpu(arch: str) -> None:
    (kernel,) = scale.compile(torch.empty(64, 256, device="meta"), arch=arch)
    assert kernel.arch == ("sm_80" if arch == "sm_80" else "sm_90a")
    assert kernel.name == "scale_pointwise"
    assert kernel.cubin[:4] == b"\x7fELF"
    assert ".visible .entry scale_pointwise" in kernel.ptx
    assert kernel.spill_bytes == 0
    assert kernel.registers > 0
    assert kernel.smem_bytes == 0
    assert isinstance(kernel.log, str)


def test_unknown_arch() -> None:
    with pytest.raises(fusedsl.FuseError, match="arch='sm_70'"):
        scale.explain(torch.randn(3), arch="sm_70")


def test_printing_the_source_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    @fusedsl.fuse
    def größe(x: torch.Tensor, kind: Any, label: Any, call: Any) -> torch.Tensor:
        breite = x * 2.0
        return breite.to(kind) + 1

    x = torch.randn(3, 4)
    expected = größe.reference(x, torch.float64, None, plain)
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", ascii_only)
    monkeypatch.setattr(fusedsl.config, "print_source", True)
    torch.testing.assert_close(größe(x, torch.float64, None, plain), expected)
    ascii_only.flush()
    printed = ascii_only.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "load" in printed
    assert "def " in printed
    compile(printed.encode("ascii").decode("unicode_escape"), "printed", "exec")


def test_torch_compile_calls_an_op() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        return scale(x, 3.0) * 2

    x = torch.randn(5)
    compiled = torch.compile(outer, backend="eager", fullgraph=True)
    before = fusedsl.stats().interpreted
    assert torch.equal(compiled(x), x * 3.0 * 2)
    assert fusedsl.stats().interpreted == before + 1


def test_fake_tensors_see_the_plain_function() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        found = scale(torch.randn(3, 4))
    assert tuple(found.shape) == (3, 4)


def test_torch_compile_of_a_module_with_a_fused_forward() -> None:
    norm = Norm(8)
    x = torch.randn(3, 8)
    compiled = torch.compile(norm, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), norm.forward.reference(x))


def test_jit_trace_sees_the_plain_function() -> None:
    x = torch.randn(5)
    traced = torch.jit.trace(lambda x: scale(x, 3.0) + 1.0, (x,), check_trace=False)
    y = torch.randn(7)
    assert torch.equal(traced(y), y * 3.0 + 1.0)


def test_inference_mode_and_no_grad(device: str) -> None:
    x = torch.randn(4, device=device, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(scale(x), x * 2.0)
    with torch.inference_mode():
        y = torch.randn(4, device=device)
        assert torch.equal(scale(y), y * 2.0)
        assert torch.equal(scale(x), x * 2.0)
    assert torch.equal(torch.autograd.grad(scale(x).sum(), x)[0], torch.full((4,), 2.0, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_call_a_cold_function(device: str, dtype: torch.dtype) -> None:
    @fusedsl.fuse
    def cold(x: torch.Tensor, eps: float) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) * eps

    fusedsl.reset_stats()
    inputs = [torch.randn(2, 33, dtype=dtype, device=device) for _ in range(8)]
    found: list[Any] = [None] * 8
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        try:
            found[number] = cold(inputs[number], float(number))
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (x, result) in enumerate(zip(inputs, found, strict=True)):
        torch.testing.assert_close(result, cold.reference(x, float(number)))
    assert fusedsl.stats().traces == 1
    assert fusedsl.stats().plans == 1


def test_threads_call_a_function_with_many_signatures(device: str) -> None:
    @fusedsl.fuse
    def cold(x: torch.Tensor, kind: str) -> torch.Tensor:
        return F.relu(x) if kind == "relu" else x.abs()

    failures: list[Any] = []
    start = threading.Barrier(6)

    def work(number: int) -> None:
        start.wait()
        for step in range(6):
            x = torch.randn(1 + (number + step) % 3, 5, device=device)
            kind = "relu" if step % 2 else "abs"
            if not torch.equal(cold(x, kind), cold.reference(x, kind)):
                failures.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_import_is_light() -> None:
    code = (
        "import torch, sys; before = set(sys.modules); import fusedsl\n"
        "heavy = {'numba', 'llvmlite', 'greenlet', 'cuda.core', 'cuda.bindings', 'matplotlib'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.perf
def test_import_is_fast() -> None:
    code = "import torch, time; start = time.perf_counter(); import fusedsl; print(time.perf_counter() - start)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    assert min(times) < 0.6
