#!/bin/sh
# root.sh: the last step of the image's root file system, run as root in it. Installs /tmp/package/tessera_*.deb on top of
# its libraries, adds the user, the volume's folder and the bill of materials, and removes whatever differs between two
# builds, except for the times of files, which the builders set: `docker buildx` with rewrite-timestamp, podman with
# --timestamp.
set -eu

# Fails if a library that the program depends on is missing from the list in the Dockerfile.
dpkg --install /tmp/package/tessera_*.deb

# NVIDIA's library for products on cards, of an image with the device cuda. The driver is the node's: its container runtime mounts it.
if [ -e /tmp/package/libcublasLt.so.13 ]; then
  install -m 644 /tmp/package/libcublasLt.so.13 /usr/lib/x86_64-linux-gnu/
  mkdir -p /usr/share/doc/libcublaslt
  echo 'libcublasLt.so.13 is of the NVIDIA CUDA Toolkit and under its End User License Agreement, https://docs.nvidia.com/cuda/eula/' \
    >/usr/share/doc/libcublaslt/copyright
  ldconfig
fi

# Numeric ids are what a pod's securityContext names; the name is for people.
echo 'tessera:x:1000:1000:Tessera:/tmp:/usr/sbin/nologin' >>/etc/passwd
echo 'tessera:x:1000:' >>/etc/group
mkdir -p /data /usr/share/sbom
chown 1000:1000 /data

[ -e /tmp/package/bundled ] || : >/tmp/package/bundled
sh /tmp/sbom.sh /tmp/package/compiled_in /tmp/package/bundled >/usr/share/sbom/tessera.spdx.json

rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /var/lib/dpkg/*-old /etc/*- /tmp/* /run/*
: >/etc/machine-id
# No setuid or setgid programs: su, mount and the like are not needed.
find / -xdev -type f -perm /6000 -exec chmod ug-s {} +
