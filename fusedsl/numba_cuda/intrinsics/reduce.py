# SPDX-License-Identifier: Apache-2.0
"""Reductions over the elements of a tile and over the lanes of a warp.

Tiles combine as a tree: neighbours first, an odd last element carried to the next level. Warps all-reduce by a
butterfly of
``shfl.sync.bfly``, the widest distance first. 32-bit integer sums and extrema of a whole warp are one ``redux.sync``
(PTX ISA ``redux.sync``, sm_80), boolean any and all one ``vote.sync``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda import scalar_math
from fusedsl.numba_cuda.convert import asm
from fusedsl.numba_cuda.dtypes import DType, boolean
from fusedsl.numba_cuda.intrinsics.shuffle import shuffle_elements
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function, literal
from fusedsl.numba_cuda.tile import I1, I32, TileType, build_vector, element_type, vector_lanes

#: Combines two scalars of a dtype.
ScalarRule = Callable[[ir.IRBuilder, DType, ir.Value, ir.Value], ir.Value]
#: Combines two (value, index) pairs.
Pair = tuple[ir.Value, ir.Value]

_T = TypeVar("_T")

_NUMBERS = ("int", "uint", "float")


def _sum(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.fadd(a, b) if dtype.is_float else builder.add(a, b)


def _prod(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.fmul(a, b) if dtype.is_float else builder.mul(a, b)


def _max(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    return scalar_math.extremum(builder, dtype, a, b, largest=True)


def _min(builder: ir.IRBuilder, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    return scalar_math.extremum(builder, dtype, a, b, largest=False)


def _any(builder: ir.IRBuilder, _: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.or_(a, b)


def _all(builder: ir.IRBuilder, _: DType, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.and_(a, b)


#: Name -> rule, dtype kinds, what it gives, instruction of a whole warp (of 32-bit integers or of predicates).
_REDUCTIONS: dict[str, tuple[ScalarRule, tuple[str, ...], str, str]] = {
    "sum": (_sum, _NUMBERS, "sum", "add"),
    "prod": (_prod, _NUMBERS, "product", ""),
    "max": (_max, ("bool", *_NUMBERS), "maximum; NaN propagates", "max"),
    "min": (_min, ("bool", *_NUMBERS), "minimum; NaN propagates", "min"),
    "any": (_any, ("bool",), "whether one is true", "any"),
    "all": (_all, ("bool",), "whether all are true", "all"),
}


def _check(name: str, tile: types.Type, kinds: tuple[str, ...]) -> TileType:
    if not isinstance(tile, TileType) or tile.dtype.kind not in kinds or tile.dtype.is_half:
        raise TypingError(f"{name} does not take {tile}")
    return tile


def _check_width(name: str, width: types.Type) -> int:
    lanes = literal(width, "width")
    if lanes not in (1, 2, 4, 8, 16, 32):
        raise TypingError(f"{name}: width must be a power of two up to 32, not {lanes}")
    return int(lanes)


def _distances(width: int) -> list[ir.Constant]:
    return [ir.Constant(I32, 1 << bit) for bit in reversed(range(width.bit_length() - 1))]


def _tree(values: list[_T], combine: Callable[[_T, _T], _T]) -> _T:
    while len(values) > 1:
        paired = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = paired + values[len(paired) * 2 :]
    return values[0]


def _columns(values: list[_T], vector: int) -> list[list[_T]]:
    """Elements b*vector + k of a tile, grouped by k."""
    return [values[k::vector] for k in range(vector)]


def _check_fold(name: str, n: int, vector: types.Type) -> int:
    width = int(literal(vector, "vector"))
    if width < 1 or n % width:
        raise TypingError(f"{name}: vector={width} does not divide the {n} elements")
    return width


def _fold_reduction(name: str, *, whole: bool) -> KernelFunction:
    rule, kinds, gives, _ = _REDUCTIONS[name]
    full = f"tile_{name}" if whole else f"fold_{name}"

    def fold(t: types.Type, vector: types.Type) -> Typed:
        tile = _check(full, t, kinds)
        width = _check_fold(full, tile.n, vector)

        def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
            columns = _columns(vector_lanes(builder, args[0]), width)
            values = [_tree(column, lambda a, b: rule(builder, tile.dtype, a, b)) for column in columns]
            return build_vector(builder, element_type(tile.dtype), values)

        return TileType(tile.dtype, width), emit

    def tile_all(t: types.Type) -> Typed:
        return fold(t, types.IntegerLiteral(1))

    if whole:
        return _named(tile_all, full, f"Over the elements of a tile: the {gives}. A one-element tile.")
    return _named(fold, full, f"Tile of ``vector`` elements: element k is, over b, of ``t[b*vector + k]`` the {gives}.")


@kernel_function
def add_rows(total: types.Type, t: types.Type) -> Typed:
    """``total`` with the rows of a tile added one after another: element k of ``total.n`` is
    ``total[k] + t[k] + t[total.n + k] + ...``. Rows of products become one ``fma`` an element."""
    totals, tile = _check("add_rows", total, _NUMBERS), _check("add_rows", t, _NUMBERS)
    if totals.dtype != tile.dtype or tile.n % totals.n:
        raise TypingError(f"add_rows of {tile} to {totals}")

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        values, added = (vector_lanes(builder, argument) for argument in args)
        for start in range(0, tile.n, totals.n):
            row = added[start : start + totals.n]
            values = [_sum(builder, tile.dtype, a, b) for a, b in zip(values, row, strict=True)]
        return build_vector(builder, element_type(tile.dtype), values)

    return totals, emit


def _named(definition: Callable[..., Typed], name: str, doc: str) -> KernelFunction:
    definition.__name__ = name
    definition.__doc__ = doc
    definition.__module__ = __name__
    return kernel_function(definition)


def _whole_warp(builder: ir.IRBuilder, dtype: DType, instruction: str, value: ir.Value) -> ir.Value | None:
    """The one-instruction form for 32 lanes, where there is one."""
    if dtype == boolean and instruction in ("any", "all"):
        text = f"vote.sync.{instruction}.pred $0, $1, -1;"
        return asm(builder, I1, text, "=b,b", [value], effect=True, convergent=True)
    if dtype.is_integer and dtype.bits == 32 and instruction in ("add", "max", "min"):
        kind = "s32" if dtype.kind == "int" else "u32"
        text = f"redux.sync.{instruction}.{kind} $0, $1, -1;"
        return asm(builder, I32, text, "=r,r", [value], effect=True, convergent=True)
    return None


def _warp_reduction(name: str) -> KernelFunction:
    rule, kinds, gives, instruction = _REDUCTIONS[name]

    def definition(t: types.Type, width: types.Type) -> Typed:
        tile = _check(f"warp_{name}", t, kinds)
        lanes = _check_width(f"warp_{name}", width)

        def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
            values = vector_lanes(builder, args[0])
            if lanes == 32:
                whole = [_whole_warp(builder, tile.dtype, instruction, value) for value in values]
                if whole[0] is not None:
                    return build_vector(builder, element_type(tile.dtype), whole)
            for distance in _distances(lanes):
                others = shuffle_elements(builder, tile.dtype, "bfly", values, distance)
                values = [rule(builder, tile.dtype, a, b) for a, b in zip(values, others, strict=True)]
            return build_vector(builder, element_type(tile.dtype), values)

        return tile, emit

    doc = f"Over aligned groups of ``width`` lanes, element by element, in every lane: the {gives}."
    return _named(definition, f"warp_{name}", doc)


def _better(builder: ir.IRBuilder, value: DType, index: DType, a: Pair, b: Pair, *, largest: bool) -> Pair:
    """The winner of two candidates: NaN first, then the better value, then the smaller index."""
    (x, i), (y, j) = a, b
    if value.is_float:
        ahead = builder.fcmp_ordered(">" if largest else "<", x, y)
        x_nan, y_nan = (builder.fcmp_unordered("uno", v, v) for v in (x, y))
        ahead = builder.or_(ahead, builder.and_(x_nan, builder.not_(y_nan)))
        tie = builder.or_(builder.fcmp_ordered("==", x, y), builder.and_(x_nan, y_nan))
    else:
        compare = builder.icmp_signed if value.kind == "int" else builder.icmp_unsigned
        ahead = compare(">" if largest else "<", x, y)
        tie = builder.icmp_unsigned("==", x, y)
    earlier = (builder.icmp_signed if index.kind == "int" else builder.icmp_unsigned)("<", i, j)
    first = builder.or_(ahead, builder.and_(tie, earlier))
    return builder.select(first, x, y), builder.select(first, i, j)


def _check_pair(name: str, v: types.Type, i: types.Type) -> tuple[TileType, TileType]:
    values = _check(name, v, ("bool", *_NUMBERS))
    indices = _check(name, i, ("int", "uint"))
    if values.n != indices.n:
        raise TypingError(f"{name} of {values} and {indices}: the lengths differ")
    return values, indices


def _pair_tuple(values: TileType, indices: TileType) -> types.Type:
    return types.Tuple((values, indices)) if values != indices else types.UniTuple(values, 2)


def _pack(builder: ir.IRBuilder, values: TileType, indices: TileType, pairs: list[Pair]) -> ir.Value:
    """The numba tuple (value tile, index tile) of pairs; numba keeps a tuple of one type as an array."""
    first = build_vector(builder, element_type(values.dtype), [value for value, _ in pairs])
    second = build_vector(builder, element_type(indices.dtype), [index for _, index in pairs])
    same = values == indices
    pack_type = ir.ArrayType(first.type, 2) if same else ir.LiteralStructType([first.type, second.type])
    pack = builder.insert_value(ir.Constant(pack_type, ir.Undefined), first, 0)
    return builder.insert_value(pack, second, 1)


def _fold_arg(name: str, largest: bool, *, whole: bool) -> KernelFunction:
    full = f"tile_{name}" if whole else f"fold_{name}"

    def fold(v: types.Type, i: types.Type, vector: types.Type) -> Typed:
        values, indices = _check_pair(full, v, i)
        width = _check_fold(full, values.n, vector)
        results = TileType(values.dtype, width), TileType(indices.dtype, width)

        def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
            pairs = list(zip(vector_lanes(builder, args[0]), vector_lanes(builder, args[1]), strict=True))

            def better(a: Pair, b: Pair) -> Pair:
                return _better(builder, values.dtype, indices.dtype, a, b, largest=largest)

            return _pack(builder, *results, [_tree(column, better) for column in _columns(pairs, width)])

        return _pair_tuple(*results), emit

    def tile_all(v: types.Type, i: types.Type) -> Typed:
        return fold(v, i, types.IntegerLiteral(1))

    rule = "NaN wins, then the better value, then the smaller index."
    kind = "largest" if largest else "smallest"
    if whole:
        return _named(tile_all, full, f"The {kind} element of a tile and its index, as one-element tiles: {rule}")
    return _named(
        fold, full, f"For each k < ``vector`` the {kind} of ``v[b*vector + k]`` over b, and its index: {rule}"
    )


def _warp_arg(name: str, largest: bool) -> KernelFunction:
    def definition(v: types.Type, i: types.Type, width: types.Type) -> Typed:
        values, indices = _check_pair(name, v, i)
        lanes = _check_width(name, width)

        def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
            pairs = list(zip(vector_lanes(builder, args[0]), vector_lanes(builder, args[1]), strict=True))
            for distance in _distances(lanes):
                first = shuffle_elements(builder, values.dtype, "bfly", [a for a, _ in pairs], distance)
                second = shuffle_elements(builder, indices.dtype, "bfly", [b for _, b in pairs], distance)
                pairs = [
                    _better(builder, values.dtype, indices.dtype, mine, other, largest=largest)
                    for mine, other in zip(pairs, zip(first, second, strict=True), strict=True)
                ]
            return _pack(builder, values, indices, pairs)

        return _pair_tuple(values, indices), emit

    doc = f"As tile_{name[5:]}, over aligned groups of ``width`` lanes, element by element, in every lane."
    return _named(definition, name, doc)


FUNCTIONS: tuple[KernelFunction, ...] = (
    *(_fold_reduction(name, whole=True) for name in _REDUCTIONS),
    *(_fold_reduction(name, whole=False) for name in _REDUCTIONS),
    *(_warp_reduction(name) for name in _REDUCTIONS),
    *(_fold_arg(name, name == "argmax", whole=whole) for name in ("argmax", "argmin") for whole in (True, False)),
    _warp_arg("warp_argmax", True),
    _warp_arg("warp_argmin", False),
    add_rows,
)
