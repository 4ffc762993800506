# shellcheck shell=bash disable=SC2154 # state, cache, root and here are the script's that sources this
# Sourced by scripts/test_cluster.sh in namespaces of its own: starts etcd, the control plane, JobSet, Kubeflow Trainer and Kueue with their
# webhooks, and kwok. They keep logs, certificates and state in $state, which is the current folder; $cache holds what build.sh made.
address=10.44.0.1
pods=10.45.0.0/16
services=10.46.0.0/16

# start NAME COMMAND...: in the background, with a log. The end of the PID namespace ends it.
start() {
  local name=$1
  shift
  "$@" >"$state/$name.log" 2>&1 </dev/null &
  disown # a test may kill it
}

# until_true SECONDS LOG COMMAND...: repeats a command until it succeeds.
until_true() {
  local end=$((SECONDS + $1)) log=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "error: no success within the time: $*; $state/$log.log:" >&2; tail -20 "$state/$log.log" >&2; exit 1; }
    sleep 0.2
  done
}

# certificate NAME SUBJECT EXTENSION: signed by the cluster's authority.
certificate() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$2" -keyout "tls/$1.key" -out "tls/$1.csr"
  openssl x509 -req -in "tls/$1.csr" -CA tls/ca.crt -CAkey tls/ca.key -CAcreateserial -days 365 -out "tls/$1.crt" \
    -extfile <(echo "$3")
}

kubeconfig() { # NAME TOKEN: NAME.kubeconfig
  cat >"$1.kubeconfig" <<END
{apiVersion: v1, kind: Config, current-context: local, users: [{name: local, user: {token: $2}}],
 clusters: [{name: local, cluster: {server: "https://127.0.0.1:6443", certificate-authority: $state/tls/ca.crt}}],
 contexts: [{name: local, context: {cluster: local, user: local}}]}
END
}

# user NAME GROUP: known by a token, with which kubeconfig() writes the last part of its name.
user() {
  local token
  token=$(openssl rand -hex 16)
  echo "$token,$1,$1,\"$2\"" >>tokens.csv
  kubeconfig "${1##*:}" "$token"
}

start_control_plane() {
  ip link set lo up
  ip link add nodes0 type bridge
  ip address add "$address/24" dev nodes0
  ip link set nodes0 up
  mkdir -p tls
  {
    # The training-operator makes certificates of its own unless it finds some with these names, this form of key and 90 days left.
    openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=authority -keyout tls/ca.pem -out tls/ca.crt \
      -addext subjectAltName=DNS:training-operator-ca
    openssl rsa -traditional -in tls/ca.pem -out tls/ca.key
    certificate tls /CN=server \
      "subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,DNS:training-operator.kubeflow.svc,IP:127.0.0.1,IP:$address,IP:10.46.0.1"
    certificate client /CN=server "" # which kubelets get to see
    openssl genrsa -out tls/accounts.key 2048
  } 2>tls.log
  user admin system:masters
  user system:kube-controller-manager ""
  user system:kube-scheduler ""
  export KUBECONFIG=$state/admin.kubeconfig

  start etcd etcd --data-dir etcd --unsafe-no-fsync --log-level warn --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
    --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380
  # Pods leave a node that does not answer after 5 s instead of 5 minutes.
  start apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 --secure-port 6443 --advertise-address "$address" \
    --tls-cert-file tls/tls.crt --tls-private-key-file tls/tls.key --token-auth-file tokens.csv \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged --service-cluster-ip-range "$services" \
    --service-account-issuer https://kubernetes.default.svc --service-account-key-file tls/accounts.key \
    --service-account-signing-key-file tls/accounts.key --client-ca-file tls/ca.crt --kubelet-certificate-authority tls/ca.crt \
    --kubelet-client-certificate tls/client.crt --kubelet-client-key tls/client.key --kubelet-preferred-address-types InternalIP \
    --default-not-ready-toleration-seconds 5 --default-unreachable-toleration-seconds 5
  until_true 300 apiserver kubectl get --raw /readyz
  start controller-manager kube-controller-manager --kubeconfig kube-controller-manager.kubeconfig --leader-elect=false \
    --service-account-private-key-file tls/accounts.key --root-ca-file tls/ca.crt --use-service-account-credentials \
    --cluster-cidr "$pods" --allocate-node-cidrs --node-monitor-grace-period 12s --authentication-skip-lookup
  start scheduler kube-scheduler --kubeconfig kube-scheduler.kubeconfig --leader-elect=false --authentication-skip-lookup
  until_true 300 controller-manager kubectl get serviceaccount default
}

# controller NAME NAMESPACE ACCOUNT COMMAND...: starts one with the rights of its own service account.
controller() {
  until_true 300 apiserver eval "kubectl create token --namespace $2 $3 --duration 24h >$1.token"
  kubeconfig "$1" "$(cat "$1.token")"
  KUBECONFIG=$state/$1.kubeconfig start "$1" "${@:4}"
}

# apply_release KUSTOMIZATION PORT GROUP: what a release installs, with webhooks at PORT. Ends when all kinds of GROUP are served.
apply_release() {
  kubectl kustomize --load-restrictor LoadRestrictionsNone "$1" 2> >(grep -v deprecated >&2) | /usr/bin/python3 "$here/localize.py" manifests tls/ca.crt "$2" >release.yaml
  # On a machine with much other work a request may take longer than kubectl waits.
  until_true 300 apiserver kubectl apply --server-side --force-conflicts -f release.yaml
  until_true 300 apiserver eval 'kubectl get crd -o name >crds'
  local each
  sed -n "s|.*/\(.*\.$3\)$|\1|p" crds | while read -r each; do until_true 300 apiserver kubectl get --all-namespaces "$each"; done
}

config() { /usr/bin/python3 "$here/localize.py" config "$1" "$2" "$certificates"; }
ready() { until_true 300 "$1" curl -fsS "http://127.0.0.1:$2/readyz"; }

start_controllers() {
  local each
  for each in karpenter karpenter-aws prometheus/monitoring.coreos.com_{podmonitors,prometheusrules}.yaml; do
    until_true 300 apiserver kubectl apply --server-side -f "$cache/manifests/$each"
  done
  for each in jobset-system kubeflow-system kubeflow kueue-system training monitoring; do
    until_true 300 apiserver eval "kubectl get namespace $each || kubectl create namespace $each"
  done
  # With its warnings about pods.
  until_true 300 apiserver kubectl apply --server-side -f "$root/deploy/eks/namespace.yaml"

  # Kubeflow Trainer looks for its certificate below TMPDIR, Kueue for that of its metrics in /etc.
  export TMPDIR=$state/tmp
  certificates=$TMPDIR/k8s-webhook-server/serving-certs
  mkdir -p "$certificates" etc/kueue/metrics trainer
  cp tls/tls.crt tls/tls.key "$certificates"
  cp -r "$certificates" etc/kueue/metrics/certs
  mount -t overlay -o "lowerdir=$state/etc:/etc" overlay /etc

  config "$cache/manifests/jobset/components/manager/controller_manager_config.yaml" 9080 >jobset.yaml
  apply_release "$cache/manifests/jobset/default" 9080 jobset.x-k8s.io
  controller jobset jobset-system jobset-controller-manager jobset --config jobset.yaml

  # Without the JobSet that its own overlay installs.
  config "$cache/manifests/trainer/manager/controller_manager_config.yaml" 9180 >trainer.yaml
  for each in crds rbac webhook; do ln -s "$cache/manifests/trainer/$each" "trainer/$each"; done
  printf 'namespace: kubeflow-system\nresources: [crds, rbac, webhook]\n' >trainer/kustomization.yaml
  apply_release trainer 9180 trainer.kubeflow.org
  ready jobset 9081 # its webhook sees what Kubeflow Trainer creates
  controller trainer kubeflow-system kubeflow-trainer-controller-manager trainer --config trainer.yaml

  start_training_operator

  # Kueue gets the configuration that deploy/eks/up.sh gives it.
  config "$root/deploy/eks/values/kueue.yaml" 9280 >kueue.yaml
  apply_release "$cache/manifests/kueue/default" 9280 kueue.x-k8s.io
  controller kueue kueue-system kueue-controller-manager kueue --config kueue.yaml --feature-gates VisibilityOnDemand=false
  ready trainer 9181
  ready kueue 9281
  ready training-operator 9381
}

# For PyTorchJobs alone. It looks for its certificate in /tmp, and waits for an image that has nslookup before it starts a worker.
start_training_operator() {
  mkdir training-operator
  ln -s "$cache/manifests/training-operator" training-operator/base
  printf 'namespace: kubeflow\nresources: [base]\n' >training-operator/kustomization.yaml
  kubectl create secret generic training-operator-webhook-cert --namespace kubeflow --from-file=ca.crt=tls/ca.crt --from-file=ca.key=tls/ca.key \
    --from-file=tls.crt=tls/tls.crt --from-file=tls.key=tls/tls.key >training-operator.log
  apply_release training-operator 9380 kubeflow.org
  cat >init.yaml <<'END'
- name: init-pytorch
  image: {{.InitContainerImage}}
  command: [sh, -c, 'until getent hosts {{.MasterAddr}}; do sleep 1; done']
  securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
END
  # shellcheck disable=SC2016 # $1 and $2 are the inner shell's
  controller training-operator kubeflow training-operator unshare --mount sh -ec '
    mount --bind "$1" /mnt
    mount -t tmpfs tmpfs /tmp
    mkdir -p "$1" /tmp/k8s-webhook-server
    mount --bind /mnt "$1"
    cp -r "$2" /tmp/k8s-webhook-server/serving-certs
    TMPDIR=/tmp exec training-operator --enable-scheme=pytorchjob --webhook-server-port=9380 --health-probe-bind-address=:9381 \
      --metrics-bind-address=:9382 --pytorch-init-container-image=localhost/tessera:cluster --pytorch-init-container-template-file="$1/init.yaml"' \
    sh "$state" "$certificates"
}

# Nodes that only pretend: their pods are ready at once, and end as a test decides. The annotation kwok.x-k8s.io/node of a node names
# its kwok, of which a test can kill one.
start_fake_nodes() {
  local each
  for each in fake silent; do
    start "kwok-$each" kwok --kubeconfig "$KUBECONFIG" --manage-all-nodes=false --node-lease-duration-seconds 10 --server-address "" \
      --manage-nodes-with-annotation-selector "kwok.x-k8s.io/node=$each" --config "$here/stages.yaml" \
      --config "$cache/manifests/kwok/node/fast/node-initialize.yaml" --config "$cache/manifests/kwok/pod/fast/pod-ready.yaml"
    echo $! >"kwok-$each.pid"
  done
}
