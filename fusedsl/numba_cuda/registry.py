# SPDX-License-Identifier: Apache-2.0
"""How names of the kernel language are given to numba: typing and lowering of a function from one definition.

A definition is a Python function over *types* that returns the result type and a function that emits LLVM IR:

    @kernel_function
    def thread_x():
        '''Index of the thread in x.'''
        return types.int64, lambda builder, args: ...

numba calls it once to type a call and once to lower it. No `@overload` and no `@intrinsic`: an overload is compiled
as a device function, and both pay for numba's target machinery at every call site.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError
from numba.cuda.core.imputils import Registry as LoweringRegistry
from numba.cuda.typing.templates import AbstractTemplate, Signature, signature
from numba.cuda.typing.templates import Registry as TypingRegistry

from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.tile import DTypeType, TileType

typing_registry = TypingRegistry()
lowering_registry = LoweringRegistry("fusedsl kernel language")


def _no_value(context: Any, builder: ir.IRBuilder, ty: types.Type, value: object) -> ir.Value:
    """Markers and left-out arguments have no run-time value."""
    return context.get_dummy_value()


for _valueless in (DTypeType, types.Omitted):
    lowering_registry.lower_constant(_valueless)(_no_value)

#: Emits a call: builder, argument values -> result value (None for a statement).
Lower = Callable[[ir.IRBuilder, list[ir.Value]], ir.Value | None]
Typed = tuple[types.Type, Lower]


class KernelFunction:
    """A function of the kernel language; usable in kernel text only."""

    def __init__(self, definition: Callable[..., Typed]) -> None:
        self.definition = definition
        self.signature = inspect.signature(definition, eval_str=False)
        self.__name__ = definition.__name__
        self.__doc__ = definition.__doc__
        self.__module__ = definition.__module__

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise TypeError(f"{self.__name__} can only be called in a kernel")

    def __repr__(self) -> str:
        return f"<kernel function {self.__name__}>"


def _define(key: Any, definition: Callable[..., Typed], pysig: inspect.Signature) -> None:
    plain = not any(p.default is not p.empty for p in pysig.parameters.values())

    class Template(AbstractTemplate):
        prefer_literal = True

        def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Signature:
            try:
                bound = pysig.bind(*args, **kws)
            except TypeError as error:
                raise TypingError(str(error)) from None
            full = [
                bound.arguments[name] if name in bound.arguments else types.Omitted(parameter.default)
                for name, parameter in pysig.parameters.items()
            ]
            result, _ = definition(*full)
            sig = signature(result, *full)
            return sig if plain and not kws else sig.replace(pysig=pysig)

    Template.key = key
    typing_registry.globals.append((key, types.Function(Template)))

    def lower(context: Any, builder: ir.IRBuilder, sig: Signature, args: list[ir.Value]) -> ir.Value:
        _, emit = definition(*sig.args)
        value = emit(builder, list(args))
        return context.get_dummy_value() if value is None else value

    lowering_registry.lower(key, types.VarArg(types.Any))(lower)


def kernel_function(definition: Callable[..., Typed]) -> KernelFunction:
    """Make a definition a function of the kernel language."""
    function = KernelFunction(definition)
    _define(function, definition, function.signature)
    return function


def python_function(key: Any, tile_operands: int, definition: Callable[..., Typed]) -> None:
    """Extend a Python operator or builtin to tiles.

    Args:
        key: the operator, for example ``operator.add``.
        tile_operands: number of operands.
        definition: as for `kernel_function`; only asked where an operand is a tile.
    """

    def only_tiles(*operands: types.Type) -> Typed:
        if len(operands) != tile_operands or not any(isinstance(operand, TileType) for operand in operands):
            raise TypingError("no operand is a tile")
        return definition(*operands)

    class Template(AbstractTemplate):
        def generic(self, args: tuple[types.Type, ...], kws: dict[str, types.Type]) -> Signature | None:
            if len(args) != tile_operands or not any(isinstance(arg, TileType) for arg in args):
                return None
            return signature(only_tiles(*args)[0], *args)

    Template.key = key
    typing_registry.globals.append((key, types.Function(Template)))

    def lower(_: Any, builder: ir.IRBuilder, sig: Signature, args: list[ir.Value]) -> ir.Value | None:
        return definition(*sig.args)[1](builder, list(args))

    for position in range(tile_operands):
        pattern: list[Any] = [types.Any] * tile_operands
        pattern[position] = TileType
        lowering_registry.lower(key, *pattern)(lower)
    if tile_operands > 1:
        lowering_registry.lower(key, *[TileType] * tile_operands)(lower)


def literal(argument: types.Type, name: str) -> Any:
    """The Python value of an argument that must be known when compiling.

    Raises:
        TypingError: it is not a literal or module-level constant.
    """
    if isinstance(argument, types.Literal):
        return argument.literal_value
    if isinstance(argument, types.Omitted):
        return argument.value
    raise TypingError(f"argument {name!r} must be a literal or a module-level constant, not {argument}")


def marker(argument: types.Type) -> DType:
    """The dtype of a dtype-marker argument."""
    if isinstance(argument, types.Omitted):
        value = argument.value
        assert isinstance(value, DType)
        return value
    if isinstance(argument, DTypeType):
        return argument.dtype
    raise TypingError(f"a dtype such as float32 is needed, not {argument}")


def is_none(argument: types.Type) -> bool:
    """Whether an argument is None, written or left out."""
    return isinstance(argument, types.NoneType) or (isinstance(argument, types.Omitted) and argument.value is None)


def is_number(argument: types.Type) -> bool:
    """Whether an argument is a scalar (Python number, kernel scalar parameter)."""
    return isinstance(types.unliteral(argument), types.Number | types.Boolean) or (
        isinstance(argument, types.Omitted) and isinstance(argument.value, int | float)
    )
