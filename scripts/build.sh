#!/usr/bin/env bash
# scripts/build.sh [release|debug|asan|tsan|cuda] [cmake --build arguments]: configures and builds one preset into
# build/<preset>. Without an argument: cuda where nvcc is found, else release.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
  preset=$1
  shift
elif command -v nvcc >/dev/null 2>&1; then
  preset=cuda
else
  preset=release
fi
bash scripts/install_deps.sh
# Lets ccache serve clones that lie elsewhere.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
log="build/$preset.configure.log"
mkdir -p build
if ! cmake --preset "$preset" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
cmake --build "build/$preset" -j "$(nproc)" "$@"
