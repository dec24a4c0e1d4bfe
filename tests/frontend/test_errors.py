# SPDX-License-Identifier: Apache-2.0
"""Wrong programs and the whole message each of them gets: the user's line, a caret, what was expected, what to try."""
# ruff: noqa: E501

from __future__ import annotations

import inspect
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fusedsl.frontend import errors
from fusedsl.frontend.trace import check_function
from fusedsl.graph.span import FuseError
from tests.frontend import wrong_programs
from tests.frontend.tracing import traced

HERE = str(Path(wrong_programs.__file__).parent)

#: function in wrong_programs.py -> message, with the tests' folder left out
MESSAGES = {
    "data_dependent_if": """
DataDependentBranch: this 'if' needs a value that is known only on the GPU
  wrong_programs.py:18:7
    if x.max() > 1:
       ^^^^^^^^^^^
  expected: a condition on shapes, dtypes or Python values
  try: torch.where(condition, a, b), or branch outside the fused function
""",
    "data_dependent_while": """
DataDependentBranch: this 'while' needs a value that is known only on the GPU
  wrong_programs.py:24:10
    while x.sum() < 10:
          ^^^^^^^^^^^^
  expected: a condition on shapes, dtypes or Python values
  try: a loop with a fixed number of steps
""",
    "data_dependent_and": """
DataDependentBranch: this 'and' needs a value that is known only on the GPU
  wrong_programs.py:30:11
    return x > 0 and x < 1
           ^^^^^
  expected: a condition on shapes, dtypes or Python values
  try: a & b, or torch.logical_and(a, b)
""",
    "data_dependent_not": """
DataDependentBranch: this 'not' needs a value that is known only on the GPU
  wrong_programs.py:34:15
    return not x
               ^
  expected: a condition on shapes, dtypes or Python values
  try: torch.logical_not(...)
""",
    "chained_comparison": """
DataDependentBranch: this chained comparison needs a value that is known only on the GPU
  wrong_programs.py:38:23
    return torch.where(0 < x < 1, x, 0)
                       ^^^^^^^^^
  expected: a condition on shapes, dtypes or Python values
  try: (a < b) & (b < c)
""",
    "assert_on_values": """
DataDependentBranch: this 'assert' needs a value that is known only on the GPU
  wrong_programs.py:42:11
    assert (x > 0).all(), "positive"
           ^^^^^^^^^^^^^
  expected: a condition on shapes, dtypes or Python values
  try: torch._assert_async outside, or an assert on shapes
""",
    "endless": """
EndlessLoop: this loop never ends: its condition is always true and nothing leaves it
  wrong_programs.py:47:10
    while True:
          ^^^^
  expected: a 'break', a 'return', or a condition that changes
  try: for i in range(n)
""",
    "too_long": """
LoopTooLong: this loop runs more than 10000 times
  wrong_programs.py:53:13
    for _ in range(10**7):
             ^^^^^^^^^^^^
  expected: at most 10000 iterations: loops are unrolled while tracing
  try: write it as operations on whole tensors
""",
    "misspelled_name": """
UndefinedName: name 'scael' is not defined
  wrong_programs.py:60:15
    return x * scael
               ^^^^^
  expected: a parameter, a local variable, or a name of an enclosing function, the module or builtins
  try: 'scale'
""",
    "misspelled_function": """
MissingAttribute: the module 'torch' has no attribute 'rsqr'
  wrong_programs.py:64:11
    return torch.rsqr(x)
           ^^^^^^^^^^
  try: .rsqrt
""",
    "misspelled_method": """
MissingAttribute: a tensor has no attribute 'unsqueze'
  wrong_programs.py:68:11
    return x.unsqueze(0)
           ^^^^^^^^^^
  try: .unsqueeze
""",
    "read_before_assignment": """
UnassignedName: 'y' is read before it is assigned
  wrong_programs.py:74:11
    return y + 1
           ^
  expected: an assignment to 'y' on the path taken here: it is local, since the function assigns it
""",
    "prints": """
PrintCall: print in a fused function would print once, while tracing, and no values
  wrong_programs.py:79:4
    print(y)
    ^^^^^^^^
  expected: no output from inside the function
  try: return the value and print it outside, or run fn.reference(...)
""",
    "item": """
HostValue: .item() needs the value of a tensor on the host
  wrong_programs.py:84:15
    return x / x.max().item()
               ^^^^^^^^^^^^
  expected: values that stay on the GPU
  try: keep it as a 0-dim tensor
""",
    "float_of_tensor": """
HostValue: float() needs the value of a tensor on the host
  wrong_programs.py:88:15
    return x * float(x.mean())
               ^^^^^^^^^^^^^^^
  expected: values that stay on the GPU
  try: keep it as a 0-dim tensor
""",
    "iterates": """
TensorIteration: a tensor cannot be iterated over
  wrong_programs.py:92:35
    return sum([row * 2 for row in x])
                                   ^
  expected: a loop over a Python container or a range
  try: use operations on the whole tensor, or x.unbind(0) for its rows
""",
    "unpacks": """
UnpackMismatch: cannot unpack a float32 tensor of shape (2, 3) into 2 names
  wrong_programs.py:96:4
    a, b = x
    ^^^^
  try: x.unbind(0), if it has 2 rows
""",
    "mismatch": """
OperationFailed: shapes (2, 3) and (4, 3) do not broadcast: they differ in dim -2
  wrong_programs.py:105:11
    + (x - y)
       ^^^^^
  expected: equal sizes, or size 1, in every dim counted from the last
""",
    "dim_out_of_range": """
OperationFailed: dim=2 is out of range for a tensor of 2 dims
  wrong_programs.py:111:11
    return x.sum(2)
           ^^^^^^^^
  expected: -2 to 1
""",
    "wrong_keyword": """
OperationFailed: softmax: missing a required argument: 'dim'
  wrong_programs.py:115:11
    return torch.softmax(x, axes=-1)
           ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "helper_arguments": """
WrongArguments: helper: missing a required argument: 'scale'
  wrong_programs.py:123:11
    return helper(x)
           ^^^^^^^^^
  expected: helper(v, scale)
""",
    "endless_recursion": """
RecursionTooDeep: calls are nested more than 50 deep, in 'endless_recursion'
  wrong_programs.py:127:11
    return endless_recursion(x + 1)
           ^^^^^^^^^^^^^^^^^^^^^^^^
  expected: a recursion that ends on static values
  try: write it as a loop
""",
    "adds_to_part_of_argument": """
InPlaceOnArgument: in-place '.add_' would change the argument 'x' through a view that the graph cannot express
  wrong_programs.py:131:4
    x[0].add_(1)
    ^^^^^^^^^^^^
  expected: the tensor itself, or a view of all its elements that permutes, adds or drops dims
  try: make a copy first: x.clone()
""",
    "method_on_captured": """
InPlaceOnArgument: in-place '.mul_' would change 'WEIGHT' through a view that the graph cannot express
  wrong_programs.py:136:4
    WEIGHT[0].mul_(2)
    ^^^^^^^^^^^^^^^^^
  expected: the tensor itself, or a view of all its elements that permutes, adds or drops dims
  try: make a copy first: x.clone()
""",
    "in_place_under_view": """
InPlaceOnView: in-place '.add_' on a value that shares its memory with another live value
  wrong_programs.py:143:4
    y.add_(1)
    ^^^^^^^^^
  expected: in-place operations on values that have no views
  try: make a copy first: x.clone()
""",
    "in_place_wider": """
InPlaceResult: in-place '+=': the result is float32, the target is int32
  wrong_programs.py:149:4
    y += 0.5
    ^^^^^^^^
  expected: a result that fits into the target
  try: x = x + y, which makes a new tensor
""",
    "item_assignment": """
ItemAssignment: assigning to an item of a tensor cannot be used in a fused function
  wrong_programs.py:155:4
    y[0] = 1.0
    ^^^^
  expected: values that do not change once computed
  try: torch.where(mask, new, x), or torch.cat of the parts
""",
    "attribute_assignment": """
ItemAssignment: assigning to attribute 'last' of 'other_module' (the module 'tests.frontend.other_module') cannot be used in a fused function
  wrong_programs.py:160:4
    other_module.last = x
    ^^^^^^^^^^^^^^^^^
  expected: values that do not change once computed
  try: return the value instead
""",
    "changes_captured": """
CapturedMutation: 'NAMES' is changed, which would outlive the call
  wrong_programs.py:165:4
    NAMES.append("b")
    ^^^^^^^^^^^^
  expected: changes to containers that the function itself made
  try: make a copy first: list(...), dict(...)
""",
    "fourier": """
UnsupportedOperation: 'torch.fft.fft' cannot be used in a fused function: its result is complex
  wrong_programs.py:170:11
    return torch.fft.fft(x)
           ^^^^^^^^^^^^^^^^
  expected: an operation whose result has a shape and dtype that follow from its arguments' types
  try: call it outside the fused function
""",
    "nonzero": """
UnsupportedOperation: 'x.nonzero' cannot be used in a fused function: its result depends on the values of its arguments
  wrong_programs.py:174:11
    return x.nonzero()
           ^^^^^^^^^^^
  expected: an operation whose result has a shape and dtype that follow from its arguments' types
  try: call it outside the fused function
""",
    "boolean_mask": """
UnsupportedOperation: this indexing cannot be used in a fused function: its result depends on the values of its arguments
  wrong_programs.py:178:11
    return x[x > 0]
           ^^^^^^^^
  expected: an operation whose result has a shape and dtype that follow from its arguments' types
  try: call it outside the fused function
""",
    "tries": """
UnsupportedStatement: 'try' cannot be used in a fused function
  wrong_programs.py:182:4
    try:
    ^^^^
  expected: assignments, if, for, while, with, assert, raise, return and nested functions
  try: put it outside the fused function
""",
    "system_call": """
UnsupportedCall: 'listdir' cannot be called in a fused function: it is not a pure function that can be run while tracing
  wrong_programs.py:189:19
    return x * len(os.listdir("."))
                   ^^^^^^^^^^^^^^^
  expected: torch functions, math, Python functions with source, and pure builtins
  try: call it outside and pass the result
""",
    "random_number": """
UnsupportedCall: 'random' cannot be called in a fused function: it is not a pure function that can be run while tracing
  wrong_programs.py:193:15
    return x * random.random()
               ^^^^^^^^^^^^^^^
  expected: torch functions, math, Python functions with source, and pure builtins
  try: call it outside and pass the result
""",
    "numpy_call": """
HostValue: .numpy() needs the value of a tensor on the host
  wrong_programs.py:197:11
    return x.numpy()
           ^^^^^^^
  expected: values that stay on the GPU
  try: return the tensor and call numpy() outside
""",
    "raises": """
RaisedByFunction: the function raises ValueError: unknown mode 'fast'
  wrong_programs.py:202:8
    raise ValueError(f"unknown mode {mode!r}")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "failed_assertion": """
AssertionFailed: assertion failed: x has 3 columns, w has 4 rows
  wrong_programs.py:207:11
    assert x.shape[-1] == w.shape[0], f"x has {x.shape[-1]} columns, w has {w.shape[0]} rows"
           ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "static_index": """
StaticFailure: IndexError: tuple index out of range
  wrong_programs.py:212:15
    return x * (1.0, 2.0)[x.ndim]
               ^^^^^^^^^^^^^^^^^^
""",
    "returns_module": """
UnsupportedResult: the module 'torch' cannot be returned from a fused function
  wrong_programs.py:216:11
    return x, torch
           ^^^^^^^^
  expected: tensors, Python values, and tuples, lists and dicts of them
""",
    "autocast": """
UnsupportedStatement: this 'with' cannot be used in a fused function
  wrong_programs.py:220:9
    with torch.autocast("cuda"):
         ^^^^^^^^^^^^^^^^^^^^^^
  expected: assignments, if, for, while, with, assert, raise, return and nested functions
  try: with torch.no_grad(), or open the context outside the fused function
""",
    "non_ascii": """
UndefinedName: name 'grösse' is not defined
  wrong_programs.py:226:30
    größe = "äöü"; return x + grösse  # noqa: E702
                              ^^^^^^
  expected: a parameter, a local variable, or a name of an enclosing function, the module or builtins
  try: 'größe'
""",
    "in_helper": """
OperationFailed: shapes (2, 3) and (7,) do not broadcast: they differ in dim -1
  other_module.py:15:11
    return x + torch.ones(n + 5)
           ^^^^^^^^^^^^^^^^^^^^^
  expected: equal sizes, or size 1, in every dim counted from the last
""",
    "pins_memory": """
UnsupportedOperation: .data_ptr cannot be used in a fused function: addresses are not known while tracing
  wrong_programs.py:235:11
    return F.relu(x).data_ptr()
           ^^^^^^^^^^^^^^^^^^
  expected: an operation whose result has a shape and dtype that follow from its arguments' types
  try: call it outside the fused function
""",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_message(name):
    fn = getattr(wrong_programs, name)
    required = [p for p in inspect.signature(fn).parameters.values() if p.default is p.empty]
    args = [torch.ones(2, 3), torch.ones(4, 3)][: len(required)]
    with pytest.raises(FuseError) as caught:
        traced(fn, *args)
    assert str(caught.value).replace(HERE + os.sep, "") == MESSAGES[name].strip("\n")
    assert caught.value.__cause__ is None


def test_every_wrong_program_has_a_message():
    programs = {n for n, f in vars(wrong_programs).items() if inspect.isfunction(f) and n != "helper"}
    assert programs == set(MESSAGES)


async def coroutine(x):
    return x


def generator(x):
    y = x + 1
    yield y


DECORATION = [
    (lambda x, y: x + y, errors.LambdaFunction, "LambdaFunction: a lambda cannot be fused", "def f(x, y): return ..."),
    (coroutine, errors.AsyncFunction, "AsyncFunction: 'coroutine' is an async function", "call it from the coroutine"),
    (
        generator,
        errors.GeneratorFunction,
        "GeneratorFunction: 'generator' is a generator: it has a 'yield'",
        "yield y\n    ^^^^^^^",
    ),
    (len, errors.NotAFunction, "NotAFunction: fusedsl works on Python functions, this is 'len'", "defined with 'def'"),
    (3, errors.NotAFunction, "NotAFunction: fusedsl works on Python functions, this is 3", "defined with 'def'"),
    (
        torch.nn.ReLU(),
        errors.NotAFunction,
        "NotAFunction: fusedsl works on Python functions, this is a ReLU",
        "its forward method",
    ),
    (
        staticmethod(test_message),
        errors.NotAFunction,
        "NotAFunction: fusedsl works on Python functions, this is a staticmethod",
        "@staticmethod above @fuse",
    ),
]


@pytest.mark.parametrize(("fn", "kind", "first", "part"), DECORATION)
def test_what_cannot_be_fused_is_refused_when_decorated(fn, kind, first, part):
    with pytest.raises(kind) as caught:
        check_function(fn)
    assert str(caught.value).splitlines()[0] == first
    assert part in str(caught.value)


def identity(x):
    return x + 1


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.ones(3), "UnsupportedArgument: 'x' is a numpy ndarray, which a fused function cannot use"),
        (np.float32(3), "UnsupportedArgument: 'x' is a numpy float32, which a fused function cannot use"),
        (torch.ones(3).to_sparse(), "UnsupportedArgument: 'x' is a sparse tensor, which a fused function cannot use"),
        (torch.ones(3) * 1j, "UnsupportedArgument: 'x' is a complex tensor, which a fused function cannot use"),
    ],
)
def test_unusable_argument(value, found):
    with pytest.raises(errors.UnsupportedArgument) as caught:
        traced(identity, value)
    assert str(caught.value).splitlines()[0] == found


ARRAY = np.ones(3)


def uses_array(x):
    return x * ARRAY


def test_unusable_capture():
    with pytest.raises(errors.UnsupportedArgument) as caught:
        traced(uses_array, torch.ones(3))
    lines = str(caught.value).splitlines()
    assert lines[0] == "UnsupportedArgument: 'ARRAY' is a numpy ndarray, which a fused function cannot use"
    assert lines[2:4] == ["    return x * ARRAY", "               ^^^^^"]
    assert lines[-1] == "  try: torch.from_numpy(...)"


def matmul(x):
    return torch.linalg.svdvals(x)


def test_unknown_operation_with_fallback_error():
    with pytest.raises(errors.UnknownOperation) as caught:
        traced(matmul, torch.ones(2, 3), fallback="error")
    assert "'torch.linalg.svdvals' is not an operation that fusedsl can fuse" in str(caught.value)
    assert "    return torch.linalg.svdvals(x)\n           ^^^^^^^^^^^^^^^^^^^^^^^" in str(caught.value)
    assert traced(matmul, torch.ones(2, 3)).graph.nodes[1].op == "opaque"


def test_errors_can_be_pickled():
    import pickle

    with pytest.raises(FuseError) as caught:
        traced(wrong_programs.data_dependent_if, torch.ones(2))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is errors.DataDependentBranch
    assert str(copy) == str(caught.value)
