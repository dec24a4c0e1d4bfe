# SPDX-License-Identifier: Apache-2.0
"""Derivative rules, one op at a time; importing the package fills the table."""

from fusedsl.gradients.rules import arithmetic, elementary, structure
from fusedsl.gradients.rules.table import DISCRETE, FLAT, RULES, STRUCTURAL, Site, Upstream

#: The modules that fill the table when they are imported.
FAMILIES = (arithmetic, elementary, structure)

__all__ = ["DISCRETE", "FAMILIES", "FLAT", "RULES", "STRUCTURAL", "Site", "Upstream"]
