# SPDX-License-Identifier: Apache-2.0
"""The operations that are measured: traffic, arguments, and that the harness tells right values from wrong ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fusedsl
from benchmarks.harness import check_peer, expect, judge, run_case
from benchmarks.operations import Operation, as_tuple, backward_call
from benchmarks.peers import PEERS, Peer, eager, fused
from benchmarks.suites import BATCHNORM, SUITES, batchnorm, layernorm
from benchmarks.timing import Deadline

OPERATIONS = {operation.name: operation for suite in SUITES.values() for operation in suite.operations}
SMALL = {2: (6, 40), 4: (3, 5, 2, 4)}


def small_shape(operation: Operation) -> tuple[int, ...]:
    return SMALL[4 if "i" in operation.arguments else 2]


def test_traffic_counts_what_must_be_read_and_written_once() -> None:
    """Matrices of 6 x 10, images of 6 x 10 x 2 x 1, 2 bytes an element; parameters 4, targets 8."""
    traffic = {
        name: one.traffic_bytes((6, 10, 2, 1) if "i" in one.arguments else (6, 10), torch.bfloat16)
        for name, one in OPERATIONS.items()
    }
    assert traffic == {
        "rmsnorm": 2 * (60 + 10 + 60),
        "layernorm": 2 * (60 + 10 + 10 + 60),
        "softmax": 2 * (60 + 60),
        "cross_entropy": 2 * (60 + 6) + 8 * 6,
        "gelu_bias": 2 * (60 + 10 + 60),
        "silu_mul": 2 * (60 + 60 + 60),
        "colsum": 2 * (60 + 10),
        "rowsum": 2 * (60 + 6),
        "rmsnorm_bwd": 2 * (60 + 10 + 60 + 60 + 10),
        "layernorm_bwd": 2 * (60 + 10 + 60 + 60 + 10 + 10),
        "softmax_bwd": 2 * (60 + 60 + 60),
        "batchnorm": 2 * (120 + 120) + 4 * (4 * 10 + 2 * 10),
        "batchnorm_bwd": 2 * (120 + 120 + 120) + 4 * (10 + 2 * 10),
    }


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
def test_traffic_is_that_of_the_tensors(operation: Operation) -> None:
    shape = small_shape(operation)
    arguments = operation.make_arguments(shape, torch.float32, "cpu")
    read = [a for index, a in enumerate(arguments) if index not in operation.unread]
    written = operation.values(eager.prepare(operation, operation.private(arguments))(), arguments)
    assert sum(t.nbytes for t in (*read, *written)) == operation.traffic_bytes(shape, torch.float32)


def test_images_are_channels_last() -> None:
    image, weight, *_ = OPERATIONS["batchnorm"].make_arguments((2, 3, 4, 5), torch.bfloat16, "cpu")
    assert image.shape == (2, 3, 4, 5)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert (weight.shape, weight.dtype) == ((3,), torch.float32)


def test_targets_are_columns() -> None:
    _, target = OPERATIONS["cross_entropy"].make_arguments((50, 7), torch.bfloat16, "cpu")
    assert target.dtype is torch.int64
    assert 0 <= int(target.min()) and int(target.max()) < 7


def test_changed_arguments_are_values_and_stay_as_they_were() -> None:
    operation = OPERATIONS["batchnorm"]
    arguments = operation.make_arguments((3, 5, 2, 4), torch.float32, "cpu")
    before = [a.clone() for a in arguments]
    result, mean, var = operation.evaluate(arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    assert result.shape == arguments[0].shape
    torch.testing.assert_close(mean, 0.9 * arguments[3] + 0.1 * arguments[0].mean((0, 2, 3)))
    torch.testing.assert_close(var, 0.9 * arguments[4] + 0.1 * arguments[0].var((0, 2, 3)))


def test_the_backward_pass_alone_is_timed() -> None:
    runs = []

    def counted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        runs.append(1)
        return layernorm(x, weight, bias)

    arguments = OPERATIONS["layernorm_bwd"].make_arguments((4, 8), torch.float64, "cpu")
    call = backward_call(counted, (0, 1, 2), arguments)
    first, second = call(), call()
    assert len(runs) == 1
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(a.requires_grad for a in arguments)
    torch.testing.assert_close(first[2], arguments[3].sum(0))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if not name.startswith("batchnorm")])
def test_fused_values_are_right(name: str) -> None:
    operation = OPERATIONS[name]
    peers = [peer for peer in PEERS if peer.name in ("fusedsl", "fusedsl_bare", "eager")]
    case = run_case(operation, (20, 40), torch.bfloat16, peers, None, 0.0)
    notes = {e.peer: e.note for e in case.entries if e.note}
    assert notes == (
        {} if operation.forward is not None else {"fusedsl_bare": "NotImplementedError: no such operation"}
    )
    assert [e.peer for e in case.entries if not e.note and not e.correct] == []


@pytest.mark.parametrize("name", ["batchnorm", "batchnorm_bwd"])
def test_values_of_batch_norm(name: str) -> None:
    """fusedsl's entry is right, or says why it did not run: a call left to eager torch is not its own."""
    peers = [peer for peer in PEERS if peer.name in ("fusedsl", "eager")]
    case = run_case(OPERATIONS[name], (3, 5, 2, 4), torch.bfloat16, peers, None, 0.0)
    assert all(e.correct or e.note for e in case.entries)
    assert case.entries[1].correct


def shifted(operation: Operation, arguments: tuple[Tensor, ...]):  # type: ignore[no-untyped-def]
    """A contestant whose last result is wrong by 3 %."""

    def run() -> tuple[Tensor, ...]:
        results = list(as_tuple(operation.function(*arguments)))
        results[-1] = results[-1] * 1.03
        return tuple(results)

    return run


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_a_wrong_result_is_found(name: str) -> None:
    operation = OPERATIONS[name]
    arguments = operation.make_arguments(small_shape(operation), torch.bfloat16, "cpu")
    expected = expect(operation, arguments)
    entry, _ = check_peer(Peer("wrong", shifted), operation, arguments, expected)
    assert not entry.correct and not entry.note
    assert 0.01 < entry.error < 0.1
    entry, _ = check_peer(Peer("eager", eager.prepare), operation, arguments, expected)
    assert entry.correct


def test_forgotten_running_statistics_are_found() -> None:
    operation = OPERATIONS["batchnorm"]
    arguments = operation.make_arguments((3, 5, 2, 4), torch.bfloat16, "cpu")
    forgetful = Peer("forgetful", lambda operation, own: lambda: operation.function(*own[:3], own[3].clone(), own[4]))
    entry, _ = check_peer(forgetful, operation, arguments, expect(operation, arguments))
    assert not entry.correct


def test_results_of_another_form_are_refused() -> None:
    operation = OPERATIONS["layernorm_bwd"]
    arguments = operation.make_arguments((4, 8), torch.bfloat16, "cpu")
    expected = expect(operation, arguments)
    values = operation.evaluate(arguments)
    with pytest.raises(ValueError, match="2 results instead of 3"):
        judge(expected, values[:2])
    with pytest.raises(ValueError, match=r"result is torch\.float64"):
        judge(expected, [value.double() for value in values])
    judge(expected, [values[0], *[value.float() for value in values[1:]]])


def test_recorded_calls_leave_each_other_alone() -> None:
    """Batch norm changes its running statistics, which torch keeps for the backward pass."""
    operation = next(one for one in BATCHNORM if one.forward is not None)
    arguments = operation.make_arguments((2, 3, 4, 4), torch.float32, "cpu")
    forwards = (batchnorm, fusedsl.fuse(batchnorm), batchnorm)
    first, *others = [backward_call(forward, operation.wanted, arguments) for forward in forwards]
    for call in others:
        torch.testing.assert_close(call(), first())


def test_bare_backward_is_the_same_program() -> None:
    operation = OPERATIONS["layernorm_bwd"]
    arguments = operation.make_arguments((20, 40), torch.float32, "cpu")
    bare = fused.prepare_bare(operation, arguments)
    assert bare is not None
    for one, other in zip(as_tuple(bare()), as_tuple(fused.prepare(operation, arguments)()), strict=True):
        assert torch.equal(one, other)


def test_deadline() -> None:
    assert not Deadline(None).passed(1e9)
    assert Deadline(0.0).passed()
    assert Deadline(100.0).passed(200.0) and not Deadline(100.0).passed()
