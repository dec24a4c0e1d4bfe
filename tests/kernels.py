# SPDX-License-Identifier: Apache-2.0
"""Every kernel that the tests plan, and a check that each assembles for every architecture with nothing spilled.

``watch()`` collects the kernels in this process; each distinct one is written to a folder that all processes of a test
run share. Two kernels are one if they differ in comments and names alone. ``assemble`` compiles what is in the folder.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, lru_cache
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attrs

from fusedsl.numba_cuda.kernel import KernelSource
from fusedsl.numba_cuda.linker import CompilationError, link, read_log
from fusedsl.schedulers.base import Launch

ARCHITECTURES = ("sm_80", "sm_90a")

#: Functions of libdevice that keep a small table in local memory for huge arguments.
_WITH_TABLES = frozenset({"sin", "cos", "tan"})
#: In float64 those and division are calls, around which the assembler may store a register or two (nvJitLink 13.5 does
#: so in kernels of 48 registers).
_AROUND_A_CALL_BYTES = 16

#: Beginnings of the names of the kernel language that need sm_90.
_HOPPER = ("bulk_", "cluster_", "mbarrier", "remote_")


class _Rename(ast.NodeTransformer):
    """Numbers the function, its parameters, its variables and the module's constants by first appearance."""

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.names: dict[str, str] = {}

    def rename(self, name: str) -> str:
        return self.names.setdefault(name, f"v{len(self.names)}") if name in self.own else name

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.rename(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.rename(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = "kernel"
        return self.generic_visit(node)


@lru_cache(maxsize=4096)
def canonical_text(text: str) -> str:
    """Kernel text without comments and with numbered names: texts equal in this form have equal machine code."""
    tree = ast.parse(text)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return ast.unparse(_Rename(bound).visit(tree)) + "\n"


@lru_cache(maxsize=4096)
def canonical(source: KernelSource) -> KernelSource:
    """The kernel as ``canonical_text`` has it, named ``kernel``."""
    return attrs.evolve(source, name="kernel", text=canonical_text(source.text))


def watch(folder: Path) -> None:
    """From now on write every kernel that a scheduler plans in this process to ``folder``."""
    planned = Launch.__init__

    def record(self: Launch, *args: Any, **kwargs: Any) -> None:
        planned(self, *args, **kwargs)
        keep(self.source, folder)

    Launch.__init__ = record  # type: ignore[method-assign]


@cache
def keep(source: KernelSource, folder: Path) -> None:
    """Write a kernel to the folder, unless it is there."""
    content = json.dumps({**attrs.asdict(canonical(source)), "origin": source.text})
    key = sha256(repr(canonical(source)).encode()).hexdigest()[:24]
    path = folder / f"{key}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, path)


@attrs.frozen
class Report:
    """What ``assemble`` found.

    Attributes:
        kernels: how many distinct kernels there were.
        seconds: how long it took.
        failures: one text a kernel and architecture that is not as it must be.
    """

    kernels: int
    seconds: float
    failures: tuple[str, ...]

    def __str__(self) -> str:
        count = f"{self.kernels} kernels assembled for {' and '.join(ARCHITECTURES)} in {self.seconds:.0f} s"
        return "\n\n".join([*self.failures, f"{count}, {len(self.failures)} failures"])


def check(path: Path) -> list[str]:
    """Compile one kernel of the folder for every architecture that has what it uses; what is wrong with it.

    A kernel must assemble with no spill, no local memory and no C75xx warning (serialised asynchronous instructions).
    Local memory is expected of ``_WITH_TABLES`` and of float64 arithmetic, whose division is a call; so are up to
    ``_AROUND_A_CALL_BYTES`` of spills where float64 meets such a call.
    """
    fields = json.loads(path.read_text(encoding="utf-8"))
    origin = fields.pop("origin")
    source = KernelSource(**{**fields, "signature": tuple(fields["signature"])})
    names = {node.id for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Name)}
    tables = bool(names & _WITH_TABLES)
    calls = tables or any(isinstance(node, ast.Div) for node in ast.walk(ast.parse(source.text)))
    double = "float64" in names or any(parameter.endswith("float64") for parameter in source.signature)
    architectures = ARCHITECTURES[any(name.startswith(_HOPPER) for name in names) :]
    failures = []
    try:
        for arch, log in logs(source, architectures).items():
            used = read_log(log)
            spilled = used.spill_bytes > (_AROUND_A_CALL_BYTES if calls and double else 0)
            if spilled or (used.local_bytes and not (tables or double)) or "C75" in log:
                failures.append(f"{arch}\n{log}\n{source.threads} threads, min_blocks {source.min_blocks}\n{origin}")
    except CompilationError as error:
        failures.append(f"{error}\n{origin}")
    return failures


def logs(source: KernelSource, architectures: Iterable[str]) -> dict[str, str]:
    """The assembler's log for every architecture; the text is lowered once, since no lowering looks at it."""
    from fusedsl.numba_cuda.build import link_options, lower, make_ltoir  # imports numba

    lowered = lower(source, ARCHITECTURES[0])
    return {arch: link(source.name, make_ltoir(lowered, arch), link_options(arch))[1] for arch in architectures}


def assemble(folder: Path, processes: int | None = None) -> Report:
    """Check every kernel of the folder, in as many processes as there are cores."""
    begin = time.perf_counter()
    paths = sorted(folder.glob("*.json"))
    workers = processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        failures = [failure for found in pool.map(check, paths, chunksize=4) for failure in found]
    return Report(len(paths), time.perf_counter() - begin, tuple(failures))
