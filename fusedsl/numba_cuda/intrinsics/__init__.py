# SPDX-License-Identifier: Apache-2.0
"""The functions of the kernel language, one family of instructions a module."""
