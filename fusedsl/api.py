# SPDX-License-Identifier: Apache-2.0
"""``fuse`` and the function it makes."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import torch
from torch.autograd import forward_ad
from typing_extensions import ParamSpec, Self

from fusedsl.arguments import check_arguments, is_fake
from fusedsl.compiled import call_in_graph, register
from fusedsl.dispatch import MISS, Dispatcher
from fusedsl.explain import Explanation, backward_graph, compile_call, explain_call, plan_call
from fusedsl.frontend.trace import check_function
from fusedsl.graph.graph import Graph
from fusedsl.graph.span import FuseError
from fusedsl.numba_cuda.kernel import CompiledKernel
from fusedsl.numba_cuda.warm_up import warm_up_in_background
from fusedsl.options import Options, make_options


def _is_exporting() -> bool:
    """``torch.compiler.is_exporting``, which Dynamo of torch 2.11 takes to be True in ``torch.compile`` as well."""
    return getattr(torch.compiler, "_is_exporting_flag", False)


P = ParamSpec("P")
R = TypeVar("R")


class CannotPickle(FuseError, pickle.PicklingError):
    """A fused function that no module holds under its name was pickled."""


class FusedFunction(Generic[P, R]):
    """A function that runs as fused kernels; otherwise it behaves as the plain function does.

    It has the name, docstring, signature and ``__wrapped__`` of the plain function, is a method when it stands in a
    class, and may be called from many threads. CUDA tensors run on the current stream of their device, without any
    synchronisation; CPU tensors run the same kernels in the interpreter.

    Tensors that require grad get their gradients through PyTorch's autograd, with kernels too. Autocast changes nothing
    inside: dtypes are those that the function gives without it. In ``torch.compile`` a call is a custom op where ops
    can express it (:mod:`fusedsl.compiled`). Otherwise, under forward-mode differentiation
    (``torch.autograd.forward_ad``), in ``torch.export`` and in ``torch.jit.trace`` the plain function is run.

    Args:
        fn: the plain function.
        options: how to fuse it.
    """

    __wrapped__: Callable[P, R]

    def __init__(self, fn: Callable[P, R], options: Options) -> None:
        assert isinstance(fn, types.FunctionType)
        self._dispatcher = Dispatcher(fn, options)
        self._label = register(self._dispatcher)
        self.options = options
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            if _is_exporting():
                return self.__wrapped__(*args, **kwargs)
            values = self._dispatcher.bind(*args, **kwargs)
            return call_in_graph(self._label, values, self.__wrapped__, args, kwargs)  # type: ignore[no-any-return]
        if forward_ad._current_level >= 0:
            return self.__wrapped__(*args, **kwargs)
        dispatcher = self._dispatcher
        values = dispatcher.bind(*args, **kwargs)
        result = dispatcher.cached(values)
        if result is MISS:
            if is_fake(values) or torch._C._get_tracing_state() is not None:
                return self.__wrapped__(*args, **kwargs)
            result = dispatcher.first(values)
        return result  # type: ignore[no-any-return]

    def reference(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function in eager PyTorch."""
        return self.__wrapped__(*args, **kwargs)

    def graph(self, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """The graph of a call; ``str`` reads like the function.

        Tensors may be CPU, CUDA or meta tensors here and in ``source``, ``explain`` and ``compile``.
        """
        dispatcher = self._dispatcher
        values = dispatcher.bind(*args, **kwargs)
        values = check_arguments(dispatcher.name, dispatcher.names, values, allow_meta=True)
        return dispatcher.entry(values, dict(zip(dispatcher.names, values, strict=True))).trace.graph

    def backward_graph(self, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """The graph of the gradients of a call: of the tensors that require grad; if none does, of all floating ones.

        Raises:
            GradientError: the function cannot be differentiated.
        """
        return backward_graph(self._dispatcher, self._dispatcher.bind(*args, **kwargs))

    def source(self, *args: Any, arch: str | None = None, backward: bool = False, **kwargs: Any) -> str:
        """The text of the kernels of a call, one string.

        Args:
            *args: the call's arguments.
            arch: see ``explain``.
            backward: see ``explain``.
            **kwargs: the call's keyword arguments.
        """
        plan = plan_call(self._dispatcher, self._dispatcher.bind(*args, **kwargs), arch, backward)
        return "\n\n".join(source.text.rstrip() + "\n" for source in plan.kernels)

    def explain(self, *args: Any, arch: str | None = None, backward: bool = False, **kwargs: Any) -> Explanation:
        """How a call is run: graph, segments, the scheduler of each, why others refused, parameters, kernel text.

        Args:
            *args: the call's arguments.
            arch: the GPU to plan for: "A100", "H100", "H200", "sm_80", "sm_90a". None: the GPU the tensors are on, or
                ``fusedsl.config.interpret_arch`` for CPU and meta tensors.
            backward: explain a call that records gradients, and the gradients: what is saved and computed again, and
                why. The gradients are those of the tensors that require grad; if none does, of all floating tensors.
            **kwargs: the call's keyword arguments.

        Raises:
            FuseError: the call cannot be fused.
        """
        return explain_call(self._dispatcher, self._dispatcher.bind(*args, **kwargs), arch, backward)

    def compile(
        self, *args: Any, arch: str | None = None, backward: bool = False, **kwargs: Any
    ) -> tuple[CompiledKernel, ...]:
        """Compile the kernels of a call; needs no GPU.

        Args:
            *args: the call's arguments.
            arch: see ``explain``.
            backward: see ``explain``.
            **kwargs: the call's keyword arguments.

        Returns:
            Per kernel ``ptx``, ``cubin``, ``registers``, ``spill_bytes``, ``smem_bytes``, ``log``.
        """
        return compile_call(self._dispatcher, self._dispatcher.bind(*args, **kwargs), arch, backward)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundFusedFunction(self, instance)

    def __repr__(self) -> str:
        return f"<fused function {self.__module__}.{self.__qualname__}>"  # type: ignore[attr-defined]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        module, name = self.__module__, self.__qualname__  # type: ignore[attr-defined]
        found = _find(module, name)
        if found is self:
            return _find, (module, name)
        if found is self.__wrapped__:
            return _fuse_named, (module, name, self.options)
        raise CannotPickle(
            f"{self!r} cannot be pickled: {module}.{name} is not it",
            expected="a fused function that its module or class holds under its own name, as for plain functions",
        )


class BoundFusedFunction:
    """A fused function bound to an instance: every way to call or look into it has ``self`` as its first argument."""

    def __init__(self, function: FusedFunction[..., Any], instance: Any) -> None:
        self._bound = function, instance  # apart, the function is a descriptor to Dynamo
        self.__doc__ = function.__doc__

    @property
    def __func__(self) -> FusedFunction[..., Any]:
        return self._bound[0]

    @property
    def __self__(self) -> Any:
        return self._bound[1]

    @property
    def __wrapped__(self) -> types.MethodType:
        return types.MethodType(self.__func__.__wrapped__, self.__self__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, instance = self._bound
        return function(instance, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_bound":  # not there yet: some tool looks at the object while it is being made
            raise AttributeError(name)
        found = getattr(self.__func__, name)
        if name in ("reference", "graph", "backward_graph", "source", "explain", "compile"):
            return functools.partial(found, self.__self__)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundFusedFunction):
            return NotImplemented
        return self.__func__ is other.__func__ and self.__self__ is other.__self__

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.__dict__.get("_bound", ()))))

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r} of {self.__self__!r}>"

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__func__.__name__)


def _find(module: str, qualified_name: str) -> Any:
    """What a module holds under a dotted name; None if nothing."""
    try:
        __import__(module)
        found: Any = sys.modules[module]
        for part in qualified_name.split("."):
            found = inspect.getattr_static(found, part)
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__func__
    except (ImportError, AttributeError, KeyError):
        return None
    return found


def _fuse_named(module: str, qualified_name: str, options: Options) -> Any:
    return FusedFunction(_find(module, qualified_name), options)


@overload
def fuse(fn: Callable[P, R], /, *, fallback: str = ..., numerics: str = ...) -> FusedFunction[P, R]: ...


@overload
def fuse(
    fn: None = None, /, *, fallback: str = ..., numerics: str = ...
) -> Callable[[Callable[P, R]], FusedFunction[P, R]]: ...


def fuse(fn: Any = None, /, **options: Any) -> Any:
    """Make a plain PyTorch-style function run as fused kernels.

    Args:
        fn: the function; without it, a decorator is returned, so ``@fuse``, ``@fuse()`` and ``fuse(fn)`` all work.
        fallback: what a torch call without kernels is: "opaque" (the default: eager PyTorch runs it between kernels)
            or "error".
        numerics: "default" (16-bit values are rounded only where the function casts) or "eager" (after every op).

    Returns:
        A :class:`FusedFunction`.

    Raises:
        FuseError: ``fn`` is not a plain Python function, or an option is unknown or has a value it cannot take.

    Example:
        >>> @fuse
        ... def scale(x, factor=2.0):
        ...     return x * factor
        >>> scale(torch.ones(3))
        tensor([2., 2., 2.])
    """
    chosen = make_options(**options)
    if fn is None:
        return functools.partial(fuse, **options)
    if isinstance(fn, FusedFunction):
        fn = fn.__wrapped__
    checked = check_function(fn)
    warm_up_in_background()
    return FusedFunction(checked, chosen)
