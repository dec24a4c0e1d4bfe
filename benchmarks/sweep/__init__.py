# SPDX-License-Identifier: Apache-2.0
"""Suite ``sweep``: normalisations over row lengths from 1 to 300000, dense where the strategy changes."""
