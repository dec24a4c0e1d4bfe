# SPDX-License-Identifier: Apache-2.0
"""Imports inside the package point downward: the contracts in pyproject.toml hold."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_import_contracts_hold(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lints the import graph; the report names the offending chain."""
    cli = pytest.importorskip("importlinter.cli")
    monkeypatch.chdir(ROOT)
    failed = cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert not failed, capsys.readouterr().out
