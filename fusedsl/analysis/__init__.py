# SPDX-License-Identifier: Apache-2.0
"""Pure functions Graph -> facts: domains, reductions and their roles, persistent buffers, storage, segmentation."""
