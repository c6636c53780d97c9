#!/usr/bin/env bash
# Prompt (pp128) and decode (tg64) speed of llama.cpp with two threads on a GGUF file, as JSON.
# usage: [THREADS=1,2] bench/rivals/llama_bench.sh MODEL.gguf [llama-bench option ...]      e.g. -r 3
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bench=${LOWBIT_RIVALS_DIR:-$here/../../build/rivals}/build/bin/llama-bench
model=${1:?usage: llama_bench.sh MODEL.gguf [llama-bench option ...]}
shift
exec "$bench" -m "$model" -p 128 -n 64 -t "${THREADS:-2}" -o json "$@"
