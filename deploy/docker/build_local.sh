#!/usr/bin/env bash
# build_local.sh [--cuda] [--fabric] [--compile] [--no-cache] [TAG]: builds the image of the Dockerfile with podman and without a registry, as
# localhost/tessera:TAG (latest), and prints its digest and size. The base image is made from Debian's packages by
# mmdebstrap, once, in build/image. By default the program is compiled on this machine, which has to be Debian 12; with
# --compile in the Dockerfile's own build stage, which downloads 1 GB of compilers and libraries. Needs root.
#
# --cuda builds the program with the device cuda, with the CUDA toolkit in CUDA_HOME (/usr/local/cuda), or with --compile with NVIDIA's
# packages. --fabric adds libfabric. TESSERA_CCACHE=DIR is a compiler cache for --compile.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=$root/build/image
compile=false
preset=
fabric=
no_cache=()
while [[ ${1:-} == --* ]]; do
  case $1 in
    --compile) compile=true ;;
    --cuda) preset=cuda ;;
    --fabric) fabric=yes ;;
    --no-cache) no_cache=(--no-cache) ;;
    *) echo "error: expected --cuda, --fabric, --compile or --no-cache, found '$1'" >&2; exit 64 ;;
  esac
  shift
done
image=localhost/tessera:${1:-latest}
log=$cache/build-${1:-latest}.log
[ "$(id -u)" = 0 ] || { echo "error: run as root: mmdebstrap and podman need it here" >&2; exit 78; }
mkdir -p "$cache"

# The time of the commit, or of the newest text in an archive without one.
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/CHANGELOG.md")
revision=$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true)
export SOURCE_DATE_EPOCH

# As Debian's slim image: no manual pages, translations or documents but licences. The hook and usr-is-merged keep Perl out.
if [ ! -s "$cache/base.tar" ]; then
  rm -f "$cache/base.part.tar"
  mmdebstrap --variant=minbase --include=usr-is-merged \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    bookworm "$cache/base.part.tar" >"$cache/base.log" 2>&1 || { tail -20 "$cache/base.log" >&2; exit 74; }
  mv "$cache/base.part.tar" "$cache/base.tar"
fi
base=localhost/tessera-base:$(sha256sum "$cache/base.tar" | cut -c 1-12)
podman image exists "$base" || podman import --quiet "$cache/base.tar" "$base" >/dev/null

# runc and explicit limits also work where cgroups v1 and v2 are mixed and the limits on files are low.
options=(--ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --network host --timestamp "$SOURCE_DATE_EPOCH"
  --build-arg "BASE=$base" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH"
  --build-arg "PRESET=$preset" --build-arg "FABRIC=$fabric" --build-arg "REVISION=$revision" --build-arg "CREATED=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"
  --build-arg "VERSION=$(sed -n 's/^project(tessera VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")")
if $compile; then
  [ -z "${TESSERA_CCACHE:-}" ] || options+=(--volume "$TESSERA_CCACHE:/root/.cache/ccache")
else
  # Takes the place of the stage `build`, which is then left out.
  package=$cache/package${preset:+-$preset}
  PRESET=$preset "$root/deploy/docker/package.sh" "$package/out" >"$package.log" 2>&1 || { tail -20 "$package.log" >&2; exit 70; }
  options+=(--build-context "build=$package")
fi
before=$(podman image inspect "$image" --format '{{.Id}}' 2>/dev/null || true)
podman --runtime runc build "${options[@]}" "${no_cache[@]}" --file "$root/deploy/docker/Dockerfile" --tag "$image" \
  "$root" >"$log" 2>&1 || {
  tail -30 "$log" >&2
  ! grep -qE 'Failed to fetch|Unable to (fetch|locate package)|Temporary failure resolving' "$log" || exit 74
  exit 70
}
# The earlier image has lost its tag and only takes up disk space.
[ -z "$before" ] || [ "$before" = "$(podman image inspect "$image" --format '{{.Id}}')" ] ||
  podman image rm "$before" >/dev/null 2>&1 || true  # a container still has it
podman image inspect "$image" --format "$image {{index .RootFS.Layers 0}} {{.Size}} bytes (base: $(
  podman image inspect "$base" --format '{{.Size}}'))"
