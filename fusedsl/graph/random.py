# SPDX-License-Identifier: Apache-2.0
"""The random numbers of dropout: Philox4x32-10 keyed by element, laid out as torch's own dropout lays them out.

A ``Draw`` is one reservation in a torch generator. Everything that needs its numbers, forward, backward or computed
again, asks the same draw and gets the same numbers; another call has another draw. On CUDA a draw takes (seed, offset)
from the device's default generator and advances it as ``torch.nn.functional.dropout`` does, so that the mask of a
contiguous, 16-byte aligned tensor is torch's own. On the CPU, where torch's generator is another one, the seed is a
64-bit number drawn from torch's default generator.

torch's kernel has ``threads`` threads. The elements lie in groups of ``chunk`` (16 bytes of the tensor, halved until
they divide it); group ``c`` belongs to thread ``c % threads``, which takes four numbers at a time. Without groups
(chunk 1) the four numbers of a thread are for elements ``threads`` apart. The four numbers at counter ``i`` of thread
``t`` are ``philox(counter=(i, t), key=seed)``, and ``i`` starts at ``offset / 4``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch

from fusedsl.graph.span import FuseError

#: Threads of a block of torch's dropout kernel, and numbers a thread takes at a time.
BLOCK = 256
UNROLL = 4


class CapturedRandomError(FuseError):
    """Random numbers are drawn while a CUDA graph is captured: every replay would draw the same ones."""


class Draw:
    """One use of random numbers in one call; the generator is advanced when the numbers are first asked for.

    Args:
        device: whose default generator to draw from.
    """

    __slots__ = ("device", "state")

    _lock = threading.Lock()

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.state: tuple[int, int] | None = None

    def take(self, numel: int) -> tuple[int, int]:
        """(seed, offset) of the numbers of ``numel`` elements.

        Raises:
            CapturedRandomError: a CUDA graph is being captured.
        """
        with Draw._lock:
            if self.state is None:
                self.state = self._reserve(numel)
            return self.state

    def _reserve(self, numel: int) -> tuple[int, int]:
        if self.device.type != "cuda":
            return int(torch.empty((), dtype=torch.int64, device="cpu").random_(-(2**63), None)), 0
        if torch.cuda.is_current_stream_capturing():
            raise CapturedRandomError(
                "dropout in training cannot be captured in a CUDA graph",
                expected="a call outside of capture, or p=0",
                hint="apply dropout outside the fused function",
            )
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]
        held = generator.get_offset()
        steps = (max(numel, 1) - 1) // (self.threads(numel) * UNROLL) + 1
        generator.set_offset(held + steps * UNROLL)
        return signed(generator.initial_seed()), held

    def threads(self, numel: int) -> int:
        """Threads of torch's kernel for ``numel`` elements on this device; on the CPU one for every element."""
        blocks = -(-max(numel, 1) // BLOCK)
        if self.device.type == "cuda":
            found = torch.cuda.get_device_properties(self.device)
            blocks = min(blocks, found.multi_processor_count * (found.max_threads_per_multi_processor // BLOCK))
        return blocks * BLOCK


def signed(value: int) -> int:
    """A 64-bit number as a signed one."""
    return (value + 2**63) % 2**64 - 2**63


# Host functions of a graph: ``draw`` is a Draw, or an int that stands for a seed.


def seed(draw: Draw | int, numel: int) -> int:
    """The seed of a draw, as a signed 64-bit number."""
    return draw.take(numel)[0] if isinstance(draw, Draw) else draw


def offset(draw: Draw | int, numel: int) -> int:
    """The offset of a draw, a multiple of 4."""
    return draw.take(numel)[1] if isinstance(draw, Draw) else 0


def threads(draw: Draw | int, numel: int) -> int:
    """Threads of torch's kernel."""
    return (draw if isinstance(draw, Draw) else Draw(torch.device("cpu"))).threads(numel)


def chunk_of(numel: int, itemsize: int) -> int:
    """Consecutive elements that one thread of torch's kernel handles at a time."""
    chunk = 16 // max(itemsize, 2)
    while numel % chunk:
        chunk //= 2
    return chunk


# The numbers ------------------------------------------------------------------------------------------------------

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def philox(counter: Sequence[torch.Tensor], key: int) -> list[torch.Tensor]:
    """Philox4x32-10.

    Args:
        counter: four int64 tensors of 32-bit words, the lowest first.
        key: 64 bits.

    Returns:
        Four int64 tensors of 32-bit words.
    """
    x, y, z, w = counter
    low, high = key & _LOW, key >> 32 & _LOW
    for _ in range(10):
        # 64-bit products wrap, and the arithmetic shift leaves the high word's sign: the masks take both away.
        first, second = x * _MULTIPLIERS[0], z * _MULTIPLIERS[1]
        x, y, z, w = (
            (second >> 32 & _LOW) ^ y ^ low,
            second & _LOW,
            (first >> 32 & _LOW) ^ w ^ high,
            first & _LOW,
        )
        low, high = (low + _WEYL[0]) & _LOW, (high + _WEYL[1]) & _LOW
    return [x, y, z, w]


def uniform(
    shape: Sequence[int], seed: int, offset: int, threads: int, itemsize: int, device: torch.device
) -> torch.Tensor:
    """float32 numbers in (0, 1], one an element in row-major order.

    Args:
        shape: of the result.
        seed: key.
        offset: a multiple of 4.
        threads: of torch's kernel.
        itemsize: bytes of an element of the tensor that the numbers are for.
        device: of the result.
    """
    numel = math.prod(shape)
    place = torch.arange(numel, dtype=torch.int64, device=device)
    chunk = chunk_of(numel, itemsize) if numel else 1
    if chunk == 1:
        group, thread = place // threads, place % threads
        lane, step = group % UNROLL, group // UNROLL
    else:
        group, inside = place // chunk, place % chunk
        thread, lane = group % threads, inside % UNROLL
        step = group // threads * max(chunk // UNROLL, 1) + inside // UNROLL
    step = step + offset // UNROLL
    words = philox((step & _LOW, step >> 32 & _LOW, thread & _LOW, thread >> 32), seed)
    chosen = torch.stack(words).gather(0, lane[None])[0]
    return (chosen.to(torch.float32) * 2.0**-32 + 2.0**-33).reshape(list(shape))
