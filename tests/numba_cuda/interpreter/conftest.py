# SPDX-License-Identifier: Apache-2.0
"""The interpreter is tested where greenlet is installed."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("greenlet") else ["test_*.py"]
