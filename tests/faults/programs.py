# SPDX-License-Identifier: Apache-2.0
"""Runs small programs in fresh Python processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run_python(*arguments: str, stdin: str | None = None, check: bool = True, **environment: str) -> str:
    """Run Python with ``arguments`` and the repository on its path; what it printed (stdout, then stderr).

    Args:
        *arguments: command line after the interpreter.
        stdin: text to pipe in.
        check: a non-zero exit status is an AssertionError that shows the output.
        **environment: variables to add.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    output = done.stdout + done.stderr
    if "No module named 'greenlet'" in output:
        pytest.skip("needs greenlet")
    assert not check or done.returncode == 0, output
    return output
