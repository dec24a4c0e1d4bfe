# SPDX-License-Identifier: Apache-2.0
"""Calls that the table does not know: run by eager torch, with result types taken from meta tensors.

Which extents of a result are extents of the operands is found by a second run, in which every symbol has a size of its
own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from fusedsl.frontend.callables import ScalarValue, TensorValue
from fusedsl.frontend.callables.values import is_value
from fusedsl.frontend.errors import OperationFailed, UnknownOperation, UnsupportedOperation
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import SYMBOLIC, describe
from fusedsl.graph.host import host_function
from fusedsl.graph.opaque import CallTemplate, make_template, qualified_name
from fusedsl.graph.types import Extent, Symbol, TensorType

_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59)


def call_opaque(
    tr: Tracer,
    frame: Frame,
    node: ast.AST,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Add an opaque node for ``function(*args, **kwargs)``; its result, a tensor or a tuple of tensors."""
    name = qualified_name(function)
    shown = _shown(node)
    if name is None:
        tr.fail(UnsupportedOperation, frame, node, name=shown, reason="torch does not find it by its name")
    if _has_effects(name):
        tr.fail(UnsupportedOperation, frame, node, name=shown, reason="it is not a function of its arguments alone")
    if kwargs.get("out") is not None:
        tr.fail(UnsupportedOperation, frame, node, name=shown, reason="out= would change an argument")
    if tr.fallback == "error":
        tr.fail(UnknownOperation, frame, node, name=shown)
    tr.at(frame, node)
    tr.builder.span = frame.source.span(node)
    template, values = make_template(_plain(tr, args), _plain(tr, kwargs), is_value)
    if kwargs.get("device") is None and not any(isinstance(value, TensorValue) for value in values):
        # A factory: its result is where the arguments are.
        template = attrs.evolve(
            template, kwargs=(*(x for x in template.kwargs if x[0] != "device"), ("device", tr.device))
        )
    template, values = _fix_numbers(tr, template, values)
    bad = next((v for v in _leaves(template) if isinstance(v, SYMBOLIC)), None)
    if bad is not None:
        tr.fail(UnsupportedOperation, frame, node, name=shown, reason=f"it takes no {describe(bad)}")
    run = _Run(tr, frame, node, shown, function, template, values)
    results, single, shapes, structure = run.types()
    ids = tuple(value.id for value in values)
    types = [TensorType(r.dtype, shape) for r, shape in zip(results, shapes, strict=True)]
    opaque = tr.builder.add("opaque", ids, types[0], share=False, function=name, call=template, results=len(results))
    if single:
        made = [TensorValue(tr.builder, opaque)]
    else:
        made = [
            TensorValue(tr.builder, tr.builder.add("item", (opaque,), type_, index=index))
            for index, type_ in enumerate(types)
        ]
    made = [tr.unrecorded(value) for value in made]
    _join_aliases(tr, run, results, made)
    return made[0] if single else structure(made)


class _Run:
    """Runs of the callable on meta tensors."""

    def __init__(
        self,
        tr: Tracer,
        frame: Frame,
        node: ast.AST,
        name: str,
        function: Callable[..., Any],
        template: CallTemplate,
        values: Sequence[Any],
    ) -> None:
        self.tr, self.frame, self.node = tr, frame, node
        self.name, self.function, self.template, self.values = name, function, template, values
        self.operands: list[Any] = []

    def types(self) -> tuple[list[torch.Tensor], bool, list[tuple[Extent, ...]], Callable[[list[Any]], Any]]:
        """Result tensors on meta, whether the result is one tensor, the results' shapes, and how to pack several."""
        seen = self._run({}, explain=True)
        self.operands = self._last
        results, single, structure = self._unpack(seen)
        return results, single, self._shapes(results), structure

    def _unpack(self, seen: Any) -> tuple[list[torch.Tensor], bool, Callable[[list[Any]], Any]]:
        single = isinstance(seen, torch.Tensor)
        results = [seen] if single else list(seen) if isinstance(seen, (tuple, list)) else []
        if not results or not all(isinstance(r, torch.Tensor) for r in results):
            self._refuse("its result is not a tensor")
        for result in results:
            if result.dtype.is_complex:
                self._refuse("its result is complex")
            if result.layout is not torch.strided:
                self._refuse("its result is sparse")
        return results, single, type(seen) if type(seen).__module__ == "torch.return_types" else _plain_kind(seen)

    def _shapes(self, results: list[torch.Tensor]) -> list[tuple[Extent, ...]]:
        shapes = self._match(results)
        if shapes is not None:
            return shapes
        by_hint: dict[int, Symbol] = {}
        for symbol in self._symbols():
            if symbol.hint in by_hint:
                self.tr.builder.unify(by_hint[symbol.hint], symbol)
            by_hint.setdefault(symbol.hint, symbol)
        shapes = self._match(results)
        if shapes is not None:
            return shapes
        self.tr.captures.guard_all_sizes()
        return [tuple(self._new(r, dim) for dim in range(r.dim())) for r in results]

    def _match(self, results: list[torch.Tensor]) -> list[tuple[Extent, ...]] | None:
        """Shapes over the operands' symbols, by a run at other sizes; None if that run fails."""
        sizes = self._other_sizes()
        if not sizes:
            return [tuple(r.shape) for r in results]
        try:
            others = self._unpack(self._run(sizes))[0]
        except (RuntimeError, ValueError, IndexError, TypeError, OverflowError):
            return None
        if [r.dim() for r in others] != [r.dim() for r in results]:
            return None
        found = {(symbol.hint, size): symbol for symbol, size in sizes.items()}
        shapes: list[tuple[Extent, ...]] = []
        for result, other in zip(results, others, strict=True):
            shape: list[Extent] = []
            for dim, pair in enumerate(zip(result.shape, other.shape, strict=True)):
                if pair[0] == pair[1]:
                    shape.append(pair[0])
                elif pair in found:
                    shape.append(found[pair])
                else:
                    shape.append(self._new(result, dim))
            shapes.append(tuple(shape))
        return shapes

    def _new(self, result: torch.Tensor, dim: int) -> Extent:
        """An extent that follows from the operands in a way the graph does not express."""
        extent = result.shape[dim]
        if extent < 2:
            self.tr.captures.guard_all_sizes()
            return extent
        return Symbol(f"_opaque{len(self.tr.builder.nodes)}.{dim}", extent)

    def _symbols(self) -> list[Symbol]:
        found: dict[Symbol, None] = {}
        for value in self.values:
            if isinstance(value, TensorValue):
                found.update((e, None) for e in value.shape if isinstance(e, Symbol))
        return list(found)

    def _other_sizes(self) -> dict[Symbol, int]:
        found: dict[Symbol, int] = {}
        taken: set[int] = set()
        for index, symbol in enumerate(self._symbols()):
            factor = _PRIMES[index % len(_PRIMES)] * (1 + index // len(_PRIMES))
            while symbol.hint * factor in taken:
                factor += 1
            found[symbol] = symbol.hint * factor
            taken.add(found[symbol])
        return found

    def _run(self, sizes: Mapping[Symbol, int], explain: bool = False) -> Any:
        self._last = [self._operand(value, sizes) for value in self.values]
        args, kwargs = self.template.fill(self._last)
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        try:
            return self.function(*args, **kwargs)
        except Exception as error:
            if not explain:
                raise
            text = str(error).strip().splitlines()
            if isinstance(error, NotImplementedError) or "meta" in str(error):
                self._refuse("its result depends on the values of its arguments")
            reason = f"{self.name} fails: {text[0] if text else type(error).__name__}"
            self.tr.fail(OperationFailed, self.frame, self.node, reason=reason, expected="None", hint="None")

    def _operand(self, value: Any, sizes: Mapping[Symbol, int]) -> Any:
        if isinstance(value, TensorValue):
            shape = [sizes.get(e, e.hint) if isinstance(e, Symbol) else e for e in value.shape]
            return torch.empty(shape, dtype=value.dtype, device="meta")
        return self._number(value.id, value.hint, sizes)

    def _number(self, node_id: int, hint: Any, sizes: Mapping[Symbol, int]) -> Any:
        builder = self.tr.builder
        node = builder.nodes[node_id]
        match node.op:
            case "size":
                extent = builder.tensor(node.inputs[0]).shape[node.attribute("dim")]
                return sizes.get(extent, extent.hint) if isinstance(extent, Symbol) else extent
            case "scalar":
                operands = [self._number(i, None, sizes) for i in node.inputs]
                return host_function(node.attribute("function"))(*operands)
            case "constant":
                return node.attribute("value")
        return hint

    def _refuse(self, reason: str) -> None:
        self.tr.fail(UnsupportedOperation, self.frame, self.node, name=self.name, reason=reason)


def _plain_kind(seen: Any) -> type:
    return list if isinstance(seen, list) else tuple


def _fix_numbers(tr: Tracer, template: CallTemplate, values: Sequence[Any]) -> tuple[CallTemplate, tuple[Any, ...]]:
    """Put integers that are not sizes into the template as static values: the result's shape may depend on them."""
    fixed = [v for v in values if isinstance(v, ScalarValue) and _reads_argument(tr, v.id)]
    if not fixed:
        return template, tuple(values)
    known = {v.id: tr.concretize(v) for v in fixed}
    filled = [known.get(v.id, v) if isinstance(v, ScalarValue) else v for v in values]
    args, kwargs = template.fill(filled)
    return make_template(args, kwargs, is_value)


def _reads_argument(tr: Tracer, node_id: int) -> bool:
    node = tr.builder.nodes[node_id]
    return node.op == "scalar_input" or any(_reads_argument(tr, i) for i in node.inputs if node.op == "scalar")


def _plain(tr: Tracer, item: Any) -> Any:
    if tr.captures.is_container(item):
        item = tr.captures.contents(item)
    if isinstance(item, dict):
        return {key: _plain(tr, x) for key, x in item.items()}
    if type(item) in (list, tuple):
        return type(item)(_plain(tr, x) for x in item)
    return item


def _leaves(template: CallTemplate) -> list[Any]:
    found: list[Any] = []
    stack = [*template.args, *(value for _, value in template.kwargs)]
    while stack:
        item = stack.pop()
        items = getattr(item, "items", None)
        if isinstance(items, tuple):
            stack += [x[1] if isinstance(x, tuple) and len(x) == 2 else x for x in items]
        else:
            found.append(item)
    return found


def _join_aliases(tr: Tracer, run: _Run, results: list[torch.Tensor], made: list[TensorValue]) -> None:
    """Handles of results share the storage of the operands, and of each other, that the meta run shared."""
    known: list[tuple[int, TensorValue]] = []
    for value, operand in zip(run.values, run.operands, strict=True):
        if isinstance(value, TensorValue):
            known.append((_memory(operand), value))
    for result, value in zip(results, made, strict=True):
        memory = _memory(result)
        partner = next((other for place, other in known if place == memory), None)
        if partner is None:
            tr.aliases.storage(value)
        else:
            tr.aliases.join(value, tr.aliases.storage(partner))
        known.append((memory, value))


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _shown(node: ast.AST) -> str:
    """The operation as the user wrote it."""
    match node:
        case ast.Call(func=function):
            return f"'{ast.unparse(function)}'"
        case ast.Subscript():
            return "this indexing"
    return "this operation"


_EFFECTS = (
    "_",
    "set_",
    "manual_seed",
    "seed",
    "save",
    "load",
    "compile",
    "use_",
    "init",
    "get_",
    "backward",
    "register",
)


def _has_effects(name: str) -> bool:
    """Whether a function changes or reads torch's own state, so that running it while tracing would be wrong."""
    parts = name.split(".")
    return parts[0] not in ("torch", "operator") or (parts[-1].startswith(_EFFECTS) and not parts[-1].startswith("__"))
