#!/usr/bin/env bash
# scripts/make_torch_venv.sh FOLDER: a virtual environment with torch (tests/requirements-torch.txt: 4 GB, 4 minutes),
# made unless it is there. Prints where its packages lie. One that somebody else made is taken as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { echo "usage: scripts/make_torch_venv.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
exec 9>"$folder.lock"
flock 9  # one at a time
made=$folder/made.txt  # empty until all is installed
if { [ -e "$made" ] || [ ! -x "$folder/bin/python3" ]; } && ! cmp -s tests/requirements-torch.txt "$made"; then
  echo "torch goes into $folder" >&2
  python3 -m venv --clear "$folder"
  : >"$made"
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --require-hashes --no-deps -r tests/requirements-torch.txt >&2
  cp tests/requirements-torch.txt "$made"
fi
"$folder/bin/python3" -W ignore -c 'import sysconfig, torch; print(sysconfig.get_path("purelib"))' 2>/dev/null ||
  { echo "$folder: Python has no torch there" >&2; exit 1; }
