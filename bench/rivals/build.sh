#!/usr/bin/env bash
# Builds llama.cpp's tools, ggml_matmul and llama_reference for this machine's CPU, from the source
# package of llama-cpp-python (which carries llama.cpp), into $LOWBIT_RIVALS_DIR/build/bin.
# usage: bench/rivals/build.sh [cmake option ...]        e.g. -DGGML_OPENMP=OFF
set -euo pipefail

version=0.3.36  # carries ggml-org/llama.cpp@0c1e57098
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${LOWBIT_RIVALS_DIR:-$here/../../build/rivals}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

archive=$dir/llama_cpp_python-$version.tar.gz
source=$dir/llama_cpp_python-$version/vendor/llama.cpp
if [[ ! -f $archive ]]; then
  # pip asks the package for its metadata, so it installs the build backend for a moment.
  pip download --no-binary llama-cpp-python --no-deps --dest "$dir" "llama-cpp-python==$version"
fi
echo "$sha256  $archive" | sha256sum --check --quiet
if [[ ! -f $source/CMakeLists.txt ]]; then
  tar -xzf "$archive" -C "$dir"
fi

cmake -S "$here" -B "$dir/build" -G "${CMAKE_GENERATOR:-Ninja}" \
  -DLOWBIT_LLAMA_SOURCE="$source" -DLLAMA_BUILD_COMMIT="0c1e57098" "$@"
cmake --build "$dir/build" --parallel "${LOWBIT_JOBS:-2}"
# oneDNN's GRU, where Debian's libdnnl-dev is.
cxx=${CXX:-c++}
if echo '#include <dnnl.hpp>' | "$cxx" -std=c++20 -x c++ -E - > /dev/null 2>&1; then
  "$cxx" -std=c++20 -O2 -fopenmp "$here/onednn_gru.cc" -o "$dir/build/bin/onednn_gru" -ldnnl
fi
echo "built: $dir/build/bin"
