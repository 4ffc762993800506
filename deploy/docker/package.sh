#!/usr/bin/env bash
# package.sh OUT: builds the Debian package of the program into OUT, and lists there, in `compiled_in`, the packages
# whose code is part of the program: header-only and static libraries, which leave no other trace in an image.
# With PRESET=cuda the program has the device cuda; its cuBLASLt, from the CUDA toolkit in CUDA_HOME (/usr/local/cuda), is put into
# OUT as well, and `bundled` lists it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$1
mkdir -p "$out"
rm -f "$out"/*.deb "$out"/libcublasLt.so.* "$out"/bundled
"$root/scripts/package.sh" deb "$out"
dpkg-query --show --showformat '${Package}\t${Version}\t${Architecture}\t${source:Package}\n' \
  libasio-dev libboost-dev libhwy-dev nlohmann-json3-dev >"$out/compiled_in"
[ "${PRESET:-}" = cuda ] || exit 0
cuda=${CUDA_HOME:-/usr/local/cuda}
cp -L "$cuda/lib64/libcublasLt.so.13" "$out"
# 13.0.2.14, as the header states it.
version=$(sed -nE 's/^#define CUBLAS_VER_(MAJOR|MINOR|PATCH|BUILD) ([0-9]+)$/\2/p' "$cuda/include/cublas_api.h" | paste -sd .)
[[ $version =~ ^13(\.[0-9]+){3}$ ]] || { echo "error: no version 13 in $cuda/include/cublas_api.h, found '$version'" >&2; exit 70; }
printf 'libcublasLt\t%s\tamd64\tNVIDIA CUDA Toolkit\n' "$version" >"$out/bundled"
