# SPDX-License-Identifier: Apache-2.0
"""Every name of the kernel language compiles for each architecture: no spills, no linker warnings, no stray float64."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusedsl.numba_cuda import build, language
from fusedsl.numba_cuda.compile import compile_kernel
from fusedsl.numba_cuda.kernel import KernelSource
from fusedsl.numba_cuda.linker import CompilationError, refused
from tests.numba_cuda.support import ARCHITECTURES, compiled, kernel

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"


def documented_names() -> set[str]:
    section = DESIGN.read_text().split("## Kernel language")[1].split("\n## ")[0]
    names: set[str] = set()
    for line in section.splitlines():
        if line.startswith("dtype markers"):
            names.update(re.findall(r"`([^`]*)`\.?$", line)[0].split())
        cell = re.match(r"\| (`.*?) \|", line)
        if cell is None or cell[1].startswith("operators"):
            continue
        text = re.sub(r"\([^)]*\)|->.*", " ", cell[1])
        names.update(re.findall(r"[a-z_0-9]+", text))
    return names


def test_names_are_those_documented() -> None:
    assert set(language.NAMES) == documented_names()


def test_the_interpreter_knows_the_same_names() -> None:
    interpreted = pytest.importorskip("fusedsl.numba_cuda.interpreter.names").NAMES
    assert set(interpreted) == set(language.NAMES)


def test_every_name_has_a_docstring() -> None:
    missing = [name for name, value in language.NAMES.items() if not (value.__doc__ or "").strip()]
    assert missing == []


LAYER_NORM = KernelSource(
    "layer_norm_inner_persistent",
    """
BATCH, STRIDE, VECTOR, WARPS = 4, 1024, 8, 4


def layer_norm_inner_persistent(x, weight, bias, out, columns, scale, eps):
    first = thread_x() * VECTOR
    base = block_x() * columns + first
    limit = columns - first
    held = load_stream(x, base, limit, BATCH, STRIDE, VECTOR, 0.0)
    sums = shared(float32, WARPS)
    total = warp_sum(tile_sum(cast(held, float32)), 32)
    if lane() == 0:
        shared_store(sums, warp(), total)
    barrier()
    mean = tile_sum(shared_load(sums, 0, WARPS)) * scale
    centred = where(iota(BATCH, STRIDE, VECTOR, int32) < limit, cast(held, float32) - mean, 0.0)
    squares = shared(float32, WARPS)
    total = warp_sum(tile_sum(centred * centred), 32)
    if lane() == 0:
        shared_store(squares, warp(), total)
    barrier()
    rstd = rsqrt(tile_sum(shared_load(squares, 0, WARPS)) * scale + eps)
    w = cast(load(weight, first, limit, BATCH, STRIDE, VECTOR, 0.0), float32)
    b = cast(load(bias, first, limit, BATCH, STRIDE, VECTOR, 0.0), float32)
    store(out, base, limit, cast(centred * rstd * w + b, bfloat16), BATCH, STRIDE, VECTOR)
""",
    ("*bfloat16", "*bfloat16", "*bfloat16", "*bfloat16", "int64", "float32", "float32"),
    128,
)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_layer_norm(arch: str) -> None:
    result = compiled(LAYER_NORM, arch)
    assert ".f64" not in result.ptx
    assert result.registers <= 72
    assert result.smem_bytes == 32
    assert result.local_bytes == 0
    assert result.ptx.count("ld.global.L1::no_allocate.v4.b32") == 4
    assert result.ptx.count("st.global.v4.b32") == 4
    assert result.ptx.count("bar.sync") == 2
    assert result.ptx.count("cvt.rn.bf16x2.f32") == 16


UNARY = (
    "abs_ sign floor ceil trunc round_ sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos "
    "atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma"
).split()
BINARY = "maximum minimum fmax fmin pow_ fmod remainder atan2 hypot copysign nextafter".split()
PREDICATES = "isnan isinf isfinite signbit".split()
FAST = "fast_exp fast_exp2 fast_log fast_log2 fast_reciprocal fast_rsqrt fast_tanh fast_erf".split()


def elementwise(dtype: str, names: list[str], two: list[str], predicates: list[str]) -> KernelSource:
    lines = ["x = load(a, thread_x(), None, 1, 1, 1, 0)", "y = load(b, thread_x(), None, 1, 1, 1, 0)", "k = 1"]
    calls = [f"{name}(x)" for name in names] + [f"{name}(x, y)" for name in two]
    calls += [f"where({name}(x), x, y)" for name in predicates]
    for i, call in enumerate(calls):
        lines.append(f"store(c, thread_x() + {i} * 128, None, {call}, 1, 1, 1)")
    return kernel("\n".join(lines), f"*{dtype}", f"*{dtype}", f"*{dtype}")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_float32_mathematics(arch: str) -> None:
    everything = UNARY + FAST
    half = len(everything) // 2
    for names, two in ((everything[:half], BINARY[:5]), (everything[half:], BINARY[5:])):
        ptx = compiled(elementwise("float32", names, two, PREDICATES), arch).ptx
        # the slow path of libdevice's sin, cos and tan reduces large arguments in float64
        assert ".f64" not in ptx or {"sin", "cos", "tan"} & set(names)
        assert not re.search(r"\b(add|sub|mul|fma|max|min|abs)[.\w]*\.ftz", ptx)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_float64_mathematics(arch: str) -> None:
    result = compiled(elementwise("float64", UNARY, BINARY, PREDICATES), arch)
    assert "sqrt.rn.f64" in result.ptx


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integer_operators(dtype: str) -> None:
    body = """
x = load(a, thread_x() * 4, b, 2, 512, 4, 0)
y = load(a, thread_x() * 4 + 4096, b, 2, 512, 4, 1)
z = x + y * 3 - (x // y) + (x % y) + (x & y) + (x | 1) + (x ^ y) + ~x + (x << y) + (x >> 1) + -y + x ** y
z = where((x < y) & (x != 3) | (x >= y), z, maximum(x, y)) + minimum(x, 7) + abs_(x) + sign(x) + pow_(x, y)
z = z + remainder(x, y) + fmod(x, y) + udiv(x, y) + umod(x, y) + udiv32(x, y) + umod32(x, y)
z += where(x == y, 1, tile_sum(z)) + tile_prod(z) + tile_max(z) + tile_min(z)
store(a, thread_x() * 4, b, z, 2, 512, 4)
"""
    assert ".f64" not in compiled(kernel(body, f"*{dtype}", "int64")).ptx


def test_float_operators_with_scalars() -> None:
    body = """
x = load(a, thread_x() * 4, None, 2, 512, 4)
y = x * b + 2.5 - c / x + d // x + x % 3.0 + (2 ** x) - x * e
y = where(e, y, 1e300)
y = where(~(x < 0.0) ^ (x >= y), -y, fma(x, 0.1, y))
store_stream(a, thread_x() * 4, None, y, 2, 512, 4)
"""
    ptx = compiled(kernel(body, "*float32", "float32", "int64", "float32", "float32")).ptx
    assert ".f64" not in ptx
    assert "st.global.cs.v4.b32" in ptx


def test_a_boolean_parameter_masks() -> None:
    body = "store(a, 0, None, where(b, load(a, 0, None, 1, 1, 1), 2.0), 1, 1, 1)"
    ptx = compiled(kernel(body, "*float32", "boolean")).ptx
    assert "selp" in ptx
    assert ".param .u8 k_param_1" in ptx


@pytest.mark.parametrize("dtype", list(language.DTYPES))
@pytest.mark.parametrize("vector", [1, 2, 8])
def test_load_and_store_of_each_dtype(dtype: str, vector: int) -> None:
    body = """
t = load(a, thread_x() * VECTOR, c, 3, 1024, VECTOR, 1)
store(b, thread_x() * VECTOR, c, t, 3, 1024, VECTOR)
u = load_stream(a, thread_x() * VECTOR, None, 3, 1024, VECTOR)
store_stream(b, thread_x() * VECTOR, None, u, 3, 1024, VECTOR)
store(b, thread_x() * VECTOR, None, 0, 3, 1024, VECTOR)
"""
    source = kernel(body, f"*{dtype}", f"*{dtype}", "int64", constants=f"VECTOR = {vector}")
    ptx = compiled(source).ptx
    size = language.DTYPES[dtype].itemsize * vector
    if size >= 16:
        wide = "v2.b64" if language.DTYPES[dtype].bits == 64 else "v4.b32"
        assert ptx.count(f"ld.global.{wide}") == 3 * size // 16
    else:
        assert ptx.count("ld.global.b" if size <= 4 else "ld.global.") >= 3


@pytest.mark.parametrize("dtype", list(language.DTYPES))
def test_strided_load_and_store(dtype: str) -> None:
    body = """
i = thread_x() * 4
x = load_strided(a, i, c, 2, 512, d, 4, 1, 0)
y = load_strided_stream(a, i, None, 2, 512, 7, 4, d)
z = load_strided(a, i, c, 2, 512, 0, 4, 3, 1)
m = chunk_mask(c, 2, 512, 4)
store_strided(b, i, c, where(m, x, y), 2, 512, d, 4, 1)
store_strided_stream(b, i, None, where(m, y, z), 2, 512, 9, 4, 2)
store_strided(b, i, None, repeat(load(a, i, None, 1, 1, 4), 2), 2, 512, 8, 4, d)
store(b, i, None, spread(load(a, i, None, 2, 9, 1), 4), 2, 512, 4)
"""
    ptx = compiled(kernel(body, f"*{dtype}", f"*{dtype}", "int64", "int64")).ptx
    bits = max(language.DTYPES[dtype].bits, 8)
    scalar_loads = re.findall(rf"ld\.global\.b{bits} ", ptx)
    assert len(scalar_loads) == 10
    assert len(re.findall(rf"st\.global\.cs\.b{bits} ", ptx)) == 8


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", list(language.DTYPES))
@pytest.mark.parametrize("vector", [2, 8, 16])
def test_load_across_reads_aligned_accesses(dtype: str, vector: int, arch: str) -> None:
    size = language.DTYPES[dtype].itemsize
    if vector * size < 4:
        return
    body = """
i = thread_x() * VECTOR
store(b, i, c, load_across(a, i + d, c, 2, STEP, VECTOR, 1), 2, STEP, VECTOR)
store(b, i, None, load_across(a, i + d, None, 1, 1, VECTOR), 1, 1, VECTOR)
"""
    constants = f"VECTOR, STEP = {vector}, {128 * vector}"
    ptx = compiled(kernel(body, f"*{dtype}", f"*{dtype}", "int64", "int64", constants=constants), arch).ptx
    access, word = min(vector * size, 16), max(size, 4)
    suffix = f"v{access // word}.b{8 * word}" if access > word else f"b{8 * word}"
    assert ptx.count(f"ld.global.{suffix} ") == ptx.count("ld.global.") == 3 * (vector * size // access + 1)
    assert ptx.count("shf.r.wrap") == (0 if size >= 4 else 3 * vector * size // 4)


@pytest.mark.parametrize("dtype", list(language.DTYPES))
def test_join_and_take(dtype: str) -> None:
    body = """
x = load(a, 0, None, 1, 1, 4)
y = join(x, load(a, 4, None, 1, 1, 1))
z = join(take(y, 3, 2), take(y, 0, 1))
store(b, 0, None, take(join(z, x), 1, 6), 6, 1, 1)
"""
    ptx = compiled(kernel(body, f"*{dtype}", f"*{dtype}")).ptx
    assert ptx.count("st.global.b") == 6


def test_immediate_offsets_of_the_chunks() -> None:
    ptx = compiled(kernel("store(a, thread_x(), None, 0.0, 4, 256, 1)", "*float32")).ptx
    for chunk in ("]", "+1024]", "+2048]", "+3072]"):
        assert re.search(rf"st\.global\.b32 \[%rd\d+{re.escape(chunk)}", ptx)


@pytest.mark.parametrize("source", list(language.DTYPES))
def test_cast_to_each_dtype(source: str) -> None:
    widths = {name: f"int{dtype.bits}" for name, dtype in language.DTYPES.items()}
    text = []
    for i, target in enumerate(language.DTYPES):
        value = f"cast(x, {target})"
        same = value if target == widths[target] or target == "boolean" else f"bitcast({value}, {widths[target]})"
        text.append(f"store(b, thread_x() * 4 + {512 * i}, None, cast({same}, int64), 1, 1, 4)")
    body = "x = load(a, thread_x() * 4, None, 1, 1, 4)\n" + "\n".join(text)
    ptx = compiled(kernel(body, f"*{source}", "*int64")).ptx
    assert "cvt.rn.f16x2.f32" in ptx or source == "float16"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_reductions(dtype: str, arch: str) -> None:
    body = """
x = load(a, thread_x() * 4, None, 1, 1, 4)
i = iota(1, 1, 4, int32)
v, j = tile_argmax(x, i)
w, k = tile_argmin(x, i)
v, j = warp_argmax(v, j, 32)
w, k = warp_argmin(w, k, 8)
s = warp_sum(x, 32) + warp_prod(x, 4) + warp_max(x, 16) + warp_min(x, 2) + tile_sum(x) + tile_prod(x) + tile_max(x)
s = s + shuffle_xor(x, 5) + shuffle_down(x, 1) + shuffle_index(x, lane() - 1) + tile_min(x) + v + w
f = add_rows(fold_sum(x, 2), x) + fold_prod(x, 2) + fold_max(x, 2) + fold_min(x, 2)
g, h = fold_argmax(x, i, 2)
p, q = fold_argmin(x, i, 2)
f = where(fold_any(x == 0, 2) & fold_all(x == 1, 2), f + g, p + cast(h + q, DTYPE))
s = s + repeat(f, 2)
s = where(tile_any(x == 0) | tile_all(x == 1) | warp_any(x > 2, 32) & warp_all(x < 9, 8), s, cast(j + k, DTYPE))
store(a, thread_x() * 4, None, s, 1, 1, 4)
"""
    result = compiled(kernel(body, f"*{dtype}", constants=f"DTYPE = {dtype}"), arch)
    assert "vote.sync.any" in result.ptx
    assert ("redux.sync.add.s32" in result.ptx) == (dtype == "int32")


def test_shuffles_of_packed_halves_move_words() -> None:
    body = "store(a, thread_x() * 8, None, shuffle_xor(load(a, thread_x() * 8, None, 1, 1, 8), 1), 1, 1, 8)"
    assert compiled(kernel(body, "*bfloat16")).ptx.count("shfl.sync") == 4


@pytest.mark.parametrize("dtype", ["boolean", "int8", "float16", "bfloat16", "float32", "float64", "int64"])
def test_shared_memory(dtype: str) -> None:
    body = """
s = shared(DTYPE, 1024)
d = dynamic_shared(DTYPE)
i = thread_x()
shared_store(s, i * 8, load(a, i * 8, None, 1, 1, 8))
shared_store(d, i, load(a, i, None, 1, 1, 1))
barrier()
store(a, i * 8, None, shared_load(s, 1016 - i * 8, 8), 1, 1, 8)
warp_barrier()
store(a, i, None, shared_load(d, 127 - i, 1), 1, 1, 1)
store(a, i, None, shared_load(d, i * 3, 3), 3, 1, 1)
"""
    result = compiled(kernel(body, f"*{dtype}", constants=f"DTYPE = {dtype}"))
    assert result.smem_bytes == 1024 * language.DTYPES[dtype].itemsize
    assert "fusedsl_dynamic_shared" in result.ptx


def test_gather_and_scatter() -> None:
    body = """
i = iota(2, 256, 2, int64) + thread_x()
v = gather(a, i, i < b, 1.0)
scatter(a, i, i >= b, v)
w = gather(a, cast(i, int32), None)
scatter(a, cast(i, int32), None, 2.0)
scatter(c, thread_x(), None, gather(c, thread_x(), None))
scatter(c, i, i < b, cast(w, float16))
scatter(d, i, i < b, v > w)
"""
    ptx = compiled(kernel(body, "*float32", "int64", "*float16", "*boolean")).ptx
    assert ptx.count("ld.global.b32") == 8


def test_last_block_done() -> None:
    body = """
flag = shared(int32, 1)
store(a, block_x(), None, 1.0, 1, 1, 1)
fence_gpu()
barrier()
if thread_x() == 0:
    shared_store(flag, 0, atomic_add(b, 0, 1) == grid_x() - 1)
barrier()
if shared_load(flag, 0, 1) != 0:
    fence_gpu()
    old = atomic_add(a, 1, 0.5)
    store(a, block_y() + block_z() + thread_y() + thread_z() + grid_y() + grid_z(), None, old, 1, 1, 1)
"""
    ptx = compiled(kernel(body, "*float32", "*int32")).ptx
    assert ptx.count("fence.acq_rel.gpu") == 2
    assert "atom.global.add.u32" in ptx
    assert "atom.global.add.f32" in ptx


def test_loops_and_conditions() -> None:
    body = """
total = full(4, 0.0, float32)
rounds = udiv32(b + 511, 512)
for step in range(rounds):
    total = total + load(a, step * 512 + thread_x() * 4, b - step * 512 - thread_x() * 4, 1, 1, 4, 0.0)
row = block_x()
while row < b:
    total *= 2.0
    row += grid_x()
if b > 4 and thread_x() < umod(b, 7) or not b:
    total = -total
store(a, thread_x() * 4, None, total, 1, 1, 4)
"""
    assert ".f64" not in compiled(kernel(body, "*float32", "int64")).ptx


def test_bounds_limit_registers() -> None:
    body = "\n".join(
        [
            "x = load(a, thread_x() * 64, None, 16, 4, 4)",
            "barrier()",
            "store(a, thread_x() * 64, None, exp(x) + x, 16, 4, 4)",
        ]
    )
    free = compile_kernel(kernel(body, "*float32"), "sm_80")
    capped = KernelSource("k", kernel(body, "*float32").text, ("*float32",), 128, max_registers=40)
    dense = KernelSource("k", kernel(body, "*float32").text, ("*float32",), 128, min_blocks=12)
    assert free.registers > 40
    assert compile_kernel(capped, "sm_80").registers <= 40
    assert compile_kernel(dense, "sm_80").registers <= 65536 // (12 * 128)
    assert compile_kernel(dense, "sm_80").spill_bytes > 0


def test_line_information() -> None:
    source = kernel("store(a, thread_x(), None, 1.0, 1, 1, 1)", "*float32")
    lined = compile_kernel(source, "sm_90a", lineinfo=True)
    assert build.pseudo_file(source) in lined.ptx
    assert ".loc" not in compile_kernel(source, "sm_90a").ptx


WRONG = {
    "different dtypes": ("x = load(a, 0, None, 1, 1, 1) + load(b, 0, None, 1, 1, 1)", "different dtypes"),
    "different lengths": ("x = full(2, 0, int32) + full(3, 0, int32)", "different lengths"),
    "arithmetic on halves": ("x = load(b, 0, None, 1, 1, 1) + load(b, 1, None, 1, 1, 1)", "add does not take"),
    "store of another dtype": ("store(b, 0, None, load(a, 0, None, 1, 1, 1), 1, 1, 1)", "is needed"),
    "batch not a constant": ("x = load(a, 0, None, thread_x(), 1, 1)", "module-level constant"),
    "vector of three": ("x = load(a, 0, None, 1, 1, 3)", "power of two"),
    "warp of five lanes": ("x = warp_sum(load(a, 0, None, 1, 1, 1), 5)", "power of two"),
    "join of two dtypes": ("x = join(load(a, 0, None, 1, 1, 1), load(b, 0, None, 1, 1, 1))", "dtypes differ"),
    "take of more than there is": ("x = take(load(a, 0, None, 1, 1, 4), 2, 3)", "elements 2 to 4"),
    "chunks of two bytes": ("x = load_across(b, 1, None, 1, 1, 1)", "at least 4 bytes"),
    "chunks out of step": ("x = load_across(b, 1, None, 2, 6, 4)", "multiple of vector"),
    "unknown name": ("x = frobnicate(a)", "frobnicate"),
    "missing argument": ("x = load(a)", "missing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_text_is_refused(case: str) -> None:
    body, message = WRONG[case]
    with pytest.raises(CompilationError, match=message):
        compile_kernel(kernel(body, "*float32", "*bfloat16"), "sm_90a")


def test_unknown_architecture() -> None:
    with pytest.raises(CompilationError, match="unknown architecture 'hopper'"):
        compile_kernel(LAYER_NORM, "hopper")


def test_an_outdated_linker_is_named() -> None:
    error = refused("k", "ERROR_OUTDATED_LIBRARY (14)", "may need newer version of nvJitLink library")
    assert "install nvidia-nvjitlink and nvidia-nvvm of one release" in str(error)
    assert "of one release" not in str(refused("k", "ERROR_PTX_COMPILE (4)", "ptxas error"))
