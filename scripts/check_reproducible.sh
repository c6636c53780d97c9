#!/usr/bin/env bash
# scripts/check_reproducible.sh [TARGET ...]: builds the committed tree twice, in folders of different names and without a compiler cache, and
# compares the hashes of what comes out (default: lowbit and lowbit_shared; two whole builds, some 20 minutes on 2 cores). Prints the hashes.
set -euo pipefail
cd "$(dirname "$0")/.."
targets=("${@:-lowbit}")
[ $# -gt 0 ] || targets=(lowbit lowbit_shared)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The same clock for both: whatever asks for one gets the commit's.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC CCACHE_DISABLE=1
for one in first "second, elsewhere"; do
  tree=$work/$one
  mkdir -p "$tree"
  git archive HEAD | tar -x -C "$tree"
  cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOWBIT_TESTS=OFF -DLOWBIT_BENCH=OFF >/dev/null
  cmake --build "$tree/build" --target "${targets[@]}" >/dev/null
  (cd "$tree/build" && find bin lib -type f -exec sha256sum {} + | sort -k2) >"$work/$one.sums"
done
cat "$work/first.sums"
[ -s "$work/first.sums" ] || { echo "check_reproducible: nothing was built" >&2; exit 1; }
if ! diff "$work/first.sums" "$work/second, elsewhere.sums" >&2; then
  echo "check_reproducible: two builds differ" >&2
  exit 1
fi
echo "two builds, the same bytes"
