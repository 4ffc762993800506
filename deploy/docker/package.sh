#!/usr/bin/env bash
# package.sh OUT: builds the Debian package of the program into OUT, and lists there, in `compiled_in`, the packages
# whose code is part of the program: header-only and static libraries, which leave no other trace in an image.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$1
mkdir -p "$out"
rm -f "$out"/*.deb
"$root/scripts/package.sh" deb "$out"
dpkg-query --show --showformat '${Package}\t${Version}\t${Architecture}\t${source:Package}\n' \
  libasio-dev libboost-dev libhwy-dev nlohmann-json3-dev >"$out/compiled_in"
