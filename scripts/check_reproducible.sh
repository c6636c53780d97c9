#!/usr/bin/env bash
# scripts/check_reproducible.sh [TARGET ...]: builds the committed tree twice, in folders of different names and without
# a compiler cache, and compares the hashes of what comes out (default: lowbit and lowbit_shared; two whole builds, some
# 20 minutes on 2 cores). Prints the hashes.
#   LOWBIT_REPRODUCIBLE_DIR     builds there and leaves it: called again after an interruption, it goes on
#   LOWBIT_REPRODUCIBLE_CACHED  1: the first build takes from ccache what was compiled before, in whatever folder; half
#                               the time
set -euo pipefail
cd "$(dirname "$0")/.."
targets=("${@:-lowbit}")
[ $# -gt 0 ] || targets=(lowbit lowbit_shared)
work=${LOWBIT_REPRODUCIBLE_DIR:-$(mktemp -d)}
[ -n "${LOWBIT_REPRODUCIBLE_DIR:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
commit=$(cat "$work/commit" 2>/dev/null || git rev-parse HEAD)
echo "$commit" >"$work/commit"
# The same clock for both: whatever asks for one gets the commit's.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
for one in first "second, elsewhere"; do
  tree=$work/$one
  unset CCACHE_DISABLE
  [ "$one${LOWBIT_REPRODUCIBLE_CACHED:-}" = first1 ] || export CCACHE_DISABLE=1
  mkdir -p "$tree"
  [ -e "$tree/build/build.ninja" ] || git archive "$commit" | tar -x -C "$tree"
  CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1 cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOWBIT_WERROR=ON -DLOWBIT_TESTS=OFF \
    -DLOWBIT_BENCH=OFF >/dev/null
  CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1 cmake --build "$tree/build" -j "$(nproc)" --target "${targets[@]}" >"$tree/build.log" ||
    { tail -n 30 "$tree/build.log" >&2; exit 1; }
  (cd "$tree/build" && find bin lib -type f -exec sha256sum {} + | sort -k2) >"$work/$one.sums"
done
cat "$work/first.sums"
[ -s "$work/first.sums" ] || { echo "check_reproducible: nothing was built" >&2; exit 1; }
if ! diff "$work/first.sums" "$work/second, elsewhere.sums" >&2; then
  echo "check_reproducible: two builds of $commit differ" >&2
  exit 1
fi
echo "two builds of $commit, the same bytes"
