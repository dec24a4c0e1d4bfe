# SPDX-License-Identifier: Apache-2.0
"""The GPU layer: kernel language, compiler, cache, launcher and interpreter.

Importing this package is cheap: numba is imported when a kernel is first compiled.
"""
