# SPDX-License-Identifier: Apache-2.0
"""The fusion graph: values, ops, dtypes, what they mean, and how they print."""

from fusedsl.graph import printer as printer
