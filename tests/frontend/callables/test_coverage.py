# SPDX-License-Identifier: Apache-2.0
"""What the table must know: pointwise functions, reductions, views, factories, composites."""

from __future__ import annotations

import ast
import operator

import pytest
import torch
import torch.nn.functional as F

from fusedsl.frontend.callables import CALLABLES, METHODS, lookup, lookup_attribute, lookup_method, lookup_operator
from fusedsl.graph.ops import OPS, Kind

POINTWISE = """
abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin
asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
ceil clamp clamp_max clamp_min clip conj_physical copysign cos cosh deg2rad digamma div divide eq erf erfc
erfinv exp exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac ge greater greater_equal gt
heaviside hypot isclose isfinite isinf isnan isneginf isposinf isreal ldexp le lerp less less_equal lgamma log
log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt maximum minimum
mul multiply mvlgamma nan_to_num ne neg negative nextafter not_equal polygamma positive pow rad2deg reciprocal
remainder round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square sub subtract tan tanh
true_divide trunc where xlogy masked_fill
""".split()
#: Pointwise functions of torch that need a loop or a table of coefficients; eager torch runs them.
LEFT_TO_TORCH = "frexp gcd i0 igamma igammac lcm".split()
REDUCTIONS = """
all amax amin aminmax any argmax argmin count_nonzero logsumexp max mean min nanmean nansum norm prod std
std_mean sum var var_mean
""".split()
VIEWS = """
broadcast_tensors broadcast_to flatten moveaxis movedim permute ravel reshape squeeze swapaxes swapdims t
transpose unflatten unsqueeze
""".split()
FACTORIES = "arange eye full full_like ones ones_like zeros zeros_like empty_like".split()
POSITIONS = "gather take_along_dim tril triu".split()
FUNCTIONAL = """
alpha_dropout batch_norm binary_cross_entropy binary_cross_entropy_with_logits celu cosine_similarity
cross_entropy dropout dropout1d dropout2d dropout3d elu feature_alpha_dropout gelu group_norm hardshrink
hardsigmoid hardswish hardtanh huber_loss instance_norm kl_div l1_loss layer_norm leaky_relu log_softmax
logsigmoid mish mse_loss nll_loss normalize one_hot pairwise_distance prelu relu relu6 rms_norm selu sigmoid
silu smooth_l1_loss softmax softmin softplus softshrink softsign tanh tanhshrink threshold
""".split()
SPECIAL = """
digamma entr erf erfc erfinv exp2 expit expm1 gammaln log1p log_softmax logit logsumexp multigammaln ndtr psi
round sinc softmax xlog1py xlogy
""".split()
METHOD_NAMES = """
bfloat16 bool byte char clone contiguous detach dim double expand expand_as float half int long new_full
new_ones new_zeros numel reshape short size to type type_as view view_as
""".split()


@pytest.mark.parametrize("name", [*POINTWISE, *REDUCTIONS, *VIEWS, *POSITIONS, *FACTORIES])
def test_torch_functions(name: str) -> None:
    assert lookup(getattr(torch, name)) is not None


@pytest.mark.parametrize("name", [n for n in (*POINTWISE, *REDUCTIONS, *VIEWS, *POSITIONS) if hasattr(torch.Tensor, n)])
def test_methods_of_the_same_name(name: str) -> None:
    assert lookup_method(name) is not None or name == "rsub"
    assert lookup(getattr(torch.Tensor, name)) is not None or name == "rsub"


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_methods(name: str) -> None:
    assert lookup_method(name) is not None


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(name: str) -> None:
    assert lookup(getattr(F, name)) is not None


@pytest.mark.parametrize("name", SPECIAL)
def test_special(name: str) -> None:
    assert lookup(getattr(torch.special, name)) is not None


@pytest.mark.parametrize("name", LEFT_TO_TORCH)
def test_left_to_torch(name: str) -> None:
    assert lookup(getattr(torch, name)) is None


def test_every_method_name_is_a_tensor_method() -> None:
    assert [name for name in METHODS if not hasattr(torch.Tensor, name)] == []


def test_operators_and_attributes() -> None:
    nodes = """
Add Sub Mult Div FloorDiv Mod Pow BitAnd BitOr BitXor LShift RShift USub UAdd Invert Eq NotEq Lt LtE Gt GtE
Subscript
""".split()
    assert all(lookup_operator(getattr(ast, name)) is not None for name in nodes)
    functions = """
add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift neg pos invert abs eq ne lt le gt ge getitem
""".split()
    assert all(lookup(getattr(operator, name)) is not None for name in functions)
    assert all(lookup_attribute(name) is not None for name in ("T", "mT", "shape", "ndim", "dtype"))


def test_rows_are_complete() -> None:
    for op in OPS.values():
        if op.kind is Kind.POINTWISE:
            assert op.torch is not None and op.emit and op.cost >= 0 and op.arity in (1, 2, 3)
            assert all(f"{{{i}}}" in op.emit for i in range(op.arity)), op.name
            assert op.result in ("same", "bool") and op.domain in ("any", "float", "int")
        if op.kind is Kind.REDUCTION:
            assert op.torch is not None


def test_table_holds_handlers_only() -> None:
    assert all(callable(handler) for handler in CALLABLES.values())
