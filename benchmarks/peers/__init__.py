# SPDX-License-Identifier: Apache-2.0
"""The contestants. A peer turns an operation and its arguments into a call, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from torch import Tensor

from benchmarks.operations import Operation, Results
from benchmarks.peers import eager, fused, inductor, liger, nvfuser, quack

#: Contestants that are fusedsl itself.
OURS = ("fusedsl", "fusedsl_bare")


@attrs.frozen
class Peer:
    """One contestant.

    Attributes:
        name: what tables call it.
        prepare: (operation, arguments) -> a call without arguments that gives the results, or None where the peer has
            no such operation. It may import and compile; what it raises is reported, never fatal. Of an operation that
            gives gradients, the forward pass is done here.
        distribution: the installed distribution whose version is recorded; "" for none.
    """

    name: str
    prepare: Callable[[Operation, tuple[Tensor, ...]], Callable[[], Results] | None]
    distribution: str = ""


PEERS: tuple[Peer, ...] = (
    Peer("fusedsl", fused.prepare, "fusedsl"),
    Peer("fusedsl_bare", fused.prepare_bare, "fusedsl"),
    Peer("eager", eager.prepare, "torch"),
    Peer("compile", inductor.prepare, "triton"),
    Peer("liger", liger.prepare, "liger-kernel"),
    Peer("quack", quack.prepare, "quack-kernels"),
    Peer("nvfuser", nvfuser.prepare),
)
