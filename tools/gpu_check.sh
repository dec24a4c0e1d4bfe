#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that need an NVIDIA GPU, the most telling first, within a time limit; prints what failed and why.
# Usage: gpu_check.sh [PART...]   parts: values core faults language rest big perf tune (default: all but perf and tune)
# tune runs no tests: it times parameters and writes tune_SUITE.json to OUT (SUITE: default norms_backward).
#
#   PYTHON   interpreter with the dependencies (default: .venv/bin/python, else python3)
#   SUITE    what tune times: norms pointwise reductions norms_backward batchnorm
#   LIMIT    seconds for all parts together (default 560)
#   WORKERS  test processes (default 8; big and perf run alone)
#   OUT      folder for the full logs (default: a temporary one)
set -uo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
out=${OUT:-$(mktemp -d)}
end=$((SECONDS + ${LIMIT:-560}))
[ $# -gt 0 ] || set -- values core faults language rest big

failed=0
for part in "$@"; do
  left=$((end - SECONDS))
  [ $left -gt 5 ] || { echo "== $part: no time left"; failed=1; continue; }
  log=$out/$part.log
  if [ "$part" = tune ]; then
    timeout -k 10 $left "$python" -m benchmarks.tune "${SUITE:-norms_backward}" --budget $((left > 60 ? left - 30 : left / 2)) \
      --out "$out/tune_${SUITE:-norms_backward}.json" >"$log" 2>&1 || failed=1
    cat "$log"
    continue
  fi
  workers=(-n "${WORKERS:-8}" --dist loadgroup)
  flags=()
  case $part in
    values) paths=(tests/schedulers) ;;
    core) paths=(tests/test_*.py tests/examples) ;;
    faults) paths=(tests/faults) ;;
    language) paths=(tests/numba_cuda) ;;
    rest)
      paths=(tests)
      for done in schedulers examples faults numba_cuda; do flags+=("--ignore=tests/$done"); done
      for done in tests/test_*.py; do flags+=("--ignore=$done"); done
      ;;
    big) paths=(tests) workers=() flags=(--big -m "gpu and big") ;;
    perf) paths=(tests) workers=() flags=(--perf -m "gpu and perf") ;;
    *) echo "unknown part $part" >&2; exit 2 ;;
  esac
  timeout -k 10 $left "$python" -m pytest -q --tb=short -p no:cacheprovider -p no:benchmark -m gpu -rfE \
    "${workers[@]}" "${flags[@]}" "${paths[@]}" >"$log" 2>&1
  status=$?
  [ $status -eq 5 ] && status=0 # nothing to run in this part
  [ $status -eq 0 ] || failed=1
  [ $status -eq 124 ] && echo "== $part: out of time"
  echo "== $part: $(tail -n 1 "$log")"
  # every failure with the line that says why, the same reason once
  grep -E '^(FAILED|ERROR) ' "$log" | cut -c1-160 | head -n 40
  grep -E '^E  ' "$log" | cut -c1-200 | sort | uniq -c | sort -rn | head -n 25
done
exit $failed
