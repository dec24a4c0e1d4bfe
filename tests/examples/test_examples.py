# SPDX-License-Identifier: Apache-2.0
"""The examples and the demo run and agree with PyTorch, in the interpreter or on the GPU."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from examples import demo, layer_norm, rms_norm, softmax
from examples.common import check
from tests.faults.programs import run_python


@pytest.mark.parametrize("example", [layer_norm, rms_norm, softmax], ids=lambda m: m.__name__)
def test_example_agrees_with_torch(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    name = example.__name__.rpartition(".")[2]
    assert f"{name}: torch.bfloat16" in capsys.readouterr().out


def test_demo_shows_the_explanation_and_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main()
    printed = capsys.readouterr().out
    assert "inner_persistent" in printed
    assert "def " in printed.split("--- the kernel that layer_norm became ---")[1].split("--- checks ---")[0]
    assert printed.rstrip().endswith("all results agree with PyTorch")


def test_check_finds_a_wrong_result() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(AssertionError, match="wrong: error"):
        check("wrong", lambda a: torch.exp(a) * 1.001, torch.exp, (x,))


def test_the_readme_example_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text(encoding="utf-8")
    code = readme.split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "example.py").write_text(code)
    printed = run_python(str(tmp_path / "example.py"))
    difference = float(printed.splitlines()[0].removeprefix("tensor(").rstrip(")"))
    assert 0 <= difference < 1e-5
    assert "inner_persistent" in printed
