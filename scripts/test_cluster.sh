#!/usr/bin/env bash
# test_cluster.sh [STAGE...]: applies what `tessera deploy` writes to a real Kubernetes control plane with Kubeflow Trainer, JobSet and Kueue,
# all processes of this machine. Nothing is left of them afterwards, and nothing is reached outside: they run in namespaces of their own
# (network, mounts, processes). Needs root. The stages:
#
#   build    builds control plane and controllers into the cache (tests/cluster/real/build.sh), unless they are there
#   page     docs/kubernetes.md as a reader follows it: its commands in their order, on nodes that kwok pretends
#   apply    every kind of manifest: server-side dry run with strict fields and no warning
#   behave   in earnest, on nodes that kwok pretends: pods, gangs, exit codes, budgets, lost nodes, applying again
#   train    on nodes that run pods (kubelet, containerd): training that is killed, drained and lost, and the health of nodes
#   shell    a shell beside the running cluster
#
# Without STAGE: build, page, apply, behave and train. Without `build`, programs that are not in the cache are a reason to skip.
# CLUSTER_SET=v2.1|v2.2|v2.3 chooses the versions (versions.env), TESSERA the program (build/release/tessera); the cache is
# ${XDG_CACHE_HOME:-~/.cache}/tessera-cluster. KEEP=DIR keeps logs and manifests there; CLUSTER_ONLY=REGEX limits `behave` and `train` to some
# scenarios; CLUSTER_IMAGE is an image that podman has, in place of a new one.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
here=$root/tests/cluster/real
# shellcheck source=tests/cluster/real/versions.env
. "$here/versions.env"
cache=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera-cluster/$CLUSTER_SET}
[ $# != 0 ] || set -- build page apply behave train
stages=("$@")
for stage in "${stages[@]}"; do
  [[ $stage =~ ^(build|page|apply|behave|train|shell)$ ]] || { echo "error: expected build, page, apply, behave, train or shell, found '$stage'" >&2; exit 64; }
done
skip() {
  echo "skipped: $*"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}
count() { grep -c "^$1" "$CHECKS" || true; }
summary() { echo "$(count ok) passed, $(count FAILED) failed, $(count skipped) skipped"; }

if [ -z "${CLUSTER_STATE:-}" ]; then
  # Outside of the namespaces: what has to be there, and what is to be removed.
  wanted=("${stages[@]}") stages=()
  for stage in "${wanted[@]}"; do
    if [ "$stage" = build ]; then "$here/build.sh" "$cache"; else stages+=("$stage"); fi
  done
  [ ${#stages[@]} != 0 ] || exit 0
  [[ -e $cache/complete && $(cat "$cache/versions") == "$versions" ]] || skip "no programs of set $CLUSTER_SET in $cache: scripts/test_cluster.sh build makes them, in about half an hour"
  [ "$(id -u)" = 0 ] || skip "namespaces need root"
  TESSERA=$(realpath "${TESSERA:-$root/build/release/tessera}")
  CLUSTER_STATE=$(mktemp -d "${TMPDIR:-/tmp}/tessera-cluster-XXXXXX")
  KEEP=${KEEP:+$(realpath -m "$KEEP")}
  export TESSERA CLUSTER_STATE CLUSTER_CACHE=$cache CLUSTER_SET CHECKS=$CLUSTER_STATE/checks
  : >"$CHECKS"
  # shellcheck source=tests/cluster/real/real_nodes.sh
  . "$here/real_nodes.sh"
  child=
  clean_up() {
    # The end of the first process in the namespace ends all others in it, by SIGKILL.
    [ -z "$child" ] || { kill -KILL "$child"; wait "$child"; } 2>/dev/null || true
    remove_cgroup "$(basename "$CLUSTER_STATE")"
    [ -z "$KEEP" ] || { mkdir -p "$KEEP" && cp -r "$CLUSTER_STATE"/*.log "$CLUSTER_STATE"/manifests* "$KEEP"; } 2>/dev/null || true
    rm -rf "$CLUSTER_STATE"
  }
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  if [[ " ${stages[*]} " == *" train "* ]]; then
    missing=$(missing_for_nodes)
    [ -n "$missing" ] || make_images || { [ $? = 74 ] && missing="Debian's packages, of which the image is made, cannot be had"; } || exit 1
    if [ -n "$missing" ]; then
      echo "skipped train: $missing" | tee -a "$CHECKS"
      wanted=("${stages[@]}") stages=()
      for stage in "${wanted[@]}"; do [ "$stage" = train ] || stages+=("$stage"); done
      [ ${#stages[@]} != 0 ] || { summary; exit 0; }
    fi
  fi
  unshare --net --mount --pid --fork --kill-child --mount-proc "$root/scripts/test_cluster.sh" "${stages[@]}" <&0 &
  child=$!
  status=0
  wait "$child" || status=$?
  child=
  exit "$status"
fi

# shellcheck source=tests/cluster/real/real_nodes.sh
. "$here/real_nodes.sh"
export PATH=$cache/bin:$PATH HOME=$state CLUSTER_ROOT=$root PYTHONDONTWRITEBYTECODE=1
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
begin=$SECONDS
start_control_plane
start_controllers
start_fake_nodes
echo "Kubernetes $KUBERNETES, JobSet $JOBSET, Kubeflow Trainer $TRAINER, Kueue $KUEUE: up in $((SECONDS - begin)) s"
run() { # STAGE
  case $1 in
    shell) bash --norc || true ;;
    train)
      start_pod_network
      start_node 0
      start_node 1
      /usr/bin/python3 "$here/train_check.py"
      ;;
    *) /usr/bin/python3 "$here/$1_check.py" ;;
  esac
}
for stage in "${stages[@]}"; do
  begin=$SECONDS
  # In a subshell, where `set -e` keeps its effect.
  set +e
  (set -e; run "$stage")
  [ $? = 0 ] || echo "FAILED  the stage $stage ends early" | tee -a "$CHECKS"
  set -e
  echo "$stage: $((SECONDS - begin)) s"
done
summary
[ "$(count FAILED)" = 0 ]
