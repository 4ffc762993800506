#!/usr/bin/env bash
# install_cuda.sh: installs, in the Dockerfile's build stage, what the preset cuda needs of the CUDA toolkit 13.0, from NVIDIA's
# packages for Debian 12.
set -euo pipefail
repository=https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends ca-certificates curl
curl --fail --silent --show-error --location --output /tmp/cuda-keyring.deb "$repository/cuda-keyring_1.1-1_all.deb"
dpkg --install /tmp/cuda-keyring.deb  # the key, and a list with this repository
rm /tmp/cuda-keyring.deb
apt-get update -q
apt-get install -y -q --no-install-recommends cuda-nvcc-13-0 cuda-cudart-dev-13-0 libcublas-dev-13-0
