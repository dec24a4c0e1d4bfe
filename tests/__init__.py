# SPDX-License-Identifier: Apache-2.0
"""Tests: they mirror the package's folders; ``tests.tolerance`` holds the comparisons that they share."""
