# SPDX-License-Identifier: Apache-2.0
"""Philox, the layout of torch's dropout stream, and draws from torch's generators."""

from __future__ import annotations

import pytest
import torch

from fusedsl.graph.random import Draw, chunk_of, offset, philox, seed, signed, threads, uniform

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_against_published_answers(counter, key, words) -> None:
    """The known answers that come with the Random123 library."""
    found = philox([torch.tensor([word]) for word in counter], signed(key[0] | key[1] << 32))
    assert tuple(int(word) for word in found) == words


def _by_element(place: int, numel: int, key: int, start: int, count: int, itemsize: int) -> float:
    """The number of one element, followed as a thread of torch's kernel would meet it."""
    chunk = chunk_of(numel, itemsize)
    for thread in range(count):
        at = start // 4
        if chunk == 1:
            for first in range(thread, numel, 4 * count):
                for lane in range(4):
                    if first + lane * count == place:
                        return _number(at, thread, key, lane)
                at += 1
            continue
        for first in range(thread * chunk, numel, count * chunk):
            for lane in range(chunk):
                if first + lane == place:
                    return _number(at + lane // 4, thread, key, lane % 4)
            at += max(chunk // 4, 1)
    raise AssertionError


def _number(at: int, thread: int, key: int, lane: int) -> float:
    words = philox([torch.tensor([word]) for word in (at, 0, thread, 0)], key)
    return float(words[lane].float() * 2.0**-32 + 2.0**-33)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("numel", [1, 7, 12, 64, 90])
def test_elements_meet_torchs_threads(numel: int, itemsize: int) -> None:
    found = uniform((numel,), 12345, 40, 4, itemsize, CPU)
    wanted = [_by_element(place, numel, 12345, 40, 4, itemsize) for place in range(numel)]
    assert found.tolist() == wanted


def test_numbers_are_uniform_and_never_zero() -> None:
    found = uniform((1000, 100), -7, 0, 256, 4, CPU)
    assert float(found.min()) > 0 and float(found.max()) <= 1
    assert abs(float(found.mean()) - 0.5) < 0.005
    assert abs(float(found.var()) - 1 / 12) < 0.002
    assert uniform((0, 3), 1, 0, 256, 4, CPU).shape == (0, 3)


def test_a_draw_is_taken_once() -> None:
    draw = Draw(CPU)
    torch.manual_seed(3)
    first = seed(draw, 10), offset(draw, 10)
    assert (seed(draw, 10), offset(draw, 10)) == first
    assert seed(Draw(CPU), 10) != first[0]
    torch.manual_seed(3)
    assert seed(Draw(CPU), 10) == first[0]
    assert threads(draw, 1000) == 1024 and seed(9, 10) == 9 and offset(9, 10) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("numel", [5, 4096, 10_000_001])
def test_a_draw_advances_torchs_generator_as_dropout_does(numel: int) -> None:
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    torch.cuda.manual_seed(11)
    torch.dropout(torch.ones(numel, device="cuda"), 0.5, True)
    wanted = generator.get_offset()
    torch.cuda.manual_seed(11)
    draw = Draw(torch.device("cuda"))
    assert (seed(draw, numel), offset(draw, numel)) == (11, 0)
    assert generator.get_offset() == wanted
