# SPDX-License-Identifier: Apache-2.0
"""Import numba and compile a small kernel in a background thread, so that the first call does not wait for them.

Importing the compiler takes about 0.6 s of processor time and the first compilation 0.1 s more than later ones. The
thread starts when the first function is decorated, waits while kernels come from the disk cache (they need no
compiler), and works in steps: the end of the process and forks wait for the current step only.
``fusedsl.config.warm_up`` (or FUSEDSL_WARM_UP=1) switches it on; without a GPU it does not start.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fusedsl.config import config
from fusedsl.numba_cuda.cache import CACHE
from fusedsl.numba_cuda.compile import without_garbage_collection

#: Imported one by one, each in a step; the last one is what compiles.
_MODULES = ("llvmlite.ir", "numba", "numba.cuda", "cuda.bindings.nvjitlink")
_COMPILER = "fusedsl.numba_cuda.build"

_DELAY_S = 0.15


class WarmUp:
    """The background thread.

    Attributes:
        done: set when it has ended, for whatever reason.
    """

    def __init__(self) -> None:
        self.done = threading.Event()
        self._stop = threading.Event()
        self._step = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="fusedsl warm-up", daemon=True)
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            release = self._step.release
            os.register_at_fork(before=self._step.acquire, after_in_parent=release, after_in_child=release)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step, and wait for that."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._wait_for_the_cache()
            for step in _steps():
                if self._stop.is_set():
                    return
                with self._step, without_garbage_collection():
                    step()
        except Exception:
            return
        finally:
            self.done.set()

    def _wait_for_the_cache(self) -> None:
        """Wait a moment, and as long as kernels are being read from disk."""
        hits = -1
        while hits != CACHE.counters.disk_hits and not self._stop.is_set():
            hits = CACHE.counters.disk_hits
            self._stop.wait(_DELAY_S)


def _steps() -> Iterator[Callable[[], object]]:
    for module in (*_MODULES, _COMPILER):
        yield partial(importlib.import_module, module)
    yield from sys.modules[_COMPILER].warm_up_steps()


def _has_gpu() -> bool:
    """Whether a driver's device file is there; asking the driver itself would initialise it before a fork."""
    return sys.platform == "win32" or any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/dxg"))


WARM_UP = WarmUp()


def warm_up_in_background() -> None:
    """Get the compiler ready beside the program, where there is a GPU; costs microseconds after the first time."""
    if config.warm_up and WARM_UP._thread is None and _has_gpu():
        WARM_UP.start()
