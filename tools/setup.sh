#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the virtual environment VENV with fusedsl (editable), its development tools, and torch.
# Usage: PYTHON=python3 CUDA=cu13 setup.sh VENV
#
# A torch that PYTHON can import already is used as it is. Otherwise torch is installed: the CPU build where no NVIDIA
# GPU is present and the package index offers one (a fraction of the download), the ordinary build everywhere else.
set -euo pipefail
venv=${1:?virtual environment folder}
python=${PYTHON:-python3}

has_torch() { "$1" -c 'import torch' >/dev/null 2>&1; }

if [ ! -x "$venv/bin/python" ]; then
  if has_torch "$python"; then
    "$python" -m venv --system-site-packages "$venv"
  else
    "$python" -m venv "$venv"
  fi
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

if ! has_torch "$venv/bin/python"; then
  if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
    pip install --quiet 'torch>=2.6'
  else
    pip install --quiet 'torch==2.13.0+cpu' 2>/dev/null || pip install --quiet 'torch>=2.6'
  fi
fi

cuda=${CUDA:-}
if [ -z "$cuda" ]; then
  cuda=$("$venv/bin/python" -c 'import torch; print("cu12" if (torch.version.cuda or "").startswith("12.") else "cu13")')
fi
pip install --quiet --editable ".[dev,$cuda]"
