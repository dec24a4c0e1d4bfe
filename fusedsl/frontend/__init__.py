# SPDX-License-Identifier: Apache-2.0
"""From the text of a Python function to a fusion graph."""
