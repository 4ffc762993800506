#!/usr/bin/env bash
# package.sh [deb|tar|folder]... [OUT]: builds the program and writes into OUT (build/packages) a Debian package, a
# relocatable archive, or the archive's folder; by default the first two. The archive has in lib/tessera the libraries
# that the program needs, except glibc's: it runs from any folder of an x86-64 system whose glibc is as new as the one
# here. BUILD=DIR takes a program that is already built; PRESET=cuda builds it with the device cuda, which needs the CUDA toolkit 13.
# cuBLASLt, which such a program loads when it uses a card, is in neither.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
kinds=()
while [[ ${1:-} =~ ^(deb|tar|folder)$ ]]; do
  kinds+=("$1")
  shift
done
[ $# -le 1 ] || { echo "error: expected deb, tar or folder, found '$1'" >&2; exit 64; }
[ ${#kinds[@]} -gt 0 ] || kinds=(deb tar)
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
  local folder=$1/$name file package path paths=()
  local -A package_of
  rm -rf "$folder"
  cmake --install "$build" --prefix "$folder" --strip >"$scratch/log"
  local notices=$folder/share/doc/tessera/libraries
  mkdir -p "$folder/lib/tessera" "$notices"
  # Those of glibc belong to the system's loader.
  mapfile -t paths < <(ldd "$build/tessera" | awk '$2 == "=>" { print $3 }' |
    grep -vE '/(libc|libm|libmvec|libdl|libpthread|librt|libresolv|libanl|libnsl|libutil)\.so\.[0-9]+$')
  cp -L "${paths[@]}" "$folder/lib/tessera"
  # Licences, by the packages that the files are from.
  while IFS=' ' read -r package file; do
    package_of[${file##*/}]=${package%:}
  done < <(realpath "${paths[@]}" | sed 's|^/usr|*|; s|^/|*/|' | xargs dpkg-query --search)
  for path in "${paths[@]}"; do
    package=${package_of[$(basename "$(realpath "$path")")]}
    cp "/usr/share/doc/${package%%:*}/copyright" "$notices/${package%%:*}.copyright"
    printf '%-24s %s\n' "${path##*/}" "$package" >>"$notices/LIBRARIES"
  done
  dpkg-query --show "${package_of[@]}" >"$notices/VERSIONS"
  cp -rL /usr/share/common-licenses "$notices"  # which the copyright files refer to
}

for kind in "${kinds[@]}"; do
  case $kind in
    deb) make_deb ;;
    folder) make_folder "$out" ;;
    tar)
      make_folder "$scratch"
      tar -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | xz -T0 >"$out/$name.tar.xz"
      ls -sh "$out/$name.tar.xz"
      ;;
  esac
done
