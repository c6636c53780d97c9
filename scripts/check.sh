#!/usr/bin/env bash
# scripts/check.sh: the house rules, without building: layout, includes, docs that name files and print what
# bench/results/ holds, formatting, and clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/install_deps.sh
python3 scripts/check_house.py
python3 scripts/print_tables.py --check
python3 scripts/draw_bits.py --check
files=$(git ls-files '*.h' '*.cc' '*.cu' '*.cuh')
# shellcheck disable=SC2086
clang-format --dry-run --Werror $files
echo "format: clean"
python3 scripts/check_tidy.py
