#!/usr/bin/env bash
# install_packages.sh [build|test|bench|hosts|cluster]: installs the Debian 12 packages that the program needs to build, with `test`
# also those for every test and fuzz target, with `bench` also those to compare with Gloo and Open MPI, with `hosts` also those
# for benchmarks on several hosts that are network namespaces, with `cluster` also those for nodes of scripts/test_cluster.sh.
# Installs only what is missing; uses sudo if not run as root.
set -euo pipefail

what=${1:-build}
packages=(g++ cmake ninja-build ccache pkg-config nlohmann-json3-dev libspdlog-dev libfmt-dev libpcre2-dev libicu-dev
  libyaml-cpp-dev libhwy-dev libdnnl-dev libxxhash-dev libisal-dev libasio-dev libcurl4-openssl-dev libssl-dev libdw-dev
  libboost-dev liburing-dev libfabric-dev zlib1g-dev libzstd-dev libsnappy-dev liblz4-dev libbrotli-dev
  libgtest-dev libgmock-dev dpkg-dev file)
# A Node.js that is not Debian's own may bring both in one package.
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
if [ "$what" = test ]; then
  packages+=(mold clang-14 clang-format-14 libclang-rt-14-dev libgloo-dev iproute2 iptables iperf3 zsh fish mandoc
    chromium python3-venv python3-yaml python3-jsonschema shellcheck xfsprogs podman runc mmdebstrap netavark
    aardvark-dns fuse-overlayfs uidmap)
  # Another package may bring it, and they exclude each other.
  command -v kubectl >/dev/null || packages+=(kubernetes-client)
elif [ "$what" = bench ]; then
  packages+=(libgloo-dev openmpi-bin libopenmpi-dev iproute2 iperf3)
elif [ "$what" = hosts ]; then
  packages+=(iproute2 iperf3 python3)
elif [ "$what" = cluster ]; then
  packages+=(curl iproute2 iptables openssl python3-venv python3-yaml containerd containernetworking-plugins runc podman mmdebstrap)
elif [ "$what" != build ]; then
  echo "error: expected build, test, bench, hosts or cluster, found '$what'" >&2
  exit 64
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "installing: ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "error: run as root, or install: ${missing[*]}" >&2; exit 78; }
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
