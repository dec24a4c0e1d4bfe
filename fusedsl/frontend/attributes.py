# SPDX-License-Identifier: Apache-2.0
"""Reading attributes: of tensors, of captured objects, of modules and plain Python values."""

from __future__ import annotations

import ast
import difflib
import types
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.callables import TensorValue, lookup_attribute, lookup_method
from fusedsl.frontend.callables.values import size
from fusedsl.frontend.captures import is_trusted
from fusedsl.frontend.errors import CapturedMutation, HostValue, MissingAttribute, UnsupportedOperation
from fusedsl.frontend.records import AccessPath
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import Captured, Function, Method, Super, TensorMethod, describe

_HOST_METHODS = {
    "item": "keep it as a 0-dim tensor",
    "tolist": "return the tensor and call tolist() outside",
    "numpy": "return the tensor and call numpy() outside",
    "__bool__": "torch.where(...)",
}
_UNKNOWN_WHILE_TRACING = {
    "data_ptr": "addresses are not known while tracing",
    "is_contiguous": "strides are not known while tracing",
    "stride": "strides are not known while tracing",
    "storage_offset": "strides are not known while tracing",
    "untyped_storage": "memory is not known while tracing",
    "storage": "memory is not known while tracing",
    "backward": "gradients are taken outside",
    "register_hook": "gradients are taken outside",
    "data": "it bypasses gradients; use detach()",
    "grad": "gradients are taken outside",
    "grad_fn": "gradients are taken outside",
}

#: Methods of Python's containers that change them.
_CHANGES = {
    "add",
    "append",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
}
_CHANGES |= {"sort", "update", "difference_update", "intersection_update", "symmetric_difference_update"}


def shape_of(tr: Tracer, value: TensorValue) -> tuple[Any, ...]:
    """The extents of a tensor: ints where they are static, host scalars of the graph's inputs elsewhere."""
    found: list[Any] = []
    for dim, extent in enumerate(value.shape):
        source = None if isinstance(extent, int) else tr.captures.origin(extent)
        found.append(size(value, dim) if source is None else size(*source))
    return tuple(found)


_PROPERTIES: dict[str, Callable[[Tracer, TensorValue], Any]] = {
    "shape": shape_of,
    "dtype": lambda tr, owner: owner.dtype,
    "ndim": lambda tr, owner: owner.rank,
    "device": lambda tr, owner: tr.device,
    "is_cuda": lambda tr, owner: tr.device.type == "cuda",
    "is_cpu": lambda tr, owner: tr.device.type == "cpu",
    "is_meta": lambda tr, owner: tr.device.type == "meta",
    "layout": lambda tr, owner: torch.strided,
    "is_sparse": lambda tr, owner: False,
    "is_quantized": lambda tr, owner: False,
    "is_nested": lambda tr, owner: False,
    "itemsize": lambda tr, owner: owner.dtype.itemsize,
    "requires_grad": lambda tr, owner: _flag(tr, owner, "requires_grad"),
    "is_leaf": lambda tr, owner: _flag(tr, owner, "is_leaf"),
}


def read_attribute(tr: Tracer, frame: Frame, node: ast.AST, owner: Any, name: str) -> Any:
    """``owner.name``."""
    if isinstance(owner, TensorValue):
        return _tensor_attribute(tr, frame, node, owner, name)
    tr.at(frame, node)
    if isinstance(owner, Captured):
        return _captured_attribute(tr, frame, node, owner, name)
    if isinstance(owner, Super):
        return _super_attribute(tr, frame, node, owner, name)
    if isinstance(owner, type) and owner in tr.captures.classes and not is_trusted(owner.__module__):
        return _class_member(tr, frame, node, owner, name)
    if isinstance(owner, (Function, Method)):
        if name in ("__name__", "__qualname__"):
            return getattr(getattr(owner, "function", owner), "name", owner.name if isinstance(owner, Function) else "")
        tr.fail(MissingAttribute, frame, node, found=describe(owner), name=name, hint=None)
    try:
        item = getattr(owner, name)
    except AttributeError:
        tr.fail(MissingAttribute, frame, node, found=describe(owner), name=name, hint=_suggest(owner, name))
    cls = type(owner)
    if isinstance(item, types.MethodType) and cls in tr.captures.classes and not is_trusted(item.__func__.__module__):
        return Method(tr.captures.wrap(item.__func__, tr.captures.classes[cls].attribute(name)), owner)
    return item


def _tensor_attribute(tr: Tracer, frame: Frame, node: ast.AST, owner: TensorValue, name: str) -> Any:
    if name in _PROPERTIES:
        return _PROPERTIES[name](tr, owner)
    if name in _HOST_METHODS:
        tr.fail(HostValue, frame, node, what=f".{name}()", hint=_HOST_METHODS[name])
    if name in _UNKNOWN_WHILE_TRACING:
        tr.fail(UnsupportedOperation, frame, node, name=f".{name}", reason=_UNKNOWN_WHILE_TRACING[name])
    handler = lookup_attribute(name)
    if handler is not None:
        result = tr.apply(frame, node, handler, (owner,), {})
        if result is not NotImplemented:
            return result
    if lookup_method(name) is not None or callable(getattr(torch.Tensor, name, None)):
        return TensorMethod(owner, name)
    if hasattr(torch.Tensor, name):
        tr.fail(UnsupportedOperation, frame, node, name=f".{name}", reason="it is not known while tracing")
    hint = _suggest(torch.Tensor, name)
    return tr.fail(MissingAttribute, frame, node, found="a tensor", name=name, hint=hint)


def _flag(tr: Tracer, owner: TensorValue, name: str) -> bool:
    example = tr.captures.example(owner)
    index = tr.captures.input_index(owner)
    if example is None or index is None:
        return name == "is_leaf"
    value = bool(getattr(example, name))
    path = tr.captures.tensors[index].attribute(name)
    tr.captures.guard(path, "is", value, f"{path} is {value}")
    return value


def _captured_attribute(tr: Tracer, frame: Frame, node: ast.AST, owner: Captured, name: str) -> Any:
    value, path = owner.value, owner.path.attribute(name)
    if tr.captures.is_container(owner) and callable(getattr(type(value), name, None)):
        if name in _CHANGES:
            tr.fail(CapturedMutation, frame, node, path=f"'{owner.path}'")
        return getattr(tr.captures.contents(owner), name)
    found = _class_attribute(type(value), name)
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        getter = Function(found.fget, owner.path.attribute("__class__").attribute(name).attribute("fget"))
        return tr.call(frame, node, getter, (owner,), {})
    try:
        item = getattr(value, name)
    except AttributeError:
        tr.fail(MissingAttribute, frame, node, found=describe(owner), name=name, hint=_suggest(value, name))
    if isinstance(item, types.MethodType):
        function = _method(tr, item, path.attribute("__func__"))
        if item.__self__ is value:
            return Method(function, owner)
        return Method(function, tr.captures.wrap(item.__self__, path.attribute("__self__")))
    if isinstance(value, types.ModuleType) and is_trusted(value.__name__):
        return item
    return tr.captures.wrap(item, path)


def _method(tr: Tracer, item: types.MethodType, path: AccessPath) -> Any:
    """The function of a method; those of torch's own modules have text to read, unlike torch's other functions."""
    function = item.__func__
    if isinstance(item.__self__, torch.nn.Module) and function.__module__.startswith("torch.nn.modules."):
        tr.captures.guard(path, "code", function.__code__, f"{path} has the text it had")
        return Function(function, path)
    return tr.captures.wrap(function, path)


def _class_member(tr: Tracer, frame: Frame, node: ast.AST, owner: type, name: str) -> Any:
    """An attribute of a class of the user's; its methods are functions with text."""
    try:
        item = getattr(owner, name)
    except AttributeError:
        tr.fail(MissingAttribute, frame, node, found=describe(owner), name=name, hint=_suggest(owner, name))
    path = tr.captures.classes[owner].attribute(name)
    if isinstance(item, types.MethodType):
        return Method(tr.captures.wrap(item.__func__, path.attribute("__func__")), owner)
    return tr.captures.wrap(item, path)


def _super_attribute(tr: Tracer, frame: Frame, node: ast.AST, owner: Super, name: str) -> Any:
    mro = type(owner.owner.value).__mro__
    for cls in mro[mro.index(owner.cls) + 1 :]:
        if name in vars(cls):
            index = mro.index(cls)
            path = owner.owner.path.attribute("__class__").attribute("__mro__").item(index).attribute(name)
            item = vars(cls)[name]
            if isinstance(item, types.FunctionType):
                return Method(tr.captures.wrap(item, path), owner.owner)
            return tr.captures.wrap(item, path)
    return tr.fail(MissingAttribute, frame, node, found="super()", name=name, hint=None)


def _class_attribute(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def _suggest(owner: Any, name: str) -> str | None:
    names = [x for x in dir(owner) if not x.startswith("_")]
    close = difflib.get_close_matches(name, names, n=1)
    return f".{close[0]}" if close else None
