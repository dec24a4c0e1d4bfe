# SPDX-License-Identifier: Apache-2.0
"""How far a fused result may be from the truth: a small multiple of eager torch's own error against float64.

The truth is the reference function run on float64 copies of the arguments. Where eager torch happens to be exact, the
floor of the table below (about two units in the last place) is what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: (relative, absolute) error that is always allowed, by the dtype of the result.
FLOOR: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (2**-10, 2**-23),
    torch.bfloat16: (2**-7, 2**-30),
    torch.float32: (2**-21, 1e-6),
    torch.float64: (2**-50, 1e-14),
}


def to_float64(value: Any) -> Any:
    """Floating tensors as float64, anything else as it is; looks into lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(to_float64(item) for item in value)
    return value


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order; looks into lists, tuples and dicts."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in tensors(item)]
    return []


def assert_same_layout(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Shape, dtype and device are those of ``expected``."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.device == expected.device, f"device {actual.device}, expected {expected.device}"


def assert_within(actual: torch.Tensor, eager: torch.Tensor, truth: torch.Tensor, factor: float = 3.0) -> None:
    """``actual`` is at most ``factor`` times as far from ``truth`` as ``eager`` is anywhere, or within the floor.

    Integer and boolean results must be equal. NaN and infinities must stand where eager has them.
    """
    assert_same_layout(actual, eager)
    if not actual.is_floating_point():
        torch.testing.assert_close(actual, eager, rtol=0, atol=0)
        return
    actual64, eager64, truth64 = actual.double(), eager.double(), truth.double()
    finite = torch.isfinite(eager64)
    same_special = (actual64 == eager64) | (actual64.isnan() & eager64.isnan())
    assert bool((finite | same_special).all()), "NaN or infinity differs from eager"
    assert bool(torch.isfinite(actual64[finite]).all()), "not finite where eager is"
    if not bool(finite.any()):
        return
    eager_error = (eager64 - truth64)[finite].abs().nan_to_num(0.0, 0.0).max()
    relative, absolute = FLOOR[actual.dtype]
    allowed = factor * eager_error + absolute + relative * truth64[finite].abs()
    error = (actual64 - truth64)[finite].abs()
    worst = int((error - allowed).nan_to_num(-1.0, -1.0).argmax())
    assert bool((error <= allowed)[worst]), (
        f"error {float(error[worst]):.3e} where {float(allowed[worst]):.3e} is allowed "
        f"(got {float(actual64[finite][worst])}, truth {float(truth64[finite][worst])}, eager's worst error "
        f"{float(eager_error):.3e})"
    )


def assert_matches_eager(
    fused: Callable[..., Any],
    *args: Any,
    reference: Callable[..., Any] | None = None,
    factor: float = 3.0,
    **kwargs: Any,
) -> Any:
    """Call ``fused`` and compare every tensor of its result with eager torch and with float64; return the result.

    Args:
        fused: a fused function, or any callable when ``reference`` is given.
        *args: its arguments; floating tensors are also run as float64.
        reference: the eager function; default ``fused.reference``.
        factor: allowed multiple of eager's own error.
        **kwargs: keyword arguments for both.
    """
    eager_function = reference if reference is not None else fused.reference  # type: ignore[attr-defined]
    eager = tensors(eager_function(*args, **kwargs))
    truth = tensors(eager_function(*to_float64(list(args)), **{k: to_float64(v) for k, v in kwargs.items()}))
    result = fused(*args, **kwargs)
    actual = tensors(result)
    assert len(actual) == len(eager), f"{len(actual)} tensors, expected {len(eager)}"
    for one, its_eager, its_truth in zip(actual, eager, truth, strict=True):
        assert_within(one, its_eager, its_truth, factor)
    return result
