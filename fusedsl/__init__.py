# SPDX-License-Identifier: Apache-2.0
"""fusedsl: a plain PyTorch-style function becomes a few fused GPU kernels."""

from fusedsl import schedulers
from fusedsl.api import FusedFunction, fuse
from fusedsl.config import config
from fusedsl.graph.span import FuseError
from fusedsl.stats import reset_stats, stats

__version__ = "0.1.0"

__all__ = ["FuseError", "FusedFunction", "__version__", "config", "fuse", "reset_stats", "schedulers", "stats"]
