# SPDX-License-Identifier: Apache-2.0
"""One runnable file an operation: ``python -m examples.layer_norm`` checks it against PyTorch, then times it."""
