# SPDX-License-Identifier: Apache-2.0
"""The background warm-up: what it leaves ready, that it yields to the disk cache, ends with the process and survives
forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import pytest

from fusedsl.numba_cuda import build, warm_up
from fusedsl.numba_cuda.compile import without_garbage_collection
from fusedsl.numba_cuda.warm_up import WarmUp


def run_program(text: str, **environment: str) -> str:
    """Standard output of a Python program in which a GPU seems to be there."""
    prelude = "import sys\nfrom fusedsl.numba_cuda import warm_up\nwarm_up._has_gpu = lambda: True\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        env={**os.environ, "FUSEDSL_WARM_UP": "1", **environment},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_the_compiler_is_ready() -> None:
    """Numba is imported and its contexts exist, and nobody has compiled a kernel of the program."""
    text = """
    warm_up.warm_up_in_background()
    warm_up.warm_up_in_background()
    assert warm_up.WARM_UP.done.wait(50)
    from fusedsl.numba_cuda.cache import CACHE
    build = sys.modules["fusedsl.numba_cuda.build"]
    print(build._Contexts.target is not None, "cuda.bindings.nvjitlink" in sys.modules, CACHE.counters.compilations)
    """
    assert run_program(text) == "True True 0"


def test_the_process_may_end_meanwhile() -> None:
    """A process that ends during the warm-up ends cleanly after the current step."""
    assert run_program("import time\nwarm_up.warm_up_in_background()\ntime.sleep(0.3)\nprint('end')") == "end"


@pytest.mark.parametrize(
    ("gpu", "setting", "started"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_when_it_starts(gpu: bool, setting: bool, started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    monkeypatch.setattr(warm_up, "_has_gpu", lambda: gpu)
    monkeypatch.setattr(warm_up.config, "warm_up", setting)
    monkeypatch.setattr(warm_up, "WARM_UP", WarmUp())
    monkeypatch.setattr(warm_up.WARM_UP, "start", lambda: starts.append(1))
    warm_up.warm_up_in_background()
    assert bool(starts) == started


def test_disk_hits_put_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_DELAY_S", 0.0)
    looks = []

    class Busy:
        @property
        def disk_hits(self) -> int:
            looks.append(1)
            return min(len(looks), 9)

    monkeypatch.setattr(warm_up.CACHE, "counters", Busy())
    WarmUp()._wait_for_the_cache()
    assert len(looks) >= 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_during_the_warm_up() -> None:
    """The child can import and compile: no lock of the thread that it does not have is held."""
    text = """
    import os, time, warnings
    warnings.simplefilter("ignore")
    warm_up.warm_up_in_background()
    time.sleep(0.25)
    child = os.fork()
    if child == 0:
        from fusedsl.numba_cuda.compile import compile_kernel
        from fusedsl.numba_cuda.kernel import KernelSource
        source = KernelSource("k", "def k(x):\\n    store(x, 0, None, 1.0, 1, 1, 1)\\n", ("*float32",), 32)
        os._exit(0 if compile_kernel(source, "sm_80").registers else 1)
    print(os.waitpid(child, 0)[1])
    """
    assert run_program(text, FUSEDSL_DISABLE_CACHE="1") == "0"


def test_every_step_runs() -> None:
    for step in build.warm_up_steps():
        step()
    assert build._Contexts.typing is not None


def test_the_collector_is_paused_and_comes_back() -> None:
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
