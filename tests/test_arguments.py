# SPDX-License-Identifier: Apache-2.0
"""Arguments: the key of a call, and the whole message for every kind of argument that cannot be taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fusedsl
from fusedsl.arguments import ArgumentError
from fusedsl.keys import NoKey, call_key, quick_check, trace_key

TENSOR = "a dense CPU or CUDA torch.Tensor of a bool, integer or real floating dtype"
ANY = f"{TENSOR}, a number, bool, str, None, dtype, or a tuple, list or dict of these"


class Labelled(torch.Tensor):
    """A subclass that changes nothing."""


@fusedsl.fuse
def shifted(x: Any, y: Any = 1.0) -> Any:
    return x + y


def test_key_tells_layouts_apart() -> None:
    x = torch.zeros(4, 4)
    others = [
        x,
        x.t().contiguous().t(),
        x.double(),
        torch.zeros(4, 5),
        torch.zeros(17)[1:].view(4, 4),
        torch.zeros(18)[2:].view(4, 4),
        torch.zeros(1).expand(4, 4),
        torch.zeros(4, 4, device="meta"),
    ]
    keys = [call_key((other,)) for other in others]
    assert len(set(keys)) == len(keys)
    assert call_key((torch.ones(4, 4),)) == keys[0]


def test_key_holds_kinds_of_numbers_and_values_of_statics() -> None:
    assert call_key((1.5,)) == call_key((2.5,))
    assert call_key((1,)) == call_key((2,))
    assert len({call_key((value,)) for value in (1, 1.0, True, False, "1", None, torch.float32, "2")}) == 8
    assert call_key(((1, 2),)) == call_key(((3, 4),)) != call_key(((1, 2, 3),))
    assert call_key(([1],)) != call_key(((1,),))
    assert call_key(({"a": True},)) != call_key(({"b": True},))
    assert call_key((torch.zeros(2), torch.zeros(3))) != call_key(((torch.zeros(2), torch.zeros(3)),))


def test_key_follows_the_default_dtype() -> None:
    before = call_key((1,))
    torch.set_default_dtype(torch.float64)
    try:
        assert call_key((1,)) != before
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("static", [None, True, "a", torch.float32])
def test_the_quick_check_holds_only_where_the_key_is_equal(static: Any) -> None:
    x, y = torch.zeros(4, 4), torch.zeros(4)
    values = (x, y, 0.5, static)
    check = quick_check(values)
    assert check is not None
    assert check(*values)
    assert check(torch.ones(4, 4), y, 7.5, static)
    others: list[tuple[Any, ...]] = [
        (x.t(), y, 0.5, static),
        (x.double(), y, 0.5, static),
        (torch.zeros(4, 5), y, 0.5, static),
        (x, torch.zeros(5)[1:], 0.5, static),
        (x, torch.zeros(1).expand(4), 0.5, static),
        (x, y.clone().requires_grad_(), 0.5, static),
        (x, torch._neg_view(y), 0.5, static),
        (x.to("meta"), y.to("meta"), 0.5, static),
        (x.to_sparse(), y, 0.5, static),
    ]
    for other in others:
        assert not check(*other)
    with torch.no_grad():
        assert check(*values)
        assert not check(x, y.clone().requires_grad_(), 0.5, static)
    leaf = torch.zeros(4, requires_grad=True)
    recording = quick_check((x, leaf))
    assert recording is not None
    assert recording(x, leaf)
    with torch.no_grad():
        assert not recording(x, leaf)
    torch.set_default_dtype(torch.float64)
    try:
        assert not check(*values)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.func.vmap(lambda z: z if not check(z, y, 0.5, static) else pytest.fail("a batched tensor"))(
        torch.zeros(2, 4, 4)
    )
    assert not quick_check((x, False))(x, True)  # type: ignore[misc]
    assert not quick_check((x, "a"))(x, "b")  # type: ignore[misc]


def test_no_quick_check_for_objects_and_containers() -> None:
    assert quick_check((torch.zeros(2), [1])) is None
    assert quick_check((torch.zeros(2), object())) is None
    assert quick_check((1.0, 2)) is None


def test_no_key_for_what_kernels_cannot_read() -> None:
    with pytest.raises(NoKey):
        call_key((torch.zeros(2, dtype=torch.complex64).conj().imag,))
    with pytest.raises(NoKey):
        call_key((torch.zeros(2).as_subclass(Labelled),))
    with pytest.raises(RuntimeError):
        call_key((torch.zeros(2).to_sparse(),))


def test_trace_key_ignores_sizes_but_not_zero_and_one() -> None:
    assert trace_key((torch.zeros(4, 5),)) == trace_key((torch.zeros(7, 9).t(),))
    found = {trace_key((torch.zeros(shape),)) for shape in [(4, 5), (1, 5), (0, 5), (4, 5, 6), (5,)]}
    assert len(found) == 5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            np.zeros((2, 3), np.float32),
            f"argument 'x' of shifted is a numpy.ndarray of dtype float32 and shape (2, 3)\n  expected: {ANY}\n"
            "  try: torch.from_numpy(array)",
        ),
        (
            np.float32(1.5),
            f"argument 'x' of shifted is a numpy.float32 of dtype float32 and shape ()\n  expected: {ANY}\n"
            "  try: float(number)",
        ),
        (1j, f"argument 'x' of shifted is a builtins.complex 1j\n  expected: {ANY}\n  try: two real arguments"),
        (
            torch.zeros(2, 3, device="meta"),
            f"argument 'x' of shifted is a torch.Tensor on meta of dtype float32 and shape (2, 3)\n"
            f"  expected: {TENSOR}\n"
            "  try: explain, graph, source and compile, which take meta tensors; a call needs data",
        ),
        (
            torch.zeros(2, 3).to_sparse(),
            f"argument 'x' of shifted is a sparse_coo torch.Tensor on cpu of dtype float32 and shape (2, 3)\n"
            f"  expected: {TENSOR}\n  try: tensor.to_dense()",
        ),
        (
            torch.zeros(2, dtype=torch.complex64),
            f"argument 'x' of shifted is a torch.Tensor on cpu of dtype complex64 and shape (2,)\n"
            f"  expected: {TENSOR}\n"
            "  try: torch.view_as_real(tensor), which has a last dim of size 2",
        ),
        (
            torch.zeros(2, dtype=torch.float8_e4m3fn),
            f"argument 'x' of shifted is a torch.Tensor on cpu of dtype float8_e4m3fn and shape (2,)\n"
            f"  expected: {TENSOR}\n"
            "  try: tensor.to(torch.float32): float8_e4m3fn is not supported",
        ),
        (
            torch.zeros(2).as_subclass(Labelled),
            f"argument 'x' of shifted is a {__name__}.Labelled on cpu of dtype float32 and shape (2,)\n"
            f"  expected: {TENSOR}\n"
            "  try: tensor.as_subclass(torch.Tensor), if the subclass only labels a dense tensor",
        ),
    ],
    ids=["numpy", "numpy scalar", "complex", "meta", "sparse", "complex tensor", "float8", "subclass"],
)
def test_message_for_an_argument_that_cannot_be_taken(value: Any, message: str) -> None:
    for _ in range(2):
        with pytest.raises(ArgumentError) as caught:
            shifted(value)
        assert str(caught.value) == f"ArgumentError: {message}"
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("value", [None, [torch.zeros(2)], "text"], ids=["None", "list", "str"])
def test_a_wrong_kind_of_argument_is_found_at_the_line_that_uses_it(value: Any) -> None:
    with pytest.raises(fusedsl.FuseError) as caught:
        shifted(value)
    assert "return x + y" in str(caught.value)
    assert "x" in str(caught.value)


def test_nested_arguments_are_named() -> None:
    @fusedsl.fuse
    def first(xs: Any) -> Any:
        return xs[0] + 1.0

    with pytest.raises(ArgumentError, match=r"argument \"xs\[1\]\" of first|argument 'xs\[1\]' of first"):
        first([torch.zeros(2), np.zeros(2)])
    with pytest.raises(ArgumentError, match=r"xs\['b'\]"):
        first({"b": torch.zeros(2, device="meta"), 0: torch.zeros(2)})


def test_two_devices_names_both() -> None:
    with pytest.raises(ArgumentError) as caught:
        shifted.graph(torch.zeros(2), torch.zeros(3, device="meta"))
    assert str(caught.value) == (
        "ArgumentError: arguments of shifted are on different devices: 'x' is a torch.Tensor on cpu of dtype float32 "
        "and shape (2,), 'y' is a torch.Tensor on meta of dtype float32 and shape (3,)\n"
        "  expected: all tensors on one device\n"
        "  try: y.to('cpu')"
    )


@pytest.mark.gpu
def test_cpu_beside_cuda() -> None:
    with pytest.raises(ArgumentError, match=r"'x' is a torch.Tensor on cuda:0 .* 'y' is a torch.Tensor on cpu"):
        shifted(torch.zeros(2, device="cuda"), torch.zeros(2))
    with pytest.raises(ArgumentError, match=r"y.item\(\), as a number"):
        shifted(torch.zeros(2, device="cuda"), torch.tensor(1.0))


def test_recording_is_part_of_the_key() -> None:
    leaf = torch.zeros(2, requires_grad=True)
    recorded = call_key((leaf,))
    with torch.no_grad():
        assert len({recorded, call_key((leaf,)), call_key((leaf.detach(),))}) == 3
        plain = call_key((leaf.detach(),))
    assert call_key((leaf.detach(),)) == plain


def test_requires_grad_is_never_detached(device: str) -> None:
    x = torch.zeros(2, device=device, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(shifted(x), x, torch.tensor([1.0, 2.0], device=device))
        assert gradient.tolist() == [1.0, 2.0]
        assert not shifted(x.detach()).requires_grad


def test_func_transforms_are_refused() -> None:
    x = torch.ones(3)
    shifted(x)
    with pytest.raises(ArgumentError, match=r"outside torch\.func transforms"):
        torch.func.grad(lambda x: shifted(x).sum())(x)
    with pytest.raises(ArgumentError, match=r"outside torch\.func transforms"):
        torch.func.vmap(shifted)(x)


def test_what_torch_tensors_may_be(device: str) -> None:
    """Parameter, bfloat16, bool, uint16, a negative view and an inference tensor."""
    with torch.no_grad():
        parameter = torch.nn.Parameter(torch.randn(5, device=device))
        assert torch.equal(shifted(parameter), parameter + 1.0)
    bf16 = torch.tensor([1.0, 2.5, -3.25], device=device, dtype=torch.bfloat16)
    assert shifted(bf16).tolist() == [2.0, 3.5, -2.25]
    flags = torch.tensor([True, False], device=device)
    assert torch.equal(shifted(flags), flags + 1.0)
    negative = torch.complex(torch.zeros(3, device=device), torch.arange(3.0, device=device)).conj().imag
    assert negative.is_neg()
    for _ in range(2):
        assert shifted(negative).tolist() == [1.0, 0.0, -1.0]
    with torch.inference_mode():
        inference = torch.randn(3, device=device)
    assert torch.equal(shifted(inference), inference + 1.0)
