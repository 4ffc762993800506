# shellcheck shell=bash
# Sourced by scripts/test_cluster.sh and train_check.py: nodes that run pods, each a kubelet with Debian's containerd, runc and CNI plug-ins
# in namespaces of its own (network, mounts, processes). They share this machine's processors, memory and disk.
#
# real-0 has the address 10.44.0.10 on the bridge of the control plane, and its pods 10.47.0.0/24, and so on.
state=$CLUSTER_STATE cache=$CLUSTER_CACHE
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
cgroup=$(basename "$state")
# shellcheck source=tests/cluster/real/control_plane.sh
. "$here/control_plane.sh"
cd "$state" || exit

# What a node needs of this machine; prints what is missing.
missing_for_nodes() {
  local each
  for each in containerd runc podman mmdebstrap; do
    command -v "$each" >/dev/null || { echo "$each is not installed (scripts/install_packages.sh cluster)"; return; }
  done
  [ -x /usr/lib/cni/bridge ] || { echo "containernetworking-plugins is not installed (scripts/install_packages.sh cluster)"; return; }
  [ -x "$cache/bin/kubelet" ] || { echo "$cache/bin has no kubelet (scripts/test_cluster.sh build)"; return; }
  [ -w /dev/kmsg ] || { echo "a kubelet reads /dev/kmsg, which is not here"; return; }
  { make_cgroup tessera-cluster-probe && remove_cgroup tessera-cluster-probe; } 2>/dev/null || echo "no cgroups can be made here"
}

# make_cgroup NAME: in every hierarchy, of cgroups version 1 or 2.
make_cgroup() {
  local each
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    sed 's/^/+/; s/ / +/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
    mkdir "/sys/fs/cgroup/$1"
    return
  fi
  for each in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
    [ ! -d "/sys/fs/cgroup/$each" ] || mkdir -p "/sys/fs/cgroup/$each/$1" || return 1
  done
  for each in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$each" >"/sys/fs/cgroup/cpuset/$1/$each" || return 1; done
}

# remove_cgroup NAME: with all that a kubelet has made in it.
remove_cgroup() { find /sys/fs/cgroup -depth -type d -path "*/$1*" -exec rmdir {} + 2>/dev/null || true; }

# make_images: images.tar has the image of deploy/docker with the program that is tested, or CLUSTER_IMAGE; the same with another command,
# for the first container of every pod; and the node problem detector's.
make_images() {
  if [ -n "${CLUSTER_IMAGE:-}" ]; then
    podman tag "$CLUSTER_IMAGE" localhost/tessera:cluster || return
  else
    BUILD=$(dirname "$TESSERA") "$root/deploy/docker/build_local.sh" cluster || return
  fi
  printf 'FROM localhost/tessera:cluster\nENTRYPOINT ["sleep", "infinity"]\nCMD []\n' >pause.docker
  printf 'FROM localhost/tessera:cluster\nUSER 0\nCOPY bin/nodeproblemdetector /node-problem-detector\nCOPY manifests/node-problem-detector /config\n' \
    >node-problem-detector.docker
  local each
  for each in pause node-problem-detector; do
    podman --runtime runc build --quiet --tag "localhost/$each:cluster" --file "$each.docker" "$cache" >images.log || return
  done
  podman save --quiet --multi-image-archive --output images.tar localhost/{tessera,pause,node-problem-detector}:cluster || return
  podman image rm localhost/{pause,node-problem-detector}:cluster >>images.log
}

# start_node INDEX: until it is ready. `kill -KILL $(cat real-INDEX.pid)` is its power failure.
start_node() {
  local node=real-$1 node_address=10.44.0.1$1
  mkdir -p "$node"/{lib/{containerd,kubelet,cni},cni,sysctl}
  certificate "$node" "/O=system:nodes/CN=system:node:$node" "subjectAltName=IP:$node_address" 2>"$node/tls.log"
  sed "s|user: {token: .*}}],|user: {client-certificate: $state/tls/$node.crt, client-key: $state/tls/$node.key}}],|; s|127.0.0.1|$address|" \
    admin.kubeconfig >"$node/kubeconfig"
  cat >"$node/cni/pods.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": false,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.47.$1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
  # Without CAP_SYS_RESOURCE no process may protect itself from the out-of-memory killer, as a pause container wants to.
  cat >"$node/containerd.toml" <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:cluster"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$state/$node/cni"
END
  # The cgroup of its own keeps kubelets from taking each other's pods for leftovers.
  cat >"$node/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
tlsCertFile: $state/tls/$node.crt
tlsPrivateKeyFile: $state/tls/$node.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $state/tls/ca.crt}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup-$node
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: [pods]
clusterDNS: [$address]
clusterDomain: cluster.local
resolvConf: $state/resolv.conf
# Images cannot be pulled again, however full the disk of this machine is.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%"}
nodeStatusUpdateFrequency: 4s
nodeLeaseDurationSeconds: 10
END
  remove_cgroup "$cgroup-$node"
  make_cgroup "$cgroup-$node"

  if [ ! -e "$node.net" ]; then
    : >"$node.net"
    unshare --net="$node.net" ip link set lo up
    ip link add "$node" type veth peer name eth0 netns "$state/$node.net"
    ip link set "$node" master nodes0 up
    ip route add "10.47.$1.0/24" via "$node_address"
    nsenter --net="$node.net" sh -ec "ip address add $node_address/24 dev eth0; ip link set eth0 up; ip route add default via $address
      echo 1 >/proc/sys/net/ipv4/ip_forward"
  fi
  nsenter --net="$node.net" unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
    bash "$here/real_node.sh" "$node" "$node_address" >"$node.log" 2>&1 </dev/null &
  echo $! >"$node.pid"
  disown # whoever kills it knows
  until_true 300 "$node" kubectl wait --for condition=Ready "node/$node" --timeout 1s
}

# For pods: the way to those of another node, the address by which they know the API server, and their names.
start_pod_network() {
  echo 1 >/proc/sys/net/ipv4/ip_forward
  iptables --table nat --append PREROUTING --destination 10.46.0.1 --protocol tcp --dport 443 --jump REDIRECT --to-ports 6443
  printf 'nameserver %s\n' "$address" >resolv.conf
  start dns /usr/bin/python3 "$here/dns.py" "$address"
}
