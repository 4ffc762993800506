#!/usr/bin/env bash
# copy_libraries.sh [--wheel] PROGRAM FOLDER NOTICES: copies into FOLDER the libraries that PROGRAM needs, except glibc's, and
# into NOTICES their licences. --wheel leaves out GCC's run-time libraries too: a wheel has to take those of the system
# (PEP 600), which has them in a version that its tag asks for.
set -euo pipefail
system='libc|libm|libmvec|libdl|libpthread|librt|libresolv|libanl|libnsl|libutil'
if [ "$1" = --wheel ]; then
  system+='|libstdc\+\+|libgcc_s'
  shift
fi
program=$1 folder=$2 notices=$3
mkdir -p "$folder" "$notices"
mapfile -t paths < <(ldd "$program" | awk '$2 == "=>" { print $3 }' | grep -vE "/($system)\.so\.[0-9]+$")
cp -L "${paths[@]}" "$folder"

command -v dpkg-query >/dev/null || {
  echo "warning: the licences of the libraries in $folder are missing: dpkg-query, which tells their packages, is not installed" >&2
  exit 0
}
declare -A package_of
while IFS=' ' read -r package file; do
  package_of[${file##*/}]=${package%:}
done < <(realpath "${paths[@]}" | sed 's|^/usr|*|; s|^/|*/|' | xargs dpkg-query --search)
for path in "${paths[@]}"; do
  package=${package_of[$(basename "$(realpath "$path")")]}
  cp "/usr/share/doc/${package%%:*}/copyright" "$notices/${package%%:*}.copyright"
  printf '%-24s %s\n' "${path##*/}" "$package"
done >"$notices/LIBRARIES"
dpkg-query --show "${package_of[@]}" >"$notices/VERSIONS"
cp -rL /usr/share/common-licenses "$notices"  # which the copyright files refer to
