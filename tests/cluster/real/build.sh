#!/usr/bin/env bash
# build.sh CACHE: builds the programs of a set (versions.env) from the Go module proxy into CACHE/bin, and copies the CRDs, roles, webhooks
# and configurations of the same releases to CACHE/manifests. What is there already stays. From nothing it takes 15 minutes of
# processor time, 2 GB of modules and 4 GB of Go's build cache, which are where `go env` says. BUILD_JOBS limits the compilers at a time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/cluster/real/versions.env
. "$here/versions.env"
cache=$1
command -v go >/dev/null || { echo "error: go is not installed: expected Go 1.26 or newer in PATH" >&2; exit 78; }
# GOGC: less time for more memory (2 GB at most).
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOWORK=off GOGC=${GOGC:-300}
# What was made for other versions goes; what Go still has of it takes seconds.
[ "$(cat "$cache/versions" 2>/dev/null)" = "$versions" ] || rm -rf "${cache:?}"/{bin,manifests,module,python,complete}
mkdir -p "$cache/bin" "$cache/manifests" "$cache/module"
echo "$versions" >"$cache/versions"
cd "$cache/module"

# folder MODULE VERSION: where its files are. Of a module that needs a newer Go than this one only files are used.
folder() { go mod download -json "$1@$2" | sed -n 's/.*"Dir": "\(.*\)",/\1/p'; }

# shellcheck disable=SC2153 # versions.env has it
kubernetes=$(cd / && folder k8s.io/kubernetes "$KUBERNETES")
if [ ! -e go.mod ]; then
  go mod init cluster.invalid/set 2>/dev/null
  # Kubernetes finds its own libraries in its repository; here they are the published ones of the same release.
  libraries=$(sed -nE 's|^\s*(k8s.io/\S+) => \./staging/.*|\1|p' "$kubernetes/go.mod")
  # shellcheck disable=SC2046 # a word for each library
  go mod edit $(printf -- "-replace=%s=%s@${KUBERNETES/v1./v0.} " $(for each in $libraries; do echo "$each" "$each"; done)) \
    -require="k8s.io/kubernetes@$KUBERNETES" -require="github.com/kubeflow/trainer/v2@$TRAINER" -require="sigs.k8s.io/jobset@$JOBSET" \
    -require="sigs.k8s.io/kueue@$KUEUE"
fi

# build PACKAGE PROGRAM
build() {
  [ ! -x "$cache/bin/$2" ] || return 0
  echo "building $2"
  local begin=$SECONDS version="k8s.io/component-base/version.gitVersion=$KUBERNETES"
  go build -mod=mod -p "${BUILD_JOBS:-$(nproc)}" -trimpath -ldflags "-s -w -X $version" -o "$cache/bin/$2.part" "$1"
  mv "$cache/bin/$2.part" "$cache/bin/$2"
  echo "built $2 in $((SECONDS - begin)) s"
}

for each in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet; do build "k8s.io/kubernetes/cmd/$each" "$each"; done
build go.etcd.io/etcd/server/v3 etcd
build github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager trainer
build sigs.k8s.io/kueue/cmd/kueue kueue

# build_apart PROGRAM PACKAGE MODULE VERSION [TAGS]: with the libraries of its own release.
build_apart() {
  [ ! -x "$cache/bin/$1" ] || return 0
  echo "building $1"
  local begin=$SECONDS
  mkdir -p "$cache/modules/$1"
  (
    cd "$cache/modules/$1"
    rm -f go.mod go.sum
    go mod init cluster.invalid/apart 2>/dev/null
    go mod edit -require="$3@$4"
    go build -mod=mod -p "${BUILD_JOBS:-$(nproc)}" -trimpath -ldflags "-s -w" -tags "${5:-}" -o "$cache/bin/$1.part" "$2"
    mv "$cache/bin/$1.part" "$cache/bin/$1"
  )
  echo "built $1 in $((SECONDS - begin)) s"
}
# Kueue 0.17 has a newer controller-runtime than JobSet 0.11 builds with.
build_apart jobset sigs.k8s.io/jobset sigs.k8s.io/jobset "$JOBSET"
build_apart kwok sigs.k8s.io/kwok/cmd/kwok sigs.k8s.io/kwok "$KWOK"
build_apart training-operator github.com/kubeflow/training-operator/cmd/training-operator.v1 github.com/kubeflow/training-operator "$TRAINING_OPERATOR"
build_apart nodeproblemdetector k8s.io/node-problem-detector/cmd/nodeproblemdetector k8s.io/node-problem-detector "$NODE_PROBLEM_DETECTOR" \
  disable_stackdriver_exporter

# files NAME MODULE VERSION PATH: a copy of a folder of a release.
files() {
  [ ! -d "$cache/manifests/$1" ] || return 0
  cp -r "$(cd / && folder "$2" "$3")/$4" "$cache/manifests/$1.part"
  chmod -R u+w "$cache/manifests/$1.part"
  mv "$cache/manifests/$1.part" "$cache/manifests/$1"
}
files jobset sigs.k8s.io/jobset "$JOBSET" config
files trainer github.com/kubeflow/trainer/v2 "$TRAINER" manifests/base
files kueue sigs.k8s.io/kueue "$KUEUE" config
files node-problem-detector k8s.io/node-problem-detector "$NODE_PROBLEM_DETECTOR" config
files kwok sigs.k8s.io/kwok "$KWOK" kustomize/stage
files training-operator github.com/kubeflow/training-operator "$TRAINING_OPERATOR" manifests/base
files karpenter sigs.k8s.io/karpenter "$KARPENTER" pkg/apis/crds
files karpenter-aws github.com/aws/karpenter-provider-aws "$KARPENTER_AWS" pkg/apis/crds
files prometheus github.com/prometheus-operator/prometheus-operator "$PROMETHEUS_OPERATOR" example/prometheus-operator-crd

# With Python's packages of the SDK.
if [ ! -e "$cache/python/complete" ]; then
  /usr/bin/python3 -m venv "$cache/python"
  "$cache/python/bin/pip" install --quiet --disable-pip-version-check "kubeflow==$KUBEFLOW_SDK"
  : >"$cache/python/complete"
fi
: >"$cache/complete"
