#!/usr/bin/env bash
# scripts/fuzz.sh [seconds] [target ...]: builds the fuzz targets (tests/fuzz) with clang into build/fuzz and runs each for that long
# (default 20, or LOWBIT_FUZZ_SECONDS); 0 seconds only replays the seeds. Without names: all targets.
#   LOWBIT_FUZZ_TIMEOUT  seconds that one input may wait or work before libFuzzer ends it (default 25; tests/fuzz/fuzz_limits.h asks for
#                        2 s of CPU time, which a busy machine does not lengthen)
#   LOWBIT_FUZZ_RSS_MB   memory of a target (default 768: 256 for an input, the rest for AddressSanitizer)
#   LOWBIT_FUZZ_CXX      the compiler (default clang++); LOWBIT_FUZZ_JOBS: compilers at a time (default: the processors)
# Found inputs are kept in build/fuzz/corpus, failing ones in build/fuzz/failures. Exit status 77: no clang with libFuzzer.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-${LOWBIT_FUZZ_SECONDS:-20}}
[ $# -gt 0 ] && shift
case "$seconds" in '' | *[!0-9]*) echo "usage: scripts/fuzz.sh [seconds] [target ...]" >&2; exit 2 ;; esac
build=build/fuzz
mkdir -p "$build/failures"
compiler=${LOWBIT_FUZZ_CXX:-clang++}
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$build/probe.cc"
if ! command -v "$compiler" >/dev/null 2>&1 ||
  ! "$compiler" -fsanitize=fuzzer,address "$build/probe.cc" -o "$build/probe" 2>"$build/probe.log"; then
  echo "fuzz: SKIPPED: no $compiler with libFuzzer (Debian: apt-get install clang libclang-rt-14-dev)" >&2
  exit 77
fi
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
if ! cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DLOWBIT_FUZZ=ON -DLOWBIT_TESTS=OFF -DLOWBIT_BENCH=OFF \
  >"$build/configure.log" 2>&1; then
  cat "$build/configure.log" >&2
  exit 1
fi
mapfile -t all <"$build/fuzz_targets.txt"
targets=("$@")
[ $# -gt 0 ] || targets=("${all[@]}")
cmake --build "$build" -j "${LOWBIT_FUZZ_JOBS:-$(nproc)}" --target "${targets[@]/#/fuzz_}"
export ASAN_OPTIONS=quarantine_size_mb=16:allocator_may_return_null=1:${ASAN_OPTIONS:-}
common=(-timeout="${LOWBIT_FUZZ_TIMEOUT:-25}" -rss_limit_mb="${LOWBIT_FUZZ_RSS_MB:-768}" -max_len=65536 -print_final_stats=1
  -artifact_prefix="$build/failures/")
status=0
for target in "${targets[@]}"; do
  seeds=tests/fuzz/corpus/$target
  found=$build/corpus/$target
  mkdir -p "$found"
  if [ "$seconds" -eq 0 ]; then
    limit=(-runs=0)
  else
    limit=(-max_total_time="$seconds")
  fi
  options=()
  [ -f "tests/fuzz/$target.dict" ] && options=(-dict="tests/fuzz/$target.dict")
  if "$build/bin/fuzz_$target" "${common[@]}" "${limit[@]}" "${options[@]}" "$found" "$seeds" >"$build/$target.log" 2>&1; then
    echo "fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log") inputs," \
      "peak $(sed -n 's/^stat::peak_rss_mb: *//p' "$build/$target.log") MB: no failure"
  else
    echo "fuzz $target: FAILED; the input is in $build/failures, the report in $build/$target.log:"
    tail -n 25 "$build/$target.log"
    status=1
  fi
done
exit $status
