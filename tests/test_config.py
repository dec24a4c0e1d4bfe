# SPDX-License-Identifier: Apache-2.0
"""Settings and counters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fusedsl
from fusedsl.config import Config, ConfigError


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FUSEDSL_"):
            monkeypatch.delenv(name)
    assert Config() == Config("", False, False, "", False, "H200", False, 1024)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "FUSEDSL_CACHE_DIR": "/somewhere",
        "FUSEDSL_DISABLE_CACHE": "1",
        "FUSEDSL_PRINT_SOURCE": "yes",
        "FUSEDSL_INTERPRET": "TRUE",
        "FUSEDSL_INTERPRET_ARCH": "A100",
        "FUSEDSL_WARM_UP": "on",
        "FUSEDSL_MAX_CACHED_CALLS": "7",
    }.items():
        monkeypatch.setenv(name, value)
    assert Config() == Config("/somewhere", True, True, "", True, "A100", True, 7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FUSEDSL_INTERPRET", "maybe"),
        ("FUSEDSL_MAX_CACHED_CALLS", "many"),
        ("FUSEDSL_MAX_CACHED_CALLS", "0"),
        ("FUSEDSL_LOG", "x"),
    ],
)
def test_environment_that_is_not_understood(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        Config()


@pytest.mark.parametrize(
    ("name", "value"),
    [("interpret", 1), ("print_source", "yes"), ("max_cached_calls", 0), ("log", "loud"), ("cache_dir", None)],
)
def test_wrong_values(name: str, value: Any) -> None:
    config = Config()
    before = getattr(config, name)
    with pytest.raises(ConfigError, match=f"fusedsl.config.{name} cannot be"):
        setattr(config, name, value)
    assert getattr(config, name) == before
    with pytest.raises(AttributeError):
        config.unknown = 1  # type: ignore[attr-defined]


def test_the_cache_folder_reaches_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", "")
    config = Config()
    config.cache_dir = tmp_path  # type: ignore[assignment]
    assert os.environ["FUSEDSL_CACHE_DIR"] == str(tmp_path)
    config.cache_dir = ""
    assert "FUSEDSL_CACHE_DIR" not in os.environ


def test_log_to_stderr() -> None:
    code = (
        "import torch, fusedsl\n"
        "def f(x):\n    return x\n"
        "fusedsl.config.log = 'info'\n"
        "from fusedsl.config import logger\n"
        "logger.info('told'); fusedsl.config.log = ''; logger.info('untold')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "fusedsl INFO: told\n"


def test_stats_are_a_snapshot() -> None:
    fusedsl.reset_stats()
    before = fusedsl.stats()
    assert (before.traces, before.plans, before.compilations, before.launches, before.hits) == (0, 0, 0, 0, 0)
    import torch

    fused = fusedsl.fuse(_twice)
    fused(torch.ones(3))
    assert before.traces == 0
    assert fusedsl.stats().traces == 1
    assert fusedsl.stats().interpreted == 1
    fusedsl.reset_stats()
    assert fusedsl.stats() == before


def _twice(x: Any) -> Any:
    return x * 2.0
