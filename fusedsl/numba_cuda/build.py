# SPDX-License-Identifier: Apache-2.0
"""From kernel text to machine code: numba types and lowers, libNVVM makes LTO-IR, nvJitLink optimises and assembles.

No GPU is needed. The whole program goes through link-time optimisation: PTX handed to the linker would be treated as
one of
several compilation units. Importing this module imports numba; `fusedsl.numba_cuda.compile` does so at the first
compilation.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from cuda.bindings import nvvm as nvvm_library
from llvmlite import ir
from numba.core.errors import NumbaError
from numba.cuda import compiler, types
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.errors import NumbaError as CudaNumbaError
from numba.cuda.cudadrv import nvvm
from numba.cuda.flags import CUDAFlags
from numba.cuda.utils import numba_target_override

from fusedsl.numba_cuda.compile import parse_arch
from fusedsl.numba_cuda.context import KernelTargetContext, KernelTypingContext
from fusedsl.numba_cuda.dtypes import DTYPES
from fusedsl.numba_cuda.kernel import CompiledKernel, KernelSource
from fusedsl.numba_cuda.language import NAMES
from fusedsl.numba_cuda.linker import CompilationError, link, read_log
from fusedsl.numba_cuda.pipeline import KernelCompiler
from fusedsl.numba_cuda.tile import PointerType

_SCALARS = {
    "int64": types.int64,
    "float32": types.float32,
    "float64": types.float64,
    "boolean": types.boolean,
}


class _Contexts:
    """The process's typing and target contexts, made at the first compilation (under numba's compiler lock)."""

    typing: KernelTypingContext | None = None
    target: KernelTargetContext | None = None


def _contexts() -> tuple[KernelTypingContext, KernelTargetContext]:
    if _Contexts.typing is None or _Contexts.target is None:
        _Contexts.typing = KernelTypingContext()
        _Contexts.target = KernelTargetContext(_Contexts.typing)
        _Contexts.target.refresh()
    return _Contexts.typing, _Contexts.target


def parameter_type(parameter: str) -> types.Type:
    """The numba type of an entry of `KernelSource.signature`."""
    return PointerType(DTYPES[parameter[1:]]) if parameter.startswith("*") else _SCALARS[parameter]


def pseudo_file(source: KernelSource) -> str:
    """The stable file name under which tracebacks and line information quote the text."""
    return f"<fusedsl {source.name} {sha256(source.text.encode()).hexdigest()[:12]}>"


def load_function(source: KernelSource) -> Callable[..., None]:
    """Execute the text over the kernel language and return its function."""
    file = pseudo_file(source)
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = dict(NAMES)
    try:
        exec(compile(source.text, file, "exec"), namespace)
        function: Callable[..., None] = namespace[source.name]
    except (SyntaxError, KeyError, NameError) as error:
        raise CompilationError(f"kernel text of {source.name!r} is not usable: {error!r}") from error
    return function


def _set_bounds(kernel: ir.Function, source: KernelSource) -> None:
    """Annotate the kernel with ``.maxntid``, ``.minnctapersm`` and ``.maxnreg`` (the linker's own option yields to
    launch bounds)."""
    nvvm.set_launch_bounds(
        kernel, (source.threads,) if source.min_blocks is None else (source.threads, source.min_blocks)
    )
    if source.max_registers is not None:
        module = kernel.module
        name, value = ir.MetaDataString(module, "maxnreg"), ir.Constant(ir.IntType(32), source.max_registers)
        module.get_named_metadata("nvvm.annotations").add(module.add_metadata((kernel, name, value)))


@global_compiler_lock
def lower(source: KernelSource, arch: str, *, lineinfo: bool = False) -> str:
    """NVVM IR of a kernel, its entry point named ``source.name``.

    Raises:
        CompilationError: numba rejects the text.
    """
    typing_context, target_context = _contexts()
    flags = CUDAFlags()
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.compute_capability = parse_arch(arch)
    flags.lto = True
    if lineinfo:
        flags.debuginfo = True
        flags.dbg_directives_only = True
    function = load_function(source)
    arguments = tuple(parameter_type(parameter) for parameter in source.signature)
    try:
        with numba_target_override():
            result = compiler.compile_extra(
                typingctx=typing_context,
                targetctx=target_context,
                func=function,
                args=arguments,
                return_type=types.none,
                flags=flags,
                locals={},
                pipeline_class=KernelCompiler,
                call_conv=CUDACallConv(target_context),
                abi_info={},
            )
    except (NumbaError, CudaNumbaError) as error:
        raise CompilationError(f"kernel {source.name!r} does not compile:\n{error}") from error
    library = result.library
    library.finalize()
    mangled = result.fndesc.llvm_func_name
    kernel = library.get_function(mangled)
    compiler.kernel_fixup(kernel, False)
    _set_bounds(kernel, source)
    modules = [str(module) for module in library.modules]
    assert len(modules) == 1, "a kernel is one module: the kernel language has no device functions"
    text: str = nvvm.llvm_replace(modules[0].replace(mangled, source.name))
    return text


def make_ltoir(ir_text: str, arch: str) -> bytes:
    """LTO-IR of NVVM IR; libdevice joins only where it is called."""
    program = nvvm_library.create_program()
    try:
        encoded = ir_text.encode()
        nvvm_library.add_module_to_program(program, encoded, len(encoded), "kernel")
        if "@__nv_" in ir_text or '@"__nv_' in ir_text:
            libdevice = nvvm.LibDevice().get()
            nvvm_library.lazy_add_module_to_program(program, libdevice, len(libdevice), "libdevice")
        options = [f"-arch={arch.replace('sm_', 'compute_')}", "-opt=3", "-gen-lto"]
        try:
            nvvm_library.compile_program(program, len(options), options)
        except nvvm_library.nvvmError as error:
            log = bytearray(nvvm_library.get_program_log_size(program))
            nvvm_library.get_program_log(program, log)
            raise CompilationError(f"libNVVM: {error}\n{log.decode(errors='replace')}") from error
        ltoir = bytearray(nvvm_library.get_compiled_result_size(program))
        nvvm_library.get_compiled_result(program, ltoir)
        return bytes(ltoir)
    finally:
        nvvm_library.destroy_program(program)


def link_options(arch: str, *, lineinfo: bool = False) -> tuple[str, ...]:
    """nvJitLink options."""
    options = ["-lto", f"-arch={arch}"]
    if lineinfo:
        options.append("-lineinfo")
    return tuple(options)


def build(source: KernelSource, arch: str, *, lineinfo: bool = False) -> CompiledKernel:
    """Compile a kernel for one architecture.

    Raises:
        CompilationError: a stage rejects it.
    """
    ltoir = make_ltoir(lower(source, arch, lineinfo=lineinfo), arch)
    options = link_options(arch, lineinfo=lineinfo)
    cubin, log = link(source.name, ltoir, options)
    used = read_log(log)
    return CompiledKernel(
        name=source.name,
        arch=arch,
        cubin=cubin,
        registers=used.registers,
        spill_bytes=used.spill_bytes,
        local_bytes=used.local_bytes,
        smem_bytes=used.smem_bytes,
        log=log,
        ltoir=ltoir,
        link_options=options,
    )


#: A small softmax: with what most kernels use, so that the next compilation finds numba's caches filled.
_WARM_UP = KernelSource(
    "warm_up",
    """
def warm_up(x, y, n, scale):
    first = thread_x() * 8
    base = block_x() * n + first
    limit = n - first
    t = load_stream(x, base, limit, 2, 256, 8, 0.0)
    v = cast(t, float32) * scale
    sums = shared(float32, 1)
    top = warp_max(tile_max(v), 32)
    if lane() == 0:
        shared_store(sums, warp(), top)
    barrier()
    top = tile_max(shared_load(sums, 0, 1))
    e = where(iota(2, 256, 8, int32) < limit, exp(v - top), 0.0)
    total = warp_sum(tile_sum(e), 32)
    row = 0
    while row < n:
        store_stream(y, base + row * n, limit, cast(e / total, bfloat16), 2, 256, 8)
        row = row + grid_x()
""",
    ("*bfloat16", "*bfloat16", "int64", "float32"),
    32,
)


def warm_up_steps() -> tuple[Callable[[], object], ...]:
    """What to run ahead of the first compilation, in order: numba's contexts; a kernel from text to machine code."""
    return _contexts, partial(build, _WARM_UP, "sm_80")
