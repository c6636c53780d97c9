#!/usr/bin/env bash
# scripts/fuzz.sh [seconds] [target ...]: builds the fuzz targets (tests/fuzz) with clang into build/fuzz and runs each
# for that long (default 20, or LOWBIT_FUZZ_SECONDS); 0 seconds only replays the seeds. Without names: all targets.
#   LOWBIT_FUZZ_TIMEOUT  seconds that one input may wait or work before libFuzzer ends it (default 25;
#                        tests/fuzz/fuzz_limits.h asks for 2 s of CPU time, which a busy machine does not lengthen)
#   LOWBIT_FUZZ_RSS_MB   memory of a target (default 768: 256 for an input, the rest for AddressSanitizer)
#   LOWBIT_FUZZ_CXX      the compiler (default clang++); LOWBIT_FUZZ_JOBS: compilers and targets at a time (default: the
#                        processors)
#   LOWBIT_FUZZ_BUILD_S  seconds for building (default: as long as it takes); what is not built by then is named and not
#                        run, and the next run goes on from there
# Found inputs are kept in build/fuzz/corpus, failing ones in build/fuzz/failures. Exit status 77: no clang with
# libFuzzer.
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
  ! "$compiler" -fsanitize=fuzzer,address,undefined "$build/probe.cc" -o "$build/probe" 2>"$build/probe.log"; then
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
jobs=${LOWBIT_FUZZ_JOBS:-$(nproc)}
if [ -z "${LOWBIT_FUZZ_BUILD_S:-}" ]; then
  cmake --build "$build" -j "$jobs" --target "${targets[@]/#/fuzz_}"
else
  ready=()
  for target in "${targets[@]}"; do
    left=$((LOWBIT_FUZZ_BUILD_S - SECONDS))
    built=0
    timeout "$((left > 0 ? left : 1))" cmake --build "$build" -j "$jobs" --target "fuzz_$target" >"$build/build.log" 2>&1 || built=$?
    case $built in
      0) ready+=("$target") ;;
      124) echo "fuzz $target: not built within $LOWBIT_FUZZ_BUILD_S s, not run" ;;
      *) cat "$build/build.log" >&2; exit 1 ;;
    esac
  done
  targets=("${ready[@]}")
  [ ${#ready[@]} -gt 0 ] || { echo "fuzz: SKIPPED: nothing was built within $LOWBIT_FUZZ_BUILD_S s" >&2; exit 77; }
fi
export ASAN_OPTIONS=quarantine_size_mb=16:allocator_may_return_null=1:${ASAN_OPTIONS:-}
common=(-timeout="${LOWBIT_FUZZ_TIMEOUT:-25}" -rss_limit_mb="${LOWBIT_FUZZ_RSS_MB:-768}" -max_len=65536 -print_final_stats=1
  -artifact_prefix="$build/failures/")
run_target() {
  local target=$1 found=$build/corpus/$1 limit options=()
  mkdir -p "$found"
  limit=-max_total_time="$seconds"
  [ "$seconds" -ne 0 ] || limit=-runs=0
  [ -f "tests/fuzz/$target.dict" ] && options=(-dict="tests/fuzz/$target.dict")
  if "$build/bin/fuzz_$target" "${common[@]}" "$limit" "${options[@]}" "$found" "tests/fuzz/corpus/$target" >"$build/$target.log" 2>&1; then
    echo "fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log") inputs," \
      "peak $(sed -n 's/^stat::peak_rss_mb: *//p' "$build/$target.log") MB: no failure"
  else
    echo "fuzz $target: FAILED; the input is in $build/failures, the report in $build/$target.log:
$(tail -n 25 "$build/$target.log")"
    return 1
  fi
}
pids=()
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do sleep 0.2; done
  run_target "$target" &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit $status
