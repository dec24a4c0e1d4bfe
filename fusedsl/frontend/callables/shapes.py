# SPDX-License-Identifier: Apache-2.0
"""Views that a reindex expresses: permuted, broadcast, with dims of size 1 added or dropped; others: NotImplemented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusedsl.frontend.callables.compose import many_dims, one_dim, static, static_int, tensor
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.extents import extent_of, match_extent, sizes_argument
from fusedsl.frontend.callables.table import everywhere, handles
from fusedsl.frontend.callables.values import TensorValue, broadcast, broadcast_shape, is_value, reindex
from fusedsl.graph.opaque import CallTemplate, Hole, Pack
from fusedsl.graph.types import Extent, Symbol, TensorType, extent_hint


def keep_dims(value: TensorValue, dims: Sequence[int], source: TensorValue) -> TensorValue:
    """Put back the reduced ``dims`` of ``source`` as dims of size 1."""
    kept = iter(range(value.rank))
    places = [None if d in dims else next(kept) for d in range(source.rank)]
    return reindex(value, places, tuple(1 if p is None else value.shape[p] for p in places))


# adding and dropping dims ------------------------------------------------------------


@handles(*everywhere("unsqueeze"))
def unsqueeze(builder: Any, input: Any, dim: Any) -> TensorValue:
    value = tensor(input, "unsqueeze")
    place = one_dim(dim, value.rank + 1)
    dims: list[int | None] = list(range(value.rank))
    dims.insert(place, None)
    return _view(value, dims)


def _view(value: TensorValue, dims: Sequence[int | None]) -> TensorValue:
    """A reindex whose new dims have size 1."""
    return reindex(value, dims, tuple(1 if d is None else value.shape[d] for d in dims))


@handles(*everywhere("squeeze"))
def squeeze(builder: Any, input: Any, dim: Any = None) -> TensorValue:
    value = tensor(input, "squeeze")
    named = many_dims(dim, value.rank) if dim is None or not isinstance(dim, (tuple, list)) or dim else ()
    return _view(value, [d for d in range(value.rank) if d not in named or value.shape[d] != 1])


# reordering ------------------------------------------------------------


@handles("Tensor.permute")
def permute(builder: Any, input: Any, *dims: Any) -> TensorValue:
    return _permuted(tensor(input, "permute"), sizes_argument(dims))


@handles("torch.permute")
def torch_permute(builder: Any, input: Any, dims: Any) -> TensorValue:
    return _permuted(tensor(input, "permute"), dims)


def _permuted(value: TensorValue, order: Sequence[Any]) -> TensorValue:
    places = [one_dim(d, value.rank) for d in order]
    if sorted(places) != list(range(value.rank)):
        raise OpError(f"permute{tuple(places)} does not name every dim of a tensor of {value.rank} dims once")
    return _view(value, places)


@handles(*everywhere("transpose"), *everywhere("swapaxes"), *everywhere("swapdims"))
def transpose(builder: Any, input: Any, dim0: Any, dim1: Any) -> TensorValue:
    value = tensor(input, "transpose")
    a, b = one_dim(dim0, value.rank), one_dim(dim1, value.rank)
    order = list(range(value.rank))
    if order:
        order[a], order[b] = order[b], order[a]
    return _view(value, order)


@handles(*everywhere("t"))
def t(builder: Any, input: Any) -> TensorValue:
    value = tensor(input, "t")
    if value.rank > 2:
        raise OpError(f"t() takes at most 2 dims, got {value.rank}", hint="transpose(-2, -1)")
    return _view(value, list(reversed(range(value.rank))))


@handles(".T")
def reversed_dims(builder: Any, input: Any) -> TensorValue:
    return _view(input, list(reversed(range(input.rank))))


@handles(".mT", ".mH", *everywhere("adjoint"))
def matrix_transpose(builder: Any, input: Any) -> TensorValue:
    if tensor(input, "mT").rank < 2:
        raise OpError("mT takes at least 2 dims")
    return transpose(builder, input, -2, -1)


@handles(".H")
def hermitian(builder: Any, input: Any) -> TensorValue:
    return t(builder, input)


@handles(*everywhere("movedim"), *everywhere("moveaxis"))
def movedim(builder: Any, input: Any, source: Any, destination: Any) -> TensorValue:
    value = tensor(input, "movedim")
    pairs = [
        x if isinstance(x, (tuple, list)) else (x,)
        for x in (static(source, "source"), static(destination, "destination"))
    ]
    sources, targets = ([one_dim(d, value.rank) for d in dims] for dims in pairs)
    if len(set(sources)) != len(sources) or len(set(targets)) != len(targets) or len(sources) != len(targets):
        raise OpError(
            f"movedim from {tuple(sources)} to {tuple(targets)}: dims must be distinct and as many on both sides"
        )
    order: list[int | None] = [None] * value.rank
    for a, b in zip(sources, targets, strict=True):
        order[b] = a
    rest = iter(d for d in range(value.rank) if d not in sources)
    return _view(value, [next(rest) if d is None else d for d in order])


# broadcasting ------------------------------------------------------------


@handles("Tensor.expand")
def expand(builder: Any, self: Any, *sizes: Any, implicit: bool = False) -> TensorValue:
    return _expanded(tensor(self, "expand"), sizes_argument(sizes))


@handles(*everywhere("broadcast_to"))
def broadcast_to(builder: Any, input: Any, size: Any) -> TensorValue:
    return _expanded(tensor(input, "broadcast_to"), size)


def _expanded(value: TensorValue, sizes: Sequence[Any]) -> TensorValue:
    missing = len(sizes) - value.rank
    if missing < 0:
        raise OpError(f"cannot expand {value.rank} dims to {len(sizes)}", expected="at least as many sizes as dims")
    shape: list[Extent] = []
    for place, written in enumerate(sizes):
        own = value.shape[place - missing] if place >= missing else 1
        if not is_value(written) and written == -1:
            if place < missing:
                raise OpError("-1 is not allowed in a new leading dim of expand")
            shape.append(own)
        elif own == 1:
            shape.append(extent_of(written))
        elif match_extent(value.builder, written, own):
            shape.append(value.builder.resolve(own))
        else:
            raise OpError(
                f"expand to {_sizes_text(sizes)} does not fit shape {value.hint_shape} in dim {place}",
                expected="the same size, or size 1 in the source",
            )
    return broadcast(value, tuple(shape))


def _sizes_text(sizes: Sequence[Any]) -> str:
    return str(tuple(getattr(x, "hint", x) for x in sizes))


@handles("Tensor.expand_as")
def expand_as(builder: Any, self: Any, other: Any) -> TensorValue:
    value, target = tensor(self, "expand_as"), tensor(other, "expand_as").shape
    shape = broadcast_shape(builder, [value.shape, target])
    if len(shape) != len(target) or any(extent_hint(a) != extent_hint(b) for a, b in zip(shape, target, strict=True)):
        raise OpError(f"shape {value.hint_shape} does not expand to {other.hint_shape}")
    return broadcast(tensor(self, "expand_as"), shape)


@handles("torch.broadcast_tensors")
def broadcast_tensors(builder: Any, *tensors: Any) -> tuple[TensorValue, ...]:
    values = [tensor(x, "broadcast_tensors") for x in sizes_argument(tensors)]
    shape = broadcast_shape(builder, [x.shape for x in values])
    return tuple(broadcast(x, shape) for x in values)


# reshaping ------------------------------------------------------------


@handles("Tensor.view", "Tensor.reshape")
def view(builder: Any, self: Any, *shape: Any) -> Any:
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        return NotImplemented
    return _reshaped(tensor(self, "view"), sizes_argument(shape))


@handles("torch.reshape")
def reshape(builder: Any, input: Any, shape: Any) -> Any:
    return _reshaped(tensor(input, "reshape"), shape)


@handles("Tensor.view_as", "Tensor.reshape_as")
def view_as(builder: Any, self: Any, other: Any) -> Any:
    value, target = tensor(self, "view_as"), tensor(other, "view_as").shape
    real = [e for e in target if e != 1]
    sources = [d for d, e in enumerate(value.shape) if e != 1]
    if len(real) != len(sources):
        return NotImplemented
    for dim, extent in zip(sources, real, strict=True):
        if extent_hint(value.shape[dim]) != extent_hint(extent):
            return NotImplemented
        builder.unify(value.shape[dim], extent)
    places = iter(sources)
    return _view(tensor(self, "view_as"), [None if e == 1 else next(places) for e in target])


def _reshaped(value: TensorValue, sizes: Sequence[Any]) -> Any:
    """A reshape that only moves dims of size 1, or NotImplemented."""
    sources = [d for d, e in enumerate(value.shape) if e != 1]
    holes = [k for k, s in enumerate(sizes) if not is_value(s) and s == -1]
    if len(holes) > 1:
        raise OpError("a shape may hold one -1 only")
    real = [k for k, s in enumerate(sizes) if k not in holes and (is_value(s) or s != 1)]
    if holes and len(sources) == len(real) + 1:
        real = sorted(real + holes)
    if len(real) != len(sources):
        return NotImplemented
    for dim, place in zip(sources, real, strict=True):
        if place not in holes and not match_extent(value.builder, sizes[place], value.shape[dim]):
            return NotImplemented
    if holes and holes[0] in real and len({extent_hint(value.shape[d]) for d in sources} & {0}):
        return NotImplemented  # torch refuses an ambiguous -1
    places = dict(zip(real, sources, strict=True))
    return _view(value, [places.get(k) for k in range(len(sizes))])


@handles(*everywhere("flatten"))
def flatten(builder: Any, input: Any, start_dim: Any = 0, end_dim: Any = -1) -> Any:
    value = tensor(input, "flatten")
    first, last = one_dim(start_dim, value.rank, "start_dim"), one_dim(end_dim, value.rank, "end_dim")
    if first > last:
        raise OpError(f"flatten: start_dim {first} comes after end_dim {last}")
    if value.rank == 0:
        return _view(value, [None])
    real = [d for d in range(first, last + 1) if value.shape[d] != 1]
    if len(real) > 1:
        return NotImplemented
    middle: list[int | None] = [real[0] if real else first]
    return _view(value, [*range(first), *middle, *range(last + 1, value.rank)])


@handles(*everywhere("ravel"))
def ravel(builder: Any, input: Any) -> Any:
    return flatten(builder, input)


@handles(*everywhere("unflatten"))
def unflatten(builder: Any, input: Any, dim: Any, sizes: Any) -> Any:
    value = tensor(input, "unflatten")
    place = one_dim(dim, value.rank)
    real = [k for k, s in enumerate(sizes) if is_value(s) or s != 1]
    if len(real) > 1 or (not real and value.shape[place] != 1):
        return NotImplemented
    if real and sizes[real[0]] != -1 and not match_extent(builder, sizes[real[0]], value.shape[place]):
        return NotImplemented
    inner = [place if k in real else None for k in range(len(sizes))]
    return _view(value, [*range(place), *inner, *range(place + 1, value.rank)])


def split_dim(value: TensorValue, dim: int, outer: int) -> TensorValue:
    """``dim`` as two dims, the outer one of a static extent that divides it: a view made by eager torch."""
    extent = value.shape[dim]
    builder = value.builder
    hint = extent_hint(extent) // outer
    inner: Extent = hint if isinstance(extent, int) or hint < 2 else Symbol(f"{extent}/{outer}", hint)
    shape = (*value.shape[:dim], outer, inner, *value.shape[dim + 1 :])
    call = CallTemplate((Hole(0), dim, Pack("tuple", (outer, -1))), ())
    type_ = TensorType(value.dtype, shape)
    node = builder.add("opaque", (value.id,), type_, function="torch.unflatten", call=call, results=1)
    return TensorValue(builder, node)


def merge_dims(value: TensorValue, dim: int, extent: Extent) -> TensorValue:
    """``dim`` and the next one as one dim of ``extent``: a view made by eager torch where memory allows it."""
    shape = (*value.shape[:dim], extent, *value.shape[dim + 2 :])
    call = CallTemplate((Hole(0), dim, dim + 1), ())
    type_ = TensorType(value.dtype, shape)
    node = value.builder.add("opaque", (value.id,), type_, function="torch.flatten", call=call, results=1)
    return TensorValue(value.builder, node)


# indexing ------------------------------------------------------------


@handles("ast.Subscript", "operator.getitem", "Tensor.__getitem__")
def getitem(builder: Any, value: Any, index: Any) -> Any:
    if not isinstance(value, TensorValue):
        return value[static_int(index, "index")] if is_value(index) else value[index]
    items = index if isinstance(index, tuple) else (index,)
    if sum(x is Ellipsis for x in items) > 1:
        raise OpError("an index may hold one ellipsis only")
    named = sum(x is not None and x is not Ellipsis and not isinstance(x, bool) for x in items)
    if named > value.rank:
        raise OpError(f"too many indices: {named} for a tensor of {value.rank} dims")
    dims: list[int | None] = []
    place = 0
    for item in items:
        if item is None:
            dims.append(None)
        elif item is Ellipsis:
            dims += range(place, place + value.rank - named)
            place += value.rank - named
        elif isinstance(item, slice) and _is_whole(item):
            dims.append(place)
            place += 1
        elif type(item) is int and item in (0, -1) and value.shape[place] == 1:
            place += 1
        else:
            return NotImplemented
    return _view(value, [*dims, *range(place, value.rank)])


def _is_whole(item: slice) -> bool:
    return item.start in (None, 0) and item.stop is None and item.step in (None, 1)
