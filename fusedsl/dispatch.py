# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a call to what runs it: exact calls first, then traces whose guards hold, then a new trace.

Level 1 maps the exact key of a call (:func:`fusedsl.arguments.call_key`) to calls that are ready to run. Level 2 holds
the traces, by what they assume of their arguments, and under each trace the programs planned for it, by layout. A new
batch size misses level 1 and finds its trace in level 2: it is planned again, and compiles nothing. A miss in both
traces again and logs why.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from torch import Tensor

from fusedsl.arguments import check_arguments, check_changed, check_devices, check_tensor, describe, make_binder
from fusedsl.autograd import Recorder
from fusedsl.config import config, logger
from fusedsl.executor import Run, build_tree
from fusedsl.frame import picker
from fusedsl.frontend.guards import compile_accessors, compile_guards, explain_failure, is_volatile
from fusedsl.frontend.records import AccessPath, Guard, Trace
from fusedsl.frontend.trace import trace as trace_function
from fusedsl.keys import NoKey, call_key, key_function, quick_check, trace_key
from fusedsl.options import Options
from fusedsl.overlap import Apart
from fusedsl.programs import device_of, trim
from fusedsl.stats import COUNTERS

#: What a ready call returns when its guards do not hold.
MISS = object()

#: Runs a call: the bound arguments in, the function's result (or MISS) out.
Call = Callable[[tuple[Any, ...]], Any]


def _never(*values: Any) -> bool:
    return False


_NOTHING_RECENT: tuple[Callable[..., bool] | None, Call] = (None, lambda values: MISS)

#: How many ready calls one exact key may have (they differ in guarded values, such as an int the structure depends on).
_MAX_ALTERNATIVES = 8


@attrs.define(eq=False)
class TraceEntry:
    """A trace with its guards and accessors compiled.

    Attributes:
        trace: the trace.
        holds: whether the guards hold for arguments by name.
        fetch: the tensors and scalars of a call, from arguments by name.
        assumed: what the trace assumes of its tensors (captured ones are in no key).
        recorder: runs the trace's graph, with gradients where they are asked for.
    """

    trace: Trace
    holds: Callable[[Mapping[str, Any]], bool]
    fetch: Callable[[Mapping[str, Any]], tuple[tuple[Tensor, ...], tuple[Any, ...]]]
    assumed: tuple[Any, ...]
    recorder: Recorder


class Dispatcher:
    """Runs the calls of one fused function. Safe to call from many threads.

    Args:
        fn: the plain function.
        options: how it is to be fused.
    """

    def __init__(self, fn: types.FunctionType, options: Options) -> None:
        self.fn = fn
        self.name = fn.__name__
        self.options = options
        self.signature = inspect.signature(fn, follow_wrapped=False)
        self.names, self.bind = make_binder(fn, self.signature)
        self._calls: dict[tuple[Any, ...], tuple[Call, ...]] = {}
        self._recent: dict[tuple[type, ...], tuple[Callable[..., bool] | None, Call]] = {}
        self._traces: dict[tuple[Any, ...], list[TraceEntry]] = {}
        self._lock = threading.RLock()

    # running -------------------------------------------------------------------------------------------------------

    def cached(self, values: tuple[Any, ...]) -> Any:
        """The result of a call that is known exactly, or MISS.

        Args:
            values: the arguments in the order of the parameters (what ``bind`` returns).
        """
        kinds = tuple(map(type, values))
        check, recent = self._recent.get(kinds, _NOTHING_RECENT)
        if check is not None and check(*values):
            result = recent(values)
            if result is not MISS:
                COUNTERS.hits += 1
                return result
        try:
            alternatives = self._calls[key_function(kinds)(*values)]
        except (KeyError, NoKey, RuntimeError, TypeError):
            return MISS
        for ready in alternatives:
            result = ready(values)
            if result is not MISS:
                # A call that repeats gets a quick check; calls that take turns would only pay for it.
                if ready is not recent:
                    self._recent[kinds] = (None, ready)
                elif check is None:
                    self._recent[kinds] = (quick_check(values) or _never, ready)
                COUNTERS.hits += 1
                return result
        return MISS

    def first(self, values: tuple[Any, ...]) -> Any:
        """Run a call that is not known exactly: check it, find or make its trace and its program, remember them.

        Raises:
            FuseError: the arguments, the function or the launch are at fault.
        """
        given = values
        values = check_arguments(self.name, self.names, values)
        arguments = dict(zip(self.names, values, strict=True))
        with self._lock:
            entry = self.entry(values, arguments)
            tensors, scalars = self.fetch(entry, arguments)
            if entry.trace.updates and not self._can_change(entry, given, tensors):
                return self.plain(given)
            run = entry.recorder.find(tensors, device_of(tensors))
            self._remember(values, self._ready(entry, values, tensors, run))
        return build_tree(entry.trace.outputs)(run(tensors, scalars), tensors)

    def plain(self, values: tuple[Any, ...]) -> Any:
        """The plain function's result for bound arguments."""
        bound = inspect.BoundArguments(self.signature, OrderedDict(zip(self.names, values, strict=True)))
        return self.fn(*bound.args, **bound.kwargs)

    def _can_change(self, entry: TraceEntry, values: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> bool:
        """Whether kernels may change what the function changes in place: each in memory of its own, and as it is."""
        changed = [update.input for update in entry.trace.updates]
        given, _ = entry.fetch(dict(zip(self.names, values, strict=True)))
        return Apart(changed)(tensors) and not any(given[index].is_neg() for index in changed)

    def _remember(self, values: tuple[Any, ...], ready: Call) -> None:
        try:
            key = call_key(values)
            known = self._calls.get(key, ())
        except TypeError:  # an argument that cannot be hashed: every call looks its trace up
            return
        self._calls[key] = (ready, *known[: _MAX_ALTERNATIVES - 1])
        trim(self._calls, config.max_cached_calls)
        trim(self._recent, config.max_cached_calls)

    def fetch(
        self, entry: TraceEntry, arguments: Mapping[str, Any], *, allow_meta: bool = False
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """The tensors and scalars of a call, with the captured tensors checked as the arguments were."""
        tensors, scalars = entry.fetch(arguments)
        named = [(str(path), tensor) for path, tensor in zip(entry.trace.tensors, tensors, strict=True)]
        for name, tensor in named:
            check_tensor(self.name, name, tensor, allow_meta=allow_meta)
        check_devices(self.name, named)
        for update in entry.trace.updates:
            check_changed(self.name, update, *named[update.input])
        return tuple(tensor.resolve_neg() for tensor in tensors), scalars

    # traces --------------------------------------------------------------------------------------------------------

    def entry(self, values: tuple[Any, ...], arguments: Mapping[str, Any]) -> TraceEntry:
        """The trace that fits a call: a known one, or a new one.

        Raises:
            FuseError: the function cannot be traced.
        """
        key = trace_key(values)
        with self._lock:
            known = self._traces.setdefault(key, [])
            for entry in known:
                if entry.holds(arguments) and trace_key(entry.fetch(arguments)[0]) == entry.assumed:
                    return entry
            self._log_trace(known, arguments, values)
            COUNTERS.traces += 1
            bound = inspect.BoundArguments(self.signature, OrderedDict(arguments))
            trace = trace_function(self.fn, bound, self.options)
            fetch = compile_accessors(trace, self.fn)
            recorder = Recorder(trace.graph, self.options.numerics, trace.updates)
            entry = TraceEntry(trace, compile_guards(trace, self.fn), fetch, trace_key(fetch(arguments)[0]), recorder)
            known.insert(0, entry)
            return entry

    def _log_trace(self, known: list[TraceEntry], arguments: Mapping[str, Any], values: tuple[Any, ...]) -> None:
        if known:
            failed = explain_failure(known[0].trace, self.fn, arguments)
            reason = failed or "a captured tensor has another dtype, rank, device or extent of 0 or 1"
        elif any(self._traces.values()):
            reason = "arguments of new types: " + ", ".join(
                f"{name} is a {describe(value)}" for name, value in zip(self.names, values, strict=True)
            )
        else:
            reason = "first call"
        logger.info("tracing %s: %s", self.name, reason)

    # ready calls ---------------------------------------------------------------------------------------------------

    def _ready(self, entry: TraceEntry, values: tuple[Any, ...], tensors: tuple[Tensor, ...], run: Run) -> Call:
        """A closure for level 1, which checks only what the exact key does not already hold."""
        trace = entry.trace
        tree = build_tree(trace.outputs)
        guards = [guard for guard in trace.guards if _must_check(guard)]
        holds = compile_guards(trace, self.fn, _must_check) if guards else None
        reads_arguments = any(_reads_arguments(guard) for guard in guards)
        if reads_arguments or not all(_is_direct(path) for path in (*trace.tensors, *trace.scalars)):
            return self._nested_ready(entry, values, tensors, run)
        pick_tensors = picker([self.names.index(path.name) for path in trace.tensors])
        pick_scalars = picker([self.names.index(path.name) for path in trace.scalars])
        if trace.updates:
            return self._changing_ready(trace, holds, lambda v: (pick_tensors(v), pick_scalars(v)), run)

        def ready(values: tuple[Any, ...]) -> Any:
            if holds is not None and not holds(_NO_ARGUMENTS):
                return MISS
            tensors = pick_tensors(values)
            return tree(run(tensors, pick_scalars(values)), tensors)

        return ready

    def _changing_ready(
        self,
        trace: Trace,
        holds: Callable[[Mapping[str, Any]], bool] | None,
        pick: Callable[[tuple[Any, ...]], tuple[tuple[Tensor, ...], tuple[Any, ...]]],
        run: Run,
    ) -> Call:
        """As ``_ready``, for a function that changes arguments in place: where they share memory, it runs as it is."""
        tree = build_tree(trace.outputs)
        apart = Apart([update.input for update in trace.updates])

        def ready(values: tuple[Any, ...]) -> Any:
            if holds is not None and not holds(_NO_ARGUMENTS):
                return MISS
            tensors, scalars = pick(values)
            if not apart(tensors):
                return self.plain(values)
            return tree(run(tensors, scalars), tensors)

        return ready

    def _nested_ready(self, entry: TraceEntry, values: tuple[Any, ...], tensors: tuple[Tensor, ...], run: Run) -> Call:
        """As ``_ready``, where values are captured or lie in containers and objects."""
        trace, names, fetch = entry.trace, self.names, entry.fetch
        tree = build_tree(trace.outputs)
        holds = compile_guards(trace, self.fn, _must_check)
        known = dict(zip(names, values, strict=True))
        captured = picker([i for i, path in enumerate(trace.tensors) if not _in_key(path, known)])
        expected = call_key(captured(tensors))
        apart = Apart([update.input for update in trace.updates]) if trace.updates else None

        def ready(values: tuple[Any, ...]) -> Any:
            arguments = dict(zip(names, values))  # noqa: B905 (they come from one signature)
            if not holds(arguments):
                return MISS
            tensors, scalars = fetch(arguments)
            try:
                if call_key(captured(tensors)) != expected:
                    return MISS
            except (NoKey, RuntimeError):
                return MISS
            if apart is not None and not apart(tensors):
                return self.plain(values)
            return tree(run(tensors, scalars), tensors)

        return ready


_NO_ARGUMENTS: dict[str, Any] = {}


def _is_direct(path: AccessPath) -> bool:
    return path.root == "argument" and not path.steps


def _in_key(path: AccessPath, arguments: Mapping[str, Any]) -> bool:
    """Whether the exact key of a call describes the value at a path: an argument, or an item of containers in one."""
    if path.root != "argument":
        return False
    value = arguments[path.name]
    for kind, key in path.steps:
        if kind != "item" or not isinstance(value, (tuple, list, dict)):
            return False
        value = value[key]
    return True


def _must_check(guard: Guard) -> bool:
    """Whether the exact key of a call leaves a guard open (the key has the types of all arguments)."""
    return is_volatile(guard) and not (guard.check in ("type", "instance") and _is_direct(guard.path))


def _reads_arguments(guard: Guard) -> bool:
    return guard.path.root == "argument" or guard.check in ("same_size", "condition")
