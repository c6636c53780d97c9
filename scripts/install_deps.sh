#!/usr/bin/env bash
# Installs what building and testing need from Debian's packages; does nothing when all of it is there.
set -euo pipefail
packages=(build-essential cmake ninja-build ccache pkg-config git clang-format clang-tidy python3 python3-venv
  libexpected-dev libfmt-dev libcli11-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev
  libeigen3-dev libgtest-dev libbenchmark-dev libsndfile1-dev libkissfft-dev qemu-user)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
# A compiler, CMake or clang tool that was installed some other way will do.
have() { command -v "$1" >/dev/null 2>&1; }
keep=()
for p in "${missing[@]}"; do
  case "$p" in
    build-essential) have g++ && have make && continue ;;
    cmake) have cmake && continue ;;
    ninja-build) have ninja && continue ;;
    clang-format | clang-tidy | ccache | git | python3) have "$p" && continue ;;
    pkg-config) have pkg-config && continue ;;
    qemu-user) have qemu-x86_64 && continue ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null && continue ;;
  esac
  keep+=("$p")
done
[ ${#keep[@]} -eq 0 ] && exit 0
if ! have apt-get; then
  echo "install_deps: no apt-get here; these packages of Debian's, or your system's own, are needed: ${keep[*]}" >&2
  exit 0  # CMake says what is really missing
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  have sudo || { echo "install_deps: these packages are missing and neither root nor sudo is at hand: ${keep[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "installing: ${keep[*]}" >&2
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${keep[@]}" >/dev/null
