#!/usr/bin/env bash
# scripts/test.sh [unit|integration|all]: installs, builds and runs every test this machine can run; says what was skipped and why.
#   unit         the C++ tests of every folder
#   integration  the command line, checkpoints, real models and data
# The last line is "N passed, N failed, N skipped". LOWBIT_PRESET picks another preset (default release).
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
case "$what" in unit | integration | all) ;; *) echo "usage: scripts/test.sh [unit|integration|all]" >&2; exit 2 ;; esac
preset=${LOWBIT_PRESET:-release}
bash scripts/build.sh "$preset"
exec python3 scripts/run_tests.py --build "build/$preset" --suite "$what"
