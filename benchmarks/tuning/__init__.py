# SPDX-License-Identifier: Apache-2.0
"""What ``python -m benchmarks.tune`` is made of: problems run with forced parameters, and the parameters to try."""
