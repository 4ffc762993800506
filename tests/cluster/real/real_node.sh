#!/usr/bin/env bash
# real_node.sh NODE ADDRESS: the processes of a node, in namespaces of its own that start_node (real_nodes.sh) has made.
set -euo pipefail
cd "$CLUSTER_STATE"
mount --make-rshared /  # containers see what the kubelet mounts
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mount --bind "$1/lib" /var/lib
# A kubelet sets these for the whole machine, on which other programs rely. It finds them set.
for each in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
  echo "${each#*=}" >"$1/sysctl/$(basename "${each%=*}")"
  mount --bind "$1/sysctl/$(basename "${each%=*}")" "/proc/sys/${each%=*}"
done
containerd --config "$1/containerd.toml" &
until ctr version >/dev/null 2>&1; do sleep 0.2; done
ctr --namespace k8s.io images import images.tar
exec kubelet --config "$1/kubelet.yaml" --kubeconfig "$1/kubeconfig" --hostname-override "$1" --node-ip "$2" \
  --node-labels nodeType=cpu-amx,topology.kubernetes.io/zone=here
