# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: ``python -m benchmarks <suite>`` measures fusedsl beside its peers on the same tensors."""
