# SPDX-License-Identifier: Apache-2.0
"""The examples and the demo run and agree with PyTorch, in the interpreter or on the GPU."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from examples import demo, layer_norm, rms_norm, softmax, train_block
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


def test_training_with_fused_pieces_has_the_same_losses(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    size = train_block.Size(batch=4, width=16, hidden=32, classes=8, blocks=1, steps=3)
    assert train_block.check_float32(size, device) <= train_block.ALLOWED
    (pair,) = train_block.compare_bfloat16(size, 1, device)
    assert pair[0] == pytest.approx(pair[1], rel=0.05)
    assert "largest relative difference" in capsys.readouterr().out


def test_losses_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    size = train_block.Size(batch=8, width=4, hidden=8, classes=3, blocks=1, steps=2)
    wrong = train_block.Pieces(norm=lambda x, weight, bias: 1.01 * train_block.norm(x, weight, bias))
    monkeypatch.setattr(train_block, "FUSED", wrong)
    with pytest.raises(AssertionError, match="losses differ"):
        train_block.check_float32(size, "cpu")
