# SPDX-License-Identifier: Apache-2.0
"""What a result was measured with: GPU, driver, versions, date, commit."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

_ROOT = Path(__file__).parent.parent
_DISTRIBUTIONS = ("torch", "triton", "numba", "numba-cuda", "numpy", "cuda-core", "liger-kernel", "quack-kernels")


def _output(*command: str) -> str:
    """First line a command prints, or "" where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def versions() -> dict[str, str]:
    """Installed versions of fusedsl, its dependencies and the peers."""
    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """FUSEDSL_COMMIT; else the commit of the working tree (with ``+`` where it was changed); else "unknown"."""
    given = os.environ.get("FUSEDSL_COMMIT", "")
    found = _output("git", "-C", str(_ROOT), "rev-parse", "--short", "HEAD")
    if given or not found:
        return given or "unknown"
    return found + ("+" if _output("git", "-C", str(_ROOT), "status", "--porcelain", "--untracked-files=no") else "")


def describe() -> dict[str, object]:
    """GPU, driver, versions, UTC date and the commit."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "gpu": gpu,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cpu": platform.processor() or platform.machine(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
    }
