# SPDX-License-Identifier: Apache-2.0
"""The small graphs that pin persistent buffers down, each by the name of what it shows."""

from __future__ import annotations

import torch

from fusedsl.graph.graph import Graph
from tests.analysis.dsl import Sketch

H, F = torch.bfloat16, torch.float32


def copied_row() -> Graph:
    g = Sketch()
    t0 = g.input("t0", F)
    g.t1 = g.copy(t0)
    g.t4 = g.copy(g.t1)
    g.t5 = g.b(g.s(g.t1), t0) + g.t4
    return g.finish(g.t5)


def cast_row() -> Graph:
    g = Sketch()
    t0 = g.input("t0", H)
    g.t1 = g.c(t0)
    t3 = g.b(g.s(g.t1), t0)
    g.t5 = t3 + g.copy(g.t1)
    return g.finish(g.c(g.t5, H))


def two_in_a_chain() -> Graph:
    g = Sketch()
    t0, t5 = g.inputs("t0 t5", H)
    g.t1 = g.c(t0)
    t4 = g.b(g.s(g.copy(g.t1)), t0)
    g.t7 = g.c(t5) + t4
    g.t9 = g.t7 + g.copy(g.t1)
    t11 = g.b(g.s(g.t9), t0)
    g.t13 = g.copy(g.t7) + t11
    return g.finish(g.t13)


def copy_of_a_buffer() -> Graph:
    g = Sketch()
    t0 = g.input("t0", H)
    g.t1 = g.c(t0)
    g.t2 = g.copy(g.t1)
    t4 = g.b(g.s(g.t2), t0)
    g.t6 = t4 + g.copy(g.t1)
    g.t8 = g.copy(g.t2) + g.t6
    return g.finish(g.c(g.t8, H))


def buffer_and_input() -> Graph:
    g = Sketch()
    t0, t1 = g.inputs("t0 t1", H)
    g.t4 = g.c(t0) + g.c(t1)
    t6 = g.b(g.s(g.t4), t0)
    g.t8 = t6 - g.c(t1)
    g.t9 = g.t8 - g.t4
    return g.finish(g.c(g.t9, H))


def issue_1123() -> Graph:
    g = Sketch()
    t0, t1, t2 = g.inputs("t0 t1 t2", F)
    g.t3 = t0 + t1
    t6 = g.copy(g.b(g.s(g.t3), t0))
    g.t7 = t6 + t2
    g.t9 = g.t3 + t2
    return g.finish(g.t7, g.t9)


def issue_1123_comment() -> Graph:
    g = Sketch()
    t0, t1 = g.inputs("t0 t1", F)
    g.t2 = g.copy(t0)
    t4 = g.b(g.s(g.t2), t0)
    g.t5 = t1 + g.t2
    g.t6 = t4 + t1
    return g.finish(g.t5, g.t6)


def several_scopes() -> Graph:
    g = Sketch()
    t0, t1, t2 = g.inputs("t0 t1 t2", F)
    g.t3 = t0 + t0
    g.t6 = g.t3 + g.b(g.s(g.t3), t0)
    g.t7 = g.t3 + g.t3
    g.t10 = g.t7 + g.b(g.s(g.t7), t0)
    t11 = t0 + t1
    g.t12 = t11 * t11
    g.t15 = g.t12 + g.b(g.s(g.t12), t0)
    t16 = g.t12 + t2
    g.t17 = t16 * t16
    g.t20 = g.t17 + g.b(g.s(g.t17), t0)
    return g.finish(g.t6, g.t10, g.t15, g.t20)


def chain_of_producers() -> Graph:
    g = Sketch()
    t0, t1, t2 = g.inputs("t0 t1 t2", H)
    g.t7 = g.c(t0) + g.c(t1) + g.c(t2)
    g.t10 = g.t7 + g.b(g.s(g.t7), t0)
    g.t11 = g.t7 + g.t7
    g.t14 = g.t11 + g.b(g.s(g.t11), t0)
    g.t15 = g.t11 + g.t11
    g.t18 = g.t15 + g.b(g.s(g.t15), t0)
    return g.finish(g.t10, g.t14, g.t18)


def softmax(rows: int = 16, row: int = 1024) -> Graph:
    g = Sketch()
    x = g.input("x", H, rows, row)
    g.xf = g.c(x)
    g.m = g.s(g.xf, op="amax")
    g.s1 = g.xf - g.b(g.m, x)
    g.e = g.exp(g.s1)
    g.d = g.s(g.e)
    g.o = g.e / g.b(g.d, x)
    return g.finish(g.c(g.o, H))


def rms_norm(rows: int = 16, row: int = 1024) -> Graph:
    g = Sketch()
    x = g.input("x", H, rows, row)
    w = g.input("w", H, row)
    g.xf = g.c(x)
    r = g.s(g.xf * g.xf)
    g.n = g.xf * g.b(g.rsqrt(r * (1 / row) + 1e-5), x)
    return g.finish(g.c(g.n * g.b(g.c(w), x, 0), H))


def layer_norm_shared(row: int = 1024) -> Graph:
    g = Sketch()
    x = g.input("x", H, 16, row)
    g.xf = g.c(x)
    mean = g.s(g.xf) * (1 / row)
    g.cc = g.xf - g.b(mean, x)
    v = g.s(g.cc * g.cc)
    g.o = g.cc * g.b(g.rsqrt(v * (1 / row) + 1e-5), x)
    return g.finish(g.c(g.o, H))


def layer_norm_twice() -> Graph:
    g = Sketch()
    x = g.input("x", H)
    g.xf = g.c(x)
    mean = g.s(g.xf) * (1 / 1024)
    g.c1 = g.xf - g.b(mean, x)
    v = g.s(g.c1 * g.c1)
    g.c2 = g.xf - g.b(mean, x)
    g.o = g.c2 * g.b(g.rsqrt(v * (1 / 1024) + 1e-5), x)
    return g.finish(g.c(g.o, H))


def cast_of_a_mask() -> Graph:
    g = Sketch()
    t0 = g.input("t0", F)
    t2 = g.copy(t0) > 0.5
    g.t3 = g.c(t2)
    g.t6 = g.b(g.s(g.t3), t0) + g.t3
    return g.finish(g.t6)


def cast_twice() -> Graph:
    g = Sketch()
    t0, t1 = g.inputs("t0 t1", H)
    g.t3 = g.c(t0 + t1, H)
    g.t4 = g.c(g.t3)
    g.t7 = g.t4 + g.b(g.s(g.t4), t0)
    t8 = g.c(g.t3)
    g.t9 = g.b(g.s(g.t7), t0) + t8
    return g.finish(g.t9)


def three_normalizations() -> Graph:
    g = Sketch()
    t0 = g.input("t0", H)
    t1 = g.c(t0)
    g.t2 = t1 * 2
    g.b1 = g.b(g.s(g.t2), t0)
    t5 = g.t2 / g.b1
    g.t6 = t5 * 2
    g.b2 = g.b(g.s(g.t6), t0)
    t9 = g.t6 / g.b2
    g.t10 = t9 * 2
    g.t13 = g.t10 / g.b(g.s(g.t10), t0)
    return g.finish(g.c(g.t13, H))


def broadcast_in_two_steps() -> Graph:
    g = Sketch()
    t0 = g.input("t0", H, 16, 8, 32)
    g.t1 = g.c(t0)
    t2 = g.s(g.t1, 1, 2)
    g.t3 = g.reindex(t2, (0, None), (t2.type.shape[0], 1))
    g.t4 = g.reindex(g.t3, (0, 1, None), t0.type.shape)
    t5 = g.t1 + g.t4
    g.t6 = t5 * t5
    g.t7 = g.t6 + g.b(g.s(g.t6, 1, 2), t0, 1, 2)
    return g.finish(g.t7)


def dropout_before_layer_norm() -> Graph:
    g = Sketch()
    t0, residual = g.inputs("t0 residual", H)
    t1 = g.c(t0)
    g.t2 = g.opaque("torch.nn.functional.dropout", t1, like=t1) + g.c(residual)
    mean = g.s(g.t2) * (1 / 1024)
    g.o = g.t2 - g.b(mean, t0)
    return g.finish(g.c(g.o, H))


def row_of_scalars_recomputed() -> Graph:
    """Rows 19: ``a`` has only one of the two reduced loops; the sum is computed twice."""
    g = Sketch()
    a, x = g.input("a", H, 16), g.input("x", H)
    g.t3 = g.c(g.b(a, x)) + g.c(x)
    r = g.s(g.t3, 0, 1)
    g.out = (g.c(g.b(a, x)) + g.c(x)) + g.b(r, x, 0, 1)
    return g.finish(g.out)


def row_of_scalars_shared() -> Graph:
    """Row 20: as row 19, the sum shared."""
    g = Sketch()
    a, x = g.input("a", H, 16), g.input("x", H)
    g.t5 = g.c(g.b(a, x)) + g.c(x)
    r = g.s(g.t5, 0, 1)
    g.out = g.t5 + g.b(r, x, 0, 1)
    return g.finish(g.out)


def column_argument() -> Graph:
    """Row 21: ``a`` is ``[I, 1]`` and only J is reduced."""
    g = Sketch()
    a, x = g.input("a", H, 16, 1), g.input("x", H)
    g.t5 = g.c(g.reindex(a, (0, 1), x.type.shape)) + g.c(x)
    g.out = g.t5 + g.b(g.s(g.t5), x)
    return g.finish(g.out)


def only_a_row_of_scalars() -> Graph:
    """Row 22: nothing but ``a`` would be kept."""
    g = Sketch()
    a, x = g.input("a", H, 16), g.input("x", H)
    g.t3 = g.c(g.b(a, x)) + g.c(x)
    r = g.s(g.t3, 0, 1)
    g.out = g.c(a) + g.b(r, g.c(a), 0)
    return g.finish(g.out)


def two_views() -> Graph:
    g = Sketch()
    t0 = g.input("t0", F, 320)
    view = g.input("view", F, 10, 32)
    g.t1 = g.opaque("torch.reshape", t0, like=view)
    g.t2 = g.opaque("torch.reshape", t0, like=view)
    g.r1, g.r2 = g.s(g.t1 + g.t2), g.s(g.t2)
    return g.finish(g.r1, g.r2)


def two_outputs() -> Graph:
    g = Sketch()
    x = g.input("x", F)
    g.y = x * 2
    g.r = g.s(x)
    return g.finish(g.y, g.r)


def broadcast_against_another() -> Graph:
    g = Sketch()
    x, y = g.input("x", F), g.input("y", F)
    g.o = g.b(g.s(x), y) + y
    return g.finish(g.o)


def vouched_later() -> Graph:
    g = Sketch()
    t0, t1 = g.inputs("t0 t1", F)
    g.t2 = g.copy(t0)
    g.t4 = g.b(g.s(g.t2), t0)
    g.t6 = g.t4 + t1
    g.t7 = g.t6 + g.t2
    return g.finish(g.t7)


def looked_up() -> Graph:
    g = Sketch()
    x, index = g.input("x", H), g.input("index", torch.int64)
    g.taken = g.opaque("torch.take_along_dim", x, index, like=x)
    g.xf = g.c(x)
    g.o = g.c(g.taken) + g.b(g.s(g.c(x)), x) + g.xf
    return g.finish(g.o)


def rms_norm_backward(rows: int = 16, row: int = 1024) -> Graph:
    g = Sketch()
    dy, x = g.inputs("dy x", H, rows, row)
    w, rs = g.input("w", H, row), g.input("rs", F, rows)
    g.dyf, g.xf = g.c(dy), g.c(x)
    g.g = g.dyf * g.b(g.c(w), x, 0)
    g.xh = g.xf * g.b(rs, x)
    g.cs = g.s(g.g * g.xh)
    g.t = g.xh * g.b(g.cs * (1 / row), x)
    g.z = g.g - g.t
    g.dw = g.s(g.dyf * g.xh, 0)
    return g.finish(g.c(g.z * g.b(rs, x), H), g.c(g.dw, H))


def inner_and_outer() -> Graph:
    g = Sketch()
    x = g.input("x", F)
    g.y = x + g.b(g.s(x), x)
    g.w = g.s(x, 0)
    return g.finish(g.y, g.w)


def add_back(x_shape: tuple[int, ...], *dims: int) -> Graph:
    """``x + b(s(x, dims))``."""
    g = Sketch()
    x = g.input("x", F, *x_shape)
    g.r = g.s(x, *dims)
    g.y = x + g.b(g.r, x, *dims)
    return g.finish(g.y)


def mixed(x_shape: tuple[int, ...], inner: tuple[int, ...], outer: tuple[int, ...]) -> Graph:
    """``x + b(s(x, inner))`` and ``s(x, outer)``."""
    g = Sketch()
    x = g.input("x", F, *x_shape)
    g.inner = g.s(x, *inner)
    g.y = x + g.b(g.inner, x, *inner)
    g.outer = g.s(x, *outer)
    return g.finish(g.y, g.outer)


def waiting_for_each_other() -> Graph:
    """Two rows that each need the other's sum: their loops cannot both be one loop."""
    g = Sketch()
    x, y = g.inputs("x y", F)
    g.xs, g.ys = g.s(g.exp(x)), g.s(g.exp(y))
    g.a = x * g.b(g.ys, x)
    g.c1 = y * g.b(g.xs, x)
    return g.finish(g.a, g.c1)
