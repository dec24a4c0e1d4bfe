# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures and options: which tests run here, the device parameter, golden texts, NaN-filled memory, and what
every kernel that the tests plan must fulfil."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

from tests import kernels

try:
    from hypothesis import settings
except ImportError:  # property tests skip themselves
    pass
else:
    settings.register_profile("fusedsl", deadline=None, derandomize=True, max_examples=25)
    settings.load_profile("fusedsl")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fusedsl")
    group.addoption("--update-golden", action="store_true", help="accept the texts that golden tests produce")
    group.addoption("--big", action="store_true", help="run tests that need several GB of GPU memory")
    group.addoption("--perf", action="store_true", help="run tests that measure time; the GPU must be idle")
    group.addoption("--assemble", action="store_true", help="afterwards assemble every kernel that the tests planned")


#: Names the folder in which all processes of a run collect kernels; worker processes inherit it.
_KERNELS = "FUSEDSL_TEST_KERNELS"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--assemble") and not hasattr(config, "workerinput"):
        os.environ[_KERNELS] = tempfile.mkdtemp(prefix="fusedsl-kernels-")
    if _KERNELS in os.environ:
        kernels.watch(Path(os.environ[_KERNELS]))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Assemble the kernels once all tests have run; a bad one fails the run."""
    config = session.config
    if not config.getoption("--assemble") or hasattr(config, "workerinput"):
        return
    folder = Path(os.environ.pop(_KERNELS))
    report = kernels.assemble(folder)
    shutil.rmtree(folder)
    config.stash[_REPORT] = report
    if report.failures and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_REPORT = pytest.StashKey[kernels.Report]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report = config.stash.get(_REPORT, None)
    if report is not None:
        terminalreporter.section("kernels")
        terminalreporter.write_line(str(report))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    skips = {
        "gpu": (gpus < 1, "needs an NVIDIA GPU"),
        "multi_gpu": (gpus < 2, "needs two NVIDIA GPUs"),
        "big": (not config.getoption("--big"), "needs --big"),
        "perf": (not config.getoption("--perf"), "needs --perf"),
    }
    for item in items:
        for marker, (skip, reason) in skips.items():
            if skip and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


#: The interpreter needs it; a machine with a GPU can do without the interpreter.
HAS_GREENLET = importlib.util.find_spec("greenlet") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that turns out to need the interpreter where greenlet is not installed."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if error.name == "greenlet":
            pytest.skip("needs greenlet")
        raise


@pytest.fixture(
    params=[
        pytest.param("cpu", marks=pytest.mark.skipif(not HAS_GREENLET, reason="needs greenlet")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ]
)
def device(request: pytest.FixtureRequest) -> str:
    """Run the test in the interpreter ("cpu") and on the GPU ("cuda")."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def nan_memory() -> Callable[[], None]:
    """Fill the allocators' free blocks with NaN now: unwritten output and out-of-bounds lanes then show."""

    def poison() -> None:
        devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        for where in devices:
            blocks = [torch.full((2**k,), float("nan"), device=where) for k in range(4, 21) for _ in range(4)]
            del blocks

    poison()
    return poison


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """``golden(text)`` compares with ``tests/golden/<module>/<test>.txt``; ``--update-golden`` writes that file."""
    module = Path(request.node.path).stem.removeprefix("test_")
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "_", request.node.name).strip("_")
    path = GOLDEN / module / f"{name}.txt"

    def check(text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
            return
        assert path.exists(), f"no golden text {path}: run pytest with --update-golden and read what it wrote"
        assert text.rstrip("\n") + "\n" == path.read_text(encoding="utf-8")

    return check
