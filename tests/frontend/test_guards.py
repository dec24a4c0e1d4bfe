# SPDX-License-Identifier: Apache-2.0
"""Guards: a trace is used exactly as long as what it was made from stays."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.guards import compile_guards, explain_failure, is_volatile
from tests.frontend import other_module
from tests.frontend.tracing import assert_same, bind, check, holds, run, traced

SCALE = 2.0
FACTORS = [1.0, 2.0]
TABLE = {"a": 1.0}
SETTINGS = types.SimpleNamespace(scale=2.0, inner=types.SimpleNamespace(n=3))
WEIGHT = torch.ones(3)
ACTIVATION = F.relu


def helper(x):
    return x * 2


def x(*shape):
    return torch.randn(shape or (4, 3))


def failure(found, fn, *args, **kwargs):
    return explain_failure(found, fn, bind(fn, *args, **kwargs).arguments)


def uses_global(x):
    return x * SCALE


def uses_list(x):
    return x * FACTORS[1]


def uses_whole_list(x):
    return sum(x * f for f in FACTORS)


def uses_dict(x):
    return x * TABLE["a"]


def uses_attribute(x):
    return x * SETTINGS.scale + SETTINGS.inner.n


def uses_tensor(x):
    return x * WEIGHT


def uses_function(x):
    return helper(x)


def uses_callable(x):
    return ACTIVATION(x)


def uses_module(x):
    return other_module.double(x)


def change(monkeypatch, name, value):
    monkeypatch.setitem(uses_global.__globals__, name, value)


CHANGES = [
    (uses_global, lambda m: change(m, "SCALE", 3.0)),
    (uses_global, lambda m: change(m, "SCALE", 2)),
    (uses_global, lambda m: m.delitem(uses_global.__globals__, "SCALE")),
    (uses_list, lambda m: change(m, "FACTORS", [1.0, 5.0])),
    (uses_list, lambda m: change(m, "FACTORS", (1.0, 2.0))),
    (uses_whole_list, lambda m: change(m, "FACTORS", [1.0, 2.0, 3.0])),
    (uses_dict, lambda m: m.setitem(TABLE, "a", 2.0)),
    (uses_dict, lambda m: m.delitem(TABLE, "a")),
    (uses_attribute, lambda m: m.setattr(SETTINGS, "scale", 4.0)),
    (uses_attribute, lambda m: m.setattr(SETTINGS.inner, "n", 4)),
    (uses_attribute, lambda m: m.setattr(SETTINGS, "inner", types.SimpleNamespace(n=5))),
    (uses_function, lambda m: change(m, "helper", lambda v: v * 3)),
    (uses_function, lambda m: m.setattr(helper, "__code__", (lambda v: v * 3).__code__)),
    (uses_callable, lambda m: change(m, "ACTIVATION", F.silu)),
    (uses_module, lambda m: m.setattr(other_module, "FACTOR", 3.0)),
    (uses_module, lambda m: m.setattr(other_module, "double", lambda v: v)),
    (uses_module, lambda m: change(m, "other_module", types.SimpleNamespace(double=lambda v: v))),
]


@pytest.mark.parametrize(("fn", "edit"), CHANGES)
def test_changed_capture_fails_a_guard(fn, edit, monkeypatch):
    value = x()
    found = check(fn, value)
    with monkeypatch.context() as patch:
        edit(patch)
        assert not holds(found, fn, value)
        assert "test_guards.py:" in failure(found, fn, value) or "other_module.py:" in failure(found, fn, value)
        volatile = compile_guards(found, fn, select=is_volatile)
        assert not volatile(bind(fn, value).arguments)
        if "SCALE" in fn.__globals__ and "a" in TABLE:
            check(fn, value)
    assert holds(found, fn, value)


def test_item_of_a_captured_list_is_guarded():
    found = check(uses_list, x())
    FACTORS[1] = 5.0
    try:
        assert not holds(found, uses_list, x())
        check(uses_list, x())
    finally:
        FACTORS[1] = 2.0


def uses_builtin(x):
    return abs(x) + 1


def test_global_that_hides_a_builtin_later(monkeypatch):
    found = check(uses_builtin, x())
    monkeypatch.setitem(uses_builtin.__globals__, "abs", torch.exp)
    assert not holds(found, uses_builtin, x())
    check(uses_builtin, x())


def test_reason_names_line_and_values(monkeypatch):
    found = traced(uses_global, x())
    change(monkeypatch, "SCALE", 3.0)
    line = uses_global.__code__.co_firstlineno + 1
    assert failure(found, uses_global, x()) == f"{__file__}:{line}: SCALE == 2.0, it is 3.0 now"


def test_captured_tensor_is_an_input(monkeypatch):
    found = traced(uses_tensor, x())
    assert [str(path) for path in found.tensors] == ["x", "WEIGHT"]
    value, weight = x(), torch.randn(3)
    change(monkeypatch, "WEIGHT", weight)
    assert holds(found, uses_tensor, value)
    assert_same(run(found, uses_tensor, value), value * weight)


def closure(factor):
    def inner(x):
        return x * factor

    def change(value):
        nonlocal factor
        factor = value

    return inner, change


def test_closure_is_guarded():
    inner, change = closure(2.0)
    found = check(inner, x())
    change(3.0)
    assert not holds(found, inner, x())
    check(inner, x())


def number_arguments(x, scale, n, dim=-1, keep=True):
    y = x.sum(dim, keepdim=keep) * scale
    return y + n


def test_float_and_int_arguments_stay_unknown():
    found = check(number_arguments, x(), 2.0, 5)
    assert [str(path) for path in found.scalars] == ["scale", "n"]
    value = x(7, 3)
    assert holds(found, number_arguments, value, 3.5, 11)
    assert_same(run(found, number_arguments, value, 3.5, 11), number_arguments(value, 3.5, 11))


def test_int_that_shapes_the_graph_is_guarded():
    found = traced(number_arguments, x(), 2.0, 5)
    assert not holds(found, number_arguments, x(), 2.0, 5, dim=0)
    assert failure(found, number_arguments, x(), 2.0, 5, dim=0).endswith("dim == -1, it is 0 now")


@pytest.mark.parametrize("keep", [1, None, "yes", False])
def test_static_argument_is_guarded_by_type_and_value(keep):
    found = traced(number_arguments, x(), 2.0, 5, keep=True)
    assert not holds(found, number_arguments, x(), 2.0, 5, keep=keep)


def branches_on_size(x, n):
    if x.shape[0] > 8:
        return x * 2
    if n * 2 >= x.shape[-1]:
        return x + n
    return x


def test_condition_on_sizes_guards_its_truth_only():
    found = check(branches_on_size, x(4, 3), 2)
    assert holds(found, branches_on_size, x(8, 4), 2)
    assert not holds(found, branches_on_size, x(9, 3), 2)
    assert not holds(found, branches_on_size, x(4, 5), 2)
    assert failure(found, branches_on_size, x(9, 3), 2).endswith("not (x.shape[0] > 8)")


def unrolls(x):
    total = x[..., 0] * 0
    for i in range(x.shape[-1]):
        total = total + i
    return total


def test_size_that_shapes_the_graph_is_guarded():
    found = check(unrolls, x(4, 3))
    assert holds(found, unrolls, x(9, 3))
    assert not holds(found, unrolls, x(4, 5))


def adds(a, b):
    return a + b


def test_extents_that_must_agree_are_guarded():
    found = check(adds, x(4, 3), x(4, 3))
    assert holds(found, adds, x(7, 5), x(7, 5))
    assert not holds(found, adds, x(7, 5), x(5, 5))


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (float("nan"), 1.0), (1.0, True)])
def test_number_guards_tell_numbers_apart(old, new, monkeypatch):
    change(monkeypatch, "SCALE", old)
    found = traced(uses_global, x())
    assert holds(found, uses_global, x())
    change(monkeypatch, "SCALE", new)
    assert not holds(found, uses_global, x())


def of_pair(pair):
    return pair[0] + pair[1]


def test_one_object_through_two_arguments_is_read_through_both():
    both = (x(), x())
    found = traced(adds, both[0], both[0])
    assert [str(path) for path in found.tensors] == ["a", "b"]
    a, b = x(), x()
    assert_same(run(found, adds, a, b), a + b)
    nested = check(of_pair, both)
    assert [str(path) for path in nested.tensors] == ["pair[0]", "pair[1]"]


class Layer:
    def __init__(self, size):
        self.weight = torch.randn(size)
        self.eps = 0.1
        self.act = None

    def __call__(self, x):
        y = x * self.weight + self.eps
        return y if self.act is None else self.act(y)


def applies(layer, x):
    return layer(x)


def test_attributes_of_an_argument_are_read_through_it():
    one, two = Layer(3), Layer(3)
    found = check(applies, one, x())
    assert [str(path) for path in found.tensors] == ["layer.weight", "x"] or found.tensors[1].name == "layer"
    value = x()
    assert holds(found, applies, two, value)
    assert_same(run(found, applies, two, value), two(value))
    two.eps = 0.2
    assert not holds(found, applies, two, value)
    two.eps, two.act = 0.1, torch.exp
    assert not holds(found, applies, two, value)


def static_only(x, mode="a"):
    return x.sum(-1) if mode == "a" and x.shape[0] > 2 else x


def test_guards_that_a_key_covers_are_not_volatile():
    found = traced(static_only, x())
    volatile = [guard for guard in found.guards if is_volatile(guard)]
    assert len(found.guards) == 2
    assert volatile == []


def test_function_read_is_recorded():
    found = traced(uses_function, x())
    assert [(f.name, f.text.splitlines()[-1]) for f in found.functions] == [
        ("uses_function", "    return helper(x)"),
        ("helper", "    return x * 2"),
    ]


def test_names_and_spans_are_the_users():
    def named(x):
        shifted = x + 1
        a, b = shifted * 2, shifted.exp()
        return a + b

    graph = traced(named, x()).graph
    assert {node.name: node.op for node in graph}.items() >= {"shifted": "add", "a": "mul", "b": "exp"}.items()
    node = next(node for node in graph if node.name == "b")
    assert node.span.text[node.span.column : node.span.end_column] == "shifted.exp()"
    assert node.span.line == named.__code__.co_firstlineno + 2
