# SPDX-License-Identifier: Apache-2.0
"""The kernel cache: in memory, and on disk across processes.

The key is a hash of everything that decides the machine code: text, signature, bounds, architecture, options,
versions of the
compilers and of this package. An entry on disk is one file, written under another name and moved into place; anything
that does not read back whole is a miss. A folder that cannot be written costs one warning, never a failure. Reading
an entry imports no compiler.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import attrs

from fusedsl.config import config
from fusedsl.numba_cuda.kernel import CompiledKernel, KernelSource

_MAGIC = b"fusedsl kernel 1\n"

#: Distributions whose version is part of the key; those not installed count as "".
_DISTRIBUTIONS = (
    "fusedsl",
    "numba-cuda",
    "numba",
    "llvmlite",
    "cuda-bindings",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-nvjitlink-cu12",
)

_DRIVER = Path("/proc/driver/nvidia/version")


class CacheWarning(UserWarning):
    """The disk cache cannot be written; kernels are compiled in every process."""


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def driver_version() -> str:
    """What the kernel driver says of itself; "" where there is none or it has no such file."""
    try:
        return _DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@cache
def environment() -> str:
    """What the machine code depends on besides the source: versions of compilers, driver, Python and this package."""
    files = sorted(Path(__file__).parent.glob("**/*.py"))
    stamps = [(file.name, stat.st_size, stat.st_mtime_ns) for file in files for stat in (file.stat(),)]
    versions = [(name, _version(name)) for name in _DISTRIBUTIONS]
    python = f"{sys.version_info.major}.{sys.version_info.minor} {platform.machine()}"
    return repr((versions, driver_version(), python, stamps))


def key(source: KernelSource, arch: str, lineinfo: bool) -> str:
    """The name of a kernel's entry.

    Comment lines of the text do not count, so that a user's function may move within its file; with ``lineinfo`` they
    are part of what the machine code refers to.
    """
    if not lineinfo:
        lines = (line for line in source.text.split("\n") if not line.lstrip().startswith("#"))
        source = attrs.evolve(source, text="\n".join(lines))
    parts = (attrs.astuple(source), arch, lineinfo, environment())
    return sha256(repr(parts).encode()).hexdigest()


def folder() -> Path | None:
    """Where entries are kept on disk: ``config.cache_dir``, or ``fusedsl`` in XDG_CACHE_HOME or ``~/.cache``; None
    where the disk cache is disabled or there is no home."""
    if config.disable_cache:
        return None
    if config.cache_dir:
        return Path(config.cache_dir)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "fusedsl"
    try:
        return Path.home() / ".cache" / "fusedsl"
    except RuntimeError:
        return None


def encode(kernel: CompiledKernel) -> bytes:
    """The file content of an entry: a checked header line, then LTO-IR and machine code."""
    body = kernel.ltoir + kernel.cubin
    fields = attrs.asdict(kernel, filter=lambda attribute, _: attribute.name not in ("ltoir", "cubin"))
    header = json.dumps({"kernel": fields, "ltoir_bytes": len(kernel.ltoir)}).encode()
    checked = header + b"\n" + body
    return _MAGIC + sha256(checked).hexdigest().encode() + b"\n" + checked


def decode(content: bytes) -> CompiledKernel | None:
    """The kernel of an entry, or None where the content is not a whole entry."""
    if not content.startswith(_MAGIC):
        return None
    digest, _, checked = content[len(_MAGIC) :].partition(b"\n")
    if sha256(checked).hexdigest().encode() != digest:
        return None
    header, _, body = checked.partition(b"\n")
    read = json.loads(header)
    split = read["ltoir_bytes"]
    fields = {**read["kernel"], "link_options": tuple(read["kernel"]["link_options"])}
    return CompiledKernel(**fields, ltoir=body[:split], cubin=body[split:])


@attrs.define
class Counters:
    """How requests were answered since the process began."""

    compilations: int = 0
    disk_hits: int = 0
    memory_hits: int = 0


class KernelCache:
    """Compiled kernels by key; safe to use from many threads and processes."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._kernels: dict[str, CompiledKernel] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._warned = False

    def get(
        self, source: KernelSource, arch: str, lineinfo: bool, build: Callable[[], CompiledKernel]
    ) -> CompiledKernel:
        """The kernel from memory or disk, else from ``build``, which runs once however many threads ask."""
        name = key(source, arch, lineinfo)
        kernel = self._kernels.get(name)
        if kernel is not None:
            self.counters.memory_hits += 1
            return kernel
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            kernel = self._kernels.get(name)
            if kernel is not None:
                self.counters.memory_hits += 1
                return kernel
            kernel = self._read(name)
            if kernel is not None:
                self.counters.disk_hits += 1
            else:
                kernel = build()
                self.counters.compilations += 1
                self._write(name, kernel)
            self._kernels[name] = kernel
        with self._guard:
            self._locks.pop(name, None)
        return kernel

    def clear_memory(self) -> None:
        """Forget the kernels held in memory; those on disk stay."""
        self._kernels.clear()

    def _read(self, name: str) -> CompiledKernel | None:
        where = folder()
        if where is None:
            return None
        try:
            return decode((where / name[:2] / name).read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, name: str, kernel: CompiledKernel) -> None:
        where = folder()
        if where is None:
            return
        try:
            target = where / name[:2] / name
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(encode(kernel))
                os.replace(temporary, target)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            self._warn(where, error)

    def _warn(self, where: Path, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"cannot write the kernel cache in {where}: {error}; "
                "set FUSEDSL_CACHE_DIR to a folder that can be written",
                CacheWarning,
                stacklevel=2,
            )


#: The cache of this process.
CACHE = KernelCache()
