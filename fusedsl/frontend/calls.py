# SPDX-License-Identifier: Apache-2.0
"""Calls: of user functions and methods, tensor methods, torch functions, builtins and pure library functions."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusedsl.frontend.callables import ScalarValue, TensorValue, lookup, lookup_method
from fusedsl.frontend.callables.updates import Updating
from fusedsl.frontend.callables.values import cast, host, pointwise
from fusedsl.frontend.captures import is_torch
from fusedsl.frontend.errors import HostValue, NotCallable, UnsupportedCall, UnsupportedOperation
from fusedsl.frontend.inline import inline
from fusedsl.frontend.inplace import finish, update
from fusedsl.frontend.opaque import call_opaque
from fusedsl.frontend.operators import BINARY, binary
from fusedsl.frontend.pybuiltins import BUILTINS
from fusedsl.frontend.queries import QUERIES, TENSOR_QUERIES
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import SYMBOLIC, Captured, Function, Method, Partial, TensorMethod, describe

Args = Sequence[Any]
Kwargs = Mapping[str, Any]

#: In-place methods that change more than values, or take them from elsewhere than their arguments.
_REFUSED_INPLACE = {
    "resize_",
    "set_",
    "requires_grad_",
    "detach_",
    "t_",
    "unsqueeze_",
    "squeeze_",
    "transpose_",
    "swapaxes_",
}
_REFUSED_INPLACE |= {"as_strided_", "swapdims_", "rename_", "share_memory_", "apply_", "map_", "put_", "retain_grad_"}
#: What may lie in memory that is not its own.
_SHARED = ("input", "opaque", "item")
#: Methods that take a device.
_MOVES = ("to", "cpu", "cuda")
_FILLS: dict[str, Callable[..., Any]] = {"zero_": torch.zeros_like, "fill_": torch.full_like}
_PLAIN_TYPES = (str, bytes, list, tuple, dict, set, frozenset, int, float, bool, complex, slice, range)
_PURE_MODULES = ("math", "_operator", "operator", "itertools", "builtins", "collections")
_PURE_CLASSES = (torch.device, torch.finfo, torch.iinfo, slice, frozenset)
_OPERATOR_NODES = {name: node for node, name in BINARY.items()}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def call(tr: Tracer, frame: Frame, node: ast.AST, callee: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call any value."""
    match callee:
        case Function():
            return inline(tr, frame, node, callee, args, kwargs)
        case Method():
            return call(tr, frame, node, callee.function, (callee.owner, *args), kwargs)
        case Partial():
            return call(tr, frame, node, callee.function, (*callee.args, *args), {**callee.kwargs, **kwargs})
        case TensorMethod():
            return _call_method(tr, frame, node, callee, args, kwargs)
        case Captured():
            return _call_object(tr, frame, node, callee, args, kwargs)
    if not callable(callee) or isinstance(callee, SYMBOLIC):
        tr.fail(NotCallable, frame, node, found=describe(callee))
    return _call_python(tr, frame, node, callee, args, kwargs)


# tensor methods -------------------------------------------------------------------------------------------------------


def _call_method(tr: Tracer, frame: Frame, node: ast.AST, method: TensorMethod, args: Args, kwargs: Kwargs) -> Any:
    owner, name = method.owner, method.name
    if name in _MOVES:
        name, args, kwargs = "to", *_without_device(tr, frame, node, name, args, kwargs)
    if name in TENSOR_QUERIES:
        return TENSOR_QUERIES[name](tr, frame, node, owner, *args, **kwargs)
    if name.endswith("_") and not name.endswith("__"):
        return _call_inplace(tr, frame, node, name, owner, args, kwargs)
    return _operation(tr, frame, node, lookup_method(name), getattr(torch.Tensor, name, None), (owner, *args), kwargs)


def _without_device(
    tr: Tracer, frame: Frame, node: ast.AST, name: str, args: Args, kwargs: Kwargs
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of ``to`` for a move to the device where all tensors of the function are anyway."""
    rest, named = list(args), dict(kwargs)
    place = named.pop("device", None)
    if name != "to":
        place, rest = rest[0] if rest else place, rest[1:]
        place = name if place is None else place
    elif rest and isinstance(rest[0], (torch.device, str)):
        place = rest.pop(0)
    if place is not None:
        wanted, here = torch.device(place), tr.device
        if wanted.type != here.type or wanted.index not in (None, here.index):
            reason = f"it moves a tensor from {here} to {wanted}"
            tr.fail(UnsupportedOperation, frame, node, name=f".{name}", reason=reason)
    return rest, named


def _operation(
    tr: Tracer,
    frame: Frame,
    node: ast.AST,
    handler: Callable[..., Any] | None,
    function: Callable[..., Any] | None,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """A torch operation: by its handler, else opaque."""
    result = NotImplemented if handler is None else tr.apply(frame, node, handler, args, kwargs)
    if isinstance(result, Updating):
        return finish(tr, frame, node, f"'{ast.unparse(node.func)}'" if isinstance(node, ast.Call) else "", result)
    if result is not NotImplemented:
        return result
    assert function is not None
    return call_opaque(tr, frame, node, function, args, kwargs)


def _call_inplace(
    tr: Tracer, frame: Frame, node: ast.AST, name: str, target: TensorValue, args: Args, kwargs: Kwargs
) -> TensorValue:
    base = name[:-1]
    filling = _FILLS.get(name)
    function: Callable[..., Any] | None = getattr(torch.Tensor, base, None) if filling is None else filling
    handler = lookup_method(base) if filling is None else lookup(filling)
    if name == "copy_":
        return update(tr, frame, node, f"'.{name}'", target, lambda: _copied(tr, target, *args, **kwargs))
    if name in _REFUSED_INPLACE or (handler is None and function is None):
        tr.fail(UnsupportedOperation, frame, node, name=f".{name}", reason="it has no out-of-place form")

    def compute() -> Any:
        return _operation(tr, frame, node, handler, function, (target, *args), kwargs)

    return update(tr, frame, node, f"'.{name}'", target, compute)


def _copied(tr: Tracer, target: TensorValue, src: Any, non_blocking: bool = False) -> Any:
    if not isinstance(src, TensorValue):
        return src
    copied = cast(src, target.dtype, explicit=True)
    return pointwise("clone", copied) if tr.builder.nodes[tr.aliases.root(copied.id)].op in _SHARED else copied


# objects --------------------------------------------------------------------------------------------------------------


def _call_object(tr: Tracer, frame: Frame, node: ast.AST, callee: Captured, args: Args, kwargs: Kwargs) -> Any:
    value, path = callee.value, callee.path
    tr.at(frame, node)
    if isinstance(value, torch.nn.Module):
        if any(getattr(value, hooks, None) for hooks in _HOOKS):
            hint = "call the hooks' code in the function"
            tr.fail(UnsupportedCall, frame, node, name=f"'{path}'", reason="the module has hooks", hint=hint)
        forward = _code_of(tr, type(value).forward, path.attribute("__class__").attribute("forward"))
        return call(tr, frame, node, forward, (callee, *args), kwargs)
    if isinstance(value, functools.partial):
        function = tr.captures.wrap(value.func, path.attribute("func"))
        before = [tr.captures.wrap(x, path.attribute("args").item(i)) for i, x in enumerate(value.args)]
        tr.captures.guard(
            path.attribute("args"), "length", len(value.args), f"{path} binds {len(value.args)} arguments"
        )
        tr.captures.guard(path.attribute("keywords"), "keys", tuple(value.keywords), f"{path} binds the same keywords")
        named = {k: tr.captures.wrap(x, path.attribute("keywords").item(k)) for k, x in value.keywords.items()}
        return call(tr, frame, node, function, (*before, *args), {**named, **kwargs})
    wrapped = getattr(value, "__wrapped__", None)
    if isinstance(wrapped, types.FunctionType):
        return call(tr, frame, node, _code_of(tr, wrapped, path.attribute("__wrapped__")), args, kwargs)
    method = inspect.getattr_static(type(value), "__call__", None)
    if isinstance(method, types.FunctionType):
        function = _code_of(tr, method, path.attribute("__class__").attribute("__call__"))
        return call(tr, frame, node, function, (callee, *args), kwargs)
    return tr.fail(NotCallable, frame, node, found=describe(callee))


def _code_of(tr: Tracer, function: Any, path: Any) -> Any:
    """A function found on an object, guarded by its code."""
    if not isinstance(function, types.FunctionType):
        return tr.captures.wrap(function, path)
    tr.captures.guard(path, "code", function.__code__, f"{path} has the text it had")
    return Function(function, path)


# plain Python callables -----------------------------------------------------------------------------------------------


def _call_python(tr: Tracer, frame: Frame, node: ast.AST, callee: Any, args: Args, kwargs: Kwargs) -> Any:
    known = BUILTINS.get(callee) or QUERIES.get(callee) if _hashable(callee) else None
    if known is not None:
        return known(tr, frame, node, *args, **kwargs)
    if isinstance(getattr(callee, "__self__", None), _PLAIN_TYPES):
        return _call_container_method(tr, frame, node, callee, args, kwargs)
    if callee is functools.partial:
        return Partial(args[0], tuple(args[1:]), dict(kwargs))
    module = getattr(callee, "__module__", None)
    if module == "math":
        return _call_math(tr, frame, node, callee, args, kwargs)
    name = getattr(callee, "__name__", "")
    if module in ("_operator", "operator") and name in _OPERATOR_NODES and len(args) == 2:
        return binary(tr, frame, node, _OPERATOR_NODES[name], *args)
    if is_torch(callee) or lookup(callee) is not None or _is_torch_method(callee):
        return _call_torch(tr, frame, node, callee, args, kwargs)
    return _call_library(tr, frame, node, callee, args, kwargs)


def _call_library(tr: Tracer, frame: Frame, node: ast.AST, callee: Any, args: Args, kwargs: Kwargs) -> Any:
    """A class, or a function of the standard library."""
    if isinstance(callee, type) and hasattr(callee, "_fields") and issubclass(callee, tuple):
        return tr.run_static(frame, node, callee, *args, **kwargs)
    module = getattr(callee, "__module__", None)
    if module in _PURE_MODULES or callee in _PURE_CLASSES or _is_enum(callee):
        return _call_pure(tr, frame, node, callee, args, kwargs)
    reason = (
        "it is not a pure function that can be run while tracing"
        if not isinstance(callee, type)
        else "objects cannot be made while tracing"
    )
    hint = "call it outside and pass the result"
    return tr.fail(UnsupportedCall, frame, node, name=describe(callee), reason=reason, hint=hint)


def _call_torch(tr: Tracer, frame: Frame, node: ast.AST, callee: Any, args: Args, kwargs: Kwargs) -> Any:
    if callee in _PURE_CLASSES:
        return _call_pure(tr, frame, node, callee, args, kwargs)
    name = getattr(callee, "__name__", "")
    first = args[0] if args else None
    if isinstance(first, TensorValue) and name.endswith("_") and not name.startswith("_"):
        return _call_inplace(tr, frame, node, name, first, args[1:], kwargs)
    if kwargs.get("inplace") and isinstance(first, TensorValue):
        plain = {key: value for key, value in kwargs.items() if key != "inplace"}
        return update(tr, frame, node, f"'{name}'", first, lambda: call(tr, frame, node, callee, args, plain))
    handler = lookup(callee)
    if handler is None and isinstance(callee, type):
        hint = "torch.full, torch.zeros and their _like forms"
        tr.fail(UnsupportedCall, frame, node, name=describe(callee), reason="it makes an object", hint=hint)
    return _operation(tr, frame, node, handler, callee, args, kwargs)


def _call_math(tr: Tracer, frame: Frame, node: ast.AST, callee: Any, args: Args, kwargs: Kwargs) -> Any:
    name = callee.__name__
    tensor = next((x for x in args if isinstance(x, TensorValue)), None)
    if tensor is not None:
        hint = f"torch.{name}(...)" if hasattr(torch, name) else "a torch function"
        tr.fail(HostValue, frame, node, what=f"math.{name}", hint=hint)
    if callee is math.prod:
        return functools.reduce(
            lambda a, b: binary(tr, frame, node, ast.Mult, a, b), tr.static(args[0]), kwargs.get("start", 1)
        )
    if any(isinstance(x, ScalarValue) for x in args) and not kwargs:
        return tr.apply(frame, node, lambda builder, *operands: host(f"math.{name}", *operands), args, {})
    return _call_pure(tr, frame, node, callee, args, kwargs)


def _call_pure(tr: Tracer, frame: Frame, node: ast.AST, callee: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function without side effects, on static values."""
    args = [tr.static(x) for x in args]
    named = {key: tr.static(value) for key, value in kwargs.items()}
    bad = next((x for x in [*args, *named.values()] if isinstance(x, SYMBOLIC)), None)
    if bad is not None:
        reason = f"it takes no {describe(bad)}" if not isinstance(bad, TensorValue) else "it takes no tensors"
        tr.fail(UnsupportedCall, frame, node, name=describe(callee), reason=reason, hint=None)
    result = tr.run_static(frame, node, callee, *args, **named)
    return list(result) if getattr(callee, "__module__", None) == "itertools" else result


def _call_container_method(tr: Tracer, frame: Frame, node: ast.AST, callee: Any, args: Args, kwargs: Kwargs) -> Any:
    owner = callee.__self__
    if isinstance(owner, (str, bytes)):
        if callee.__name__ == "join":
            args = [[str(x) for x in tr.static(args[0])]]
        return _call_pure(tr, frame, node, callee, args, kwargs)
    if callee.__name__ in ("sort", "index", "count", "remove") and any(
        isinstance(x, SYMBOLIC) for x in [*owner, *args]
    ):
        name = f"'.{callee.__name__}'"
        reason = "it compares values that are not known while tracing"
        tr.fail(UnsupportedCall, frame, node, name=name, reason=reason, hint=None)
    keep = callee.__name__ in ("append", "insert", "setdefault", "get", "pop", "add")
    plain = [x if keep and not isinstance(owner, set) and index else tr.static(x) for index, x in enumerate(args)]
    if callee.__name__ == "append":
        plain = list(args)
    return tr.run_static(frame, node, callee, *plain, **kwargs)


def _is_torch_method(callee: Any) -> bool:
    owner = getattr(callee, "__objclass__", None)
    return isinstance(owner, type) and (issubclass(torch.Tensor, owner) or is_torch(owner)) and owner is not object


def _is_enum(callee: Any) -> bool:
    return isinstance(callee, type) and hasattr(callee, "__members__")


def _hashable(callee: Any) -> bool:
    return getattr(type(callee), "__hash__", None) is not None
