# SPDX-License-Identifier: Apache-2.0
"""Pure functions Graph -> facts: domains, reduction stages and roles, persistent buffers, iteration spaces, segmentation."""
