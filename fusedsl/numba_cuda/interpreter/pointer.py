# SPDX-License-Identifier: Apache-2.0
"""Pointers over CPU tensors, and who has written which element of them.

Outputs and workspaces are poisoned before their first kernel (`poison`): from then on every element that is read must
have been written, until `settle` checks that the whole tensor was written and ends the watch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from fusedsl.numba_cuda.dtypes import DType, from_torch
from fusedsl.numba_cuda.interpreter.block import current_thread
from fusedsl.numba_cuda.interpreter.errors import GlobalRace, UninitializedRead, UnwrittenOutput
from fusedsl.numba_cuda.interpreter.storage import poison_pattern, span_array, span_elements
from fusedsl.numba_cuda.interpreter.tile import Array, tile_class

#: Tensors being watched -> one byte an element of their span: 1 once it has been written.
_WRITTEN = WeakIdKeyDictionary()

#: A stretch of elements: first, one past the last.
Run = tuple[int, int]

_NOBODY = -1


def poison(tensor: torch.Tensor) -> None:
    """Fill a CPU tensor with NaN (or a telling integer) and report reads of its elements before they are written.

    The tensor object itself is what kernels must be given; views of it are not watched.
    """
    if tensor.numel() == 0:
        return
    tensor.detach().fill_(poison_pattern(from_torch(tensor.dtype)))
    _WRITTEN[tensor] = bytearray(span_elements(tensor))


def settle(tensor: torch.Tensor, name: str) -> None:
    """End the watch that `poison` began.

    Raises:
        UnwrittenOutput: an element of the tensor was never written; ``name`` is how the message calls the tensor.
    """
    written = _WRITTEN.pop(tensor, None)
    if written is None:
        return
    marks = torch.frombuffer(written, dtype=torch.bool).as_strided(tensor.shape, tensor.stride())
    missing = (~marks).nonzero()
    if len(missing):
        raise UnwrittenOutput(
            f"{len(missing)} of the {tensor.numel()} elements of {name} were never written, "
            f"the first at {tuple(missing[0].tolist())}"
        )


class Pointer:
    """A kernel's pointer argument: the memory of one tensor, from its first element to its last.

    Attributes:
        name: the kernel's parameter.
        dtype: element type.
        raw: the elements; writes go through to the tensor.
        size: elements of ``raw``: legal offsets are 0 to size - 1.
        address: address of element 0 in bytes.
        written: marks of a watched tensor, or None.
        writers: who wrote each element in this launch, as stamps (see `Thread.stamp`); made at the first store.
    """

    __slots__ = ("address", "dtype", "name", "raw", "size", "tile", "writers", "written")

    def __init__(self, name: str, dtype: DType, tensor: torch.Tensor) -> None:
        self.name = name
        self.dtype = dtype
        self.raw = span_array(tensor, dtype)
        self.size = len(self.raw)
        self.address = tensor.data_ptr()
        self.tile = tile_class(dtype)
        self.written: bytearray | None = _WRITTEN.get(tensor)
        self.writers: list[int] | None = None

    def __repr__(self) -> str:
        return f"Pointer({self.dtype}, {self.name!r})"

    @property
    def legal(self) -> str:
        """The legal offsets in words."""
        return f"offsets 0 to {self.size - 1}" if self.size else "no access: the tensor is empty"

    @property
    def is_watched(self) -> bool:
        """Whether reads must be checked: the tensor is poisoned, or this launch has written to it."""
        return self.written is not None or self.writers is not None

    def check_read(self, what: str, runs: Iterable[Run]) -> None:
        """Fault where nobody has written, or where another thread has in this launch with nothing to order it.

        What another block wrote may be read once a thread of this block has done an atomic ("last block done").
        """
        for first, last in runs:
            element = -1 if self.written is None else self.written.find(0, first, last)
            if element >= 0:
                raise UninitializedRead(f"{what} reads element {element} of {self.name}, which nobody has written")
            if self.writers is not None:
                before = self.writers[first:last]
                for stamp in {*before} - {_NOBODY}:
                    self._check_reader(what, first + before.index(stamp), stamp)

    def _check_reader(self, what: str, element: int, stamp: int) -> None:
        thread = current_thread()
        if thread.unordered(stamp) and not thread.may_see(stamp):
            raise GlobalRace(
                f"{what} reads element {element} of {self.name}, which {thread.describe_stamp(stamp)} wrote "
                "in the same launch with nothing to order the two",
                hint="barrier() between threads of a block; fence_gpu() and an atomic between blocks",
            )

    def write(self, what: str, runs: Iterable[Run], values: Array) -> None:
        """Put values into stretches of elements, after looking for another thread's different value there."""
        writers = self.writers
        if writers is None:
            writers = self.writers = [_NOBODY] * self.size
        stamp = current_thread().stamp
        raw, written = self.raw, self.written
        start = 0
        for first, last in runs:
            count = last - first
            stop = start + count
            before = writers[first:last]
            if before.count(_NOBODY) != count and any(map(current_thread().unordered, {*before} - {_NOBODY})):
                self._check_writers(what, first, values[start:stop])
            writers[first:last] = [stamp] * count
            raw[first:last] = values[start:stop]
            if written is not None:
                written[first:last] = b"\1" * count
            start = stop

    def _check_writers(self, what: str, first: int, values: Array) -> None:
        """Fault if another thread wrote one of the elements from ``first`` on, unordered with this, and differently."""
        assert self.writers is not None
        thread = current_thread()
        bits = np.dtype(f"u{values.itemsize}")
        differs = self.raw[first : first + len(values)].view(bits) != np.ascontiguousarray(values).view(bits)
        for place in np.flatnonzero(differs).tolist():
            before = self.writers[first + place]
            if before != _NOBODY and thread.unordered(before):
                raise GlobalRace(
                    f"{what} writes element {first + place} of {self.name}, where {thread.describe_stamp(before)} "
                    "wrote another value in the same launch",
                    expected="one writer an element, or a barrier between the writes",
                )
