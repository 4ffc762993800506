#!/usr/bin/env bash
# test_cluster.sh [STAGE...]: applies what `tessera deploy` writes to a real Kubernetes control plane with Kubeflow Trainer, JobSet and Kueue,
# all processes of this machine. Nothing is left of them afterwards, and nothing is reached outside: they run in namespaces of their own
# (network, mounts, processes). Needs root. The stages:
#
#   build    builds control plane and controllers into the cache (tests/cluster/real/build.sh), unless they are there
#   apply    every kind of manifest: server-side dry run with strict fields and no warning
#   behave   in earnest, on nodes that kwok pretends: pods, gangs, exit codes, budgets, lost nodes, applying again
#   shell    a shell beside the running cluster
#
# Without STAGE: build, apply and behave. Without `build`, programs that are not in the cache are a reason to skip.
# CLUSTER_SET=v2.1|v2.2|v2.3 chooses the versions (versions.env), TESSERA the program (build/release/tessera); the cache is
# ${XDG_CACHE_HOME:-~/.cache}/tessera-cluster. KEEP=DIR keeps logs and manifests there; CLUSTER_ONLY=REGEX limits `behave` to some
# scenarios.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
here=$root/tests/cluster/real
# shellcheck source=tests/cluster/real/versions.env
. "$here/versions.env"
cache=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tessera-cluster/$CLUSTER_SET}
[ $# != 0 ] || set -- build apply behave
stages=("$@")
for stage in "${stages[@]}"; do
  [[ $stage =~ ^(build|apply|behave|shell)$ ]] || { echo "error: expected build, apply, behave or shell, found '$stage'" >&2; exit 64; }
done
skip() {
  echo "skipped: $*"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
}

if [ -z "${CLUSTER_STATE:-}" ]; then
  # Outside of the namespaces: what has to be there, and what is to be removed.
  wanted=("${stages[@]}") stages=()
  for stage in "${wanted[@]}"; do
    if [ "$stage" = build ]; then "$here/build.sh" "$cache"; else stages+=("$stage"); fi
  done
  [ ${#stages[@]} != 0 ] || exit 0
  [[ -e $cache/complete && $(cat "$cache/versions") == $(sha256sum <"$here/versions.env") ]] || skip "no programs of set $CLUSTER_SET in $cache: scripts/test_cluster.sh build makes them, in about half an hour"
  [ "$(id -u)" = 0 ] || skip "namespaces need root"
  TESSERA=$(realpath "${TESSERA:-$root/build/release/tessera}")
  CLUSTER_STATE=$(mktemp -d "${TMPDIR:-/tmp}/tessera-cluster-XXXXXX")
  export TESSERA CLUSTER_STATE CLUSTER_CACHE=$cache CLUSTER_SET
  child=
  clean_up() {
    # The end of the first process in the namespace ends all others in it, by SIGKILL.
    [ -z "$child" ] || { kill -KILL "$child"; wait "$child"; } 2>/dev/null || true
    [ -z "${KEEP:-}" ] || { mkdir -p "$KEEP" && cp -r "$CLUSTER_STATE"/*.log "$CLUSTER_STATE/manifests" "$KEEP"; } || true
    rm -rf "$CLUSTER_STATE"
  }
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "${stages[@]}" <&0 &
  child=$!
  status=0
  wait "$child" || status=$?
  child=
  exit "$status"
fi

state=$CLUSTER_STATE
cd "$state"
export PATH=$cache/bin:$PATH HOME=$state CHECKS=$state/checks CLUSTER_ROOT=$root PYTHONDONTWRITEBYTECODE=1
: >"$CHECKS"
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
# shellcheck source=tests/cluster/real/control_plane.sh
. "$here/control_plane.sh"
begin=$SECONDS
start_control_plane
start_controllers
start_fake_nodes
echo "Kubernetes $KUBERNETES, JobSet $JOBSET, Kubeflow Trainer $TRAINER, Kueue $KUEUE: up in $((SECONDS - begin)) s"
run() { # STAGE
  case $1 in
    shell) bash --norc || true ;;
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
count() { grep -c "^$1" "$CHECKS" || true; }
echo "$(count ok) passed, $(count FAILED) failed, $(count skipped) skipped"
[ "$(count FAILED)" = 0 ]
