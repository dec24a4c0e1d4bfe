# SPDX-License-Identifier: Apache-2.0
"""The recipes for nvFuser compute what they should: run over a stand-in for its bindings that computes in torch."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from benchmarks.harness import check_peer, expect
from benchmarks.operations import Operation
from benchmarks.peers import Peer, nvfuser
from benchmarks.suites import SUITES

OPERATIONS = [operation for suite in SUITES.values() for operation in suite.operations]


class DataType(enum.Enum):
    Half = torch.float16
    BFloat16 = torch.bfloat16
    Float = torch.float32
    Double = torch.float64
    Int = torch.int64


class Value:
    """A value whose computation is known; ``give`` takes the operands."""

    def __init__(self, give: Any) -> None:
        self.give = give

    def shape(self) -> Value:
        return Value(lambda operands: self.give(operands).shape)


def value_of(argument: Any, operands: list[Tensor]) -> Any:
    return argument.give(operands) if isinstance(argument, Value) else argument


def broadcast_in_dim(vector: Tensor, shape: Any, broadcast_dims: list[int]) -> Tensor:
    sizes = [extent if dim in broadcast_dims else 1 for dim, extent in enumerate(shape)]
    return vector.reshape(sizes).expand(shape)


def broadcast(vector: Tensor, mask: list[bool]) -> Tensor:
    for dim, new in enumerate(mask):
        vector = vector.unsqueeze(dim) if new else vector
    return vector


class Ops:
    """The operations of the bindings."""

    functions: ClassVar[dict[str, Any]] = {
        "broadcast_in_dim": broadcast_in_dim,
        "broadcast": broadcast,
        "cast": lambda x, dtype: x.to(dtype.value),
        "max": lambda x, dims, keepdim=False: x.amax(dims, keepdim=keepdim),
        "sum": lambda x, dims, keepdim=False: x.sum(dims, keepdim=keepdim),
        "squeeze": lambda x, dims: x.squeeze(*dims),
        "take_along_axis": lambda x, index, dim: x.gather(dim, index),
    }

    def var_mean(self, x: Value, **options: Any) -> tuple[Value, Value]:
        return tuple(
            Value(
                lambda o, k=k: torch.var_mean(
                    x.give(o), options["dims"], correction=options["correction"], keepdim=options["keepdim"]
                )[k]
            )
            for k in (0, 1)
        )  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        function = self.functions.get(name) or getattr(torch, name)

        def record(*arguments: Any, **options: Any) -> Value:
            def give(operands: list[Tensor]) -> Any:
                found = {key: value_of(value, operands) for key, value in options.items()}
                return function(*[value_of(a, operands) for a in arguments], **found)

            return Value(give)

        return record


class FusionDefinition:
    """Records; ``execute`` computes all outputs, then writes those that replace an operand."""

    def __init__(self) -> None:
        self.ops = Ops()
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.replaced: list[tuple[Value, int]] = []

    def __enter__(self) -> FusionDefinition:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def define_tensor(self, shape: list[int], contiguity: list[bool | None], dtype: DataType) -> Value:
        place = len(self.inputs)
        assert len(shape) == len(contiguity)

        def give(operands: list[Tensor]) -> Tensor:
            operand = operands[place]
            assert operand.dtype is dtype.value
            assert operand.is_contiguous()
            assert all(want in (-1, extent) for want, extent in zip(shape, operand.shape, strict=True))
            return operand

        self.inputs.append(Value(give))
        return self.inputs[-1]

    def define_scalar(self, value: float) -> Value:
        return Value(lambda operands: torch.tensor(value))

    def add_output(self, value: Value, replaces: Value | None = None) -> None:
        if replaces is None:
            self.outputs.append(value)
        else:
            self.replaced.append((value, self.inputs.index(replaces)))

    def execute(self, operands: list[Tensor]) -> list[Tensor]:
        results = [value.give(operands) for value in self.outputs]
        new = [(value.give(operands), place) for value, place in self.replaced]
        for tensor, place in new:
            operands[place].copy_(tensor)
        return results


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("nvfuser_direct")
    module.DataType, module.FusionDefinition = DataType, FusionDefinition  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvfuser_direct", module)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_recipe(operation: Operation) -> None:
    shape = (6, 5, 2, 4) if "i" in operation.arguments else (6, 40)
    arguments = operation.make_arguments(shape, torch.bfloat16, "cpu")
    entry, call = check_peer(Peer("nvfuser", nvfuser.prepare), operation, arguments, expect(operation, arguments))
    assert entry.note == "" and call is not None
    assert entry.correct, entry.error
