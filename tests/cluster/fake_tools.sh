#!/bin/sh
# aws, eksctl, kubectl, helm, terraform and tessera for up.sh and down.sh, by the name under which this is called. Files in
# $FAKE/cloud are what exists. $FAKE/calls has every call, $FAKE/changes those that changed something. With $FAKE/mode
# "before" each call fails the first time it is made, with "after" each changing call has its effect then and fails
# nonetheless; without that file nothing fails.
# They refuse what the real ones refuse: creating twice, a chart's objects without the chart, deleting in the wrong order.
# shellcheck disable=SC2015,SC2100 # A && B || C: only A can fail here
set -u
cloud=$FAKE/cloud
tool=${0##*/}
call="$tool $*"
printf '%s\n' "$call" >>"$FAKE/calls"
mode=
[ ! -f "$FAKE/mode" ] || read -r mode <"$FAKE/mode"
first=
if [ -n "$mode" ] && ! grep -qxF -- "$call" "$FAKE/seen"; then
  printf '%s\n' "$call" >>"$FAKE/seen"
  first=yes
fi
refuse() {
  echo "$tool: $*" >&2
  exit 1
}
has() { [ -e "$cloud/$1" ]; }
# changed: to be called before a change. What is half done when a call fails is made by what precedes it.
changed() {
  if [ -n "$first" ]; then
    [ "$mode" = after ] || refuse "fails as told"
    trap 'echo "$tool: fails after its work, as told" >&2; exit 1' EXIT
  fi
  printf '%s\n' "$call" >>"$FAKE/changes"
}
[ -z "$first" ] || [ "$mode" != before ] || case $call in
  'terraform '*apply*) echo partial >"$cloud/network" && refuse "fails as told" ;;
  'eksctl create cluster'*) has cluster || { : >"$cloud/stack" && refuse "fails as told"; } ;;
  'eksctl delete cluster'*) rm -f "$cloud/nodegroup" && refuse "fails as told" ;;
  'helm upgrade --install '*)
    [ -e "$cloud/helm_$4" ] && pending=pending-upgrade || pending=pending-install
    echo "$pending" >"$cloud/pending_$4"
    refuse "fails as told"
    ;;
  *) refuse "fails as told" ;;
esac

addons='aws-ebs-csi-driver coredns'
show() { [ ! -e "$cloud/$1" ] || cat "$cloud/$1"; }
digest_of() { cksum | tr ' ' -; }

aws_call() {
  while :; do
    case ${1-} in --region | --output) shift 2 ;; *) break ;; esac
  done
  case "$1 $2" in
    'sts get-caller-identity') echo 111122223333 ;;
    'iam list-roles') show spot_role ;;
    'iam create-service-linked-role') has spot_role && refuse "exists" || { changed && echo AWSServiceRoleForEC2Spot >"$cloud/spot_role"; } ;;
    'iam list-instance-profiles') show profile ;;
    'iam remove-role-from-instance-profile') changed ;;
    'iam delete-instance-profile') changed && rm -f "$cloud/profile" ;;
    'eks list-clusters') has cluster && echo demo || true ;;
    'eks wait') has cluster || refuse "no cluster" ;;
    'eks list-addons') show addons ;;
    'eks list-access-entries') show access_entry ;;
    'eks list-pod-identity-associations') case "$*" in *loki*) show loki_identity ;; *) show pod_identity ;; esac ;;
    'eks create-pod-identity-association')
      has loki_identity && refuse "exists"
      has cluster || refuse "no cluster"
      case "$*" in *'--role-arn arn:aws:iam::111122223333:role/demo-loki') ;; *) refuse "the role: $*" ;; esac
      changed && echo loki_identity >"$cloud/loki_identity"
      ;;
    'iam get-role') has network && echo "arn:aws:iam::111122223333:role/$4" || refuse "NoSuchEntity" ;;
    'eks list-nodegroups') show nodegroup ;;
    'eks update-kubeconfig') has cluster || refuse "no cluster" ;;
    'cloudformation list-stacks') case "$*" in *starts_with*) show stack_left ;; *) has stack && echo stack-id || true ;; esac ;;
    'cloudformation delete-stack') changed && rm -f "$cloud/stack" "$cloud/stack_left" ;;
    'cloudformation wait') has stack && refuse "still there" || true ;;
    'ec2 describe-instances') show instance ;;
    'ec2 terminate-instances') changed && rm -f "$cloud/instance" ;;
    'ec2 wait') has instance && refuse "still there" || true ;;
    'ec2 describe-volumes') show volume ;;
    'ec2 delete-volume') changed && [ -e "$FAKE/in_use" ] || rm -f "$cloud/volume" ;;
    'ec2 describe-network-interfaces') show interface ;;
    'ec2 delete-network-interface') changed && rm -f "$cloud/interface" ;;
    'ec2 describe-security-groups') show group ;;
    'ec2 delete-security-group') changed && rm -f "$cloud/group" ;;
    'ec2 describe-nat-gateways' | 'ec2 describe-addresses') has network && echo of-the-network || true ;;
    'resourcegroupstaggingapi get-resources') show balancer ;;
    'elbv2 delete-load-balancer') changed && rm -f "$cloud/balancer" ;;
    'fsx describe-file-systems') has network && echo fs-1 || true ;;
    'efs describe-file-systems' | 'logs describe-log-groups') ;;
    's3api list-buckets') show bucket ;;
    *) refuse "unknown call: $*" ;;
  esac
}

eksctl_call() {
  case "$1 $2" in
    'create cluster')
      has stack && refuse "stack exists"
      has network || refuse "no VPC"
      changed
      : >"$cloud/stack"
      : >"$cloud/cluster"
      # Interrupted half-way, with a control plane and one addon.
      if [ -n "$first" ]; then
        echo coredns >"$cloud/addons"
        return
      fi
      printf '%s\n' "$addons" >"$cloud/addons"
      for part in nodegroup access_entry pod_identity; do echo "$part" >"$cloud/$part"; done
      ;;
    'create addon') changed && printf '%s\n' "$addons" >"$cloud/addons" ;;
    'create nodegroup') has nodegroup && refuse "exists" || { changed && echo nodegroup >"$cloud/nodegroup"; } ;;
    'create accessentry') has access_entry && refuse "exists" || { changed && echo access_entry >"$cloud/access_entry"; } ;;
    'create podidentityassociation') has pod_identity && refuse "exists" || { changed && echo pod_identity >"$cloud/pod_identity"; } ;;
    'delete cluster')
      has cluster || refuse "no cluster"
      for costs in applied_nodes.yaml applied_card_nodes.yaml service claims volumes; do
        has "$costs" && refuse "$costs is still there, and would stay"
      done
      changed
      rm -f "$cloud"/cluster "$cloud"/stack "$cloud"/addons "$cloud"/nodegroup "$cloud"/access_entry "$cloud"/pod_identity \
        "$cloud"/loki_identity \
        "$cloud"/helm_* "$cloud"/applied_*
      ;;
    *) refuse "unknown call: $*" ;;
  esac
}

helm_call() {
  case $1 in
    list)
      release=$(printf '%s' "$5" | tr -d '^$')
      case "$*" in
        *--pending*) show "pending_$release" ;;
        *) ! grep -qxF "$7" "$cloud/helm_$release" 2>/dev/null || echo "$release" ;;
      esac
      ;;
    upgrade)
      has nodegroup || refuse "no nodes"
      has "pending_$3" && refuse "another operation is in progress"
      changed
      while [ "$1" != --labels ]; do [ "$1" != --install ] || release=$2; shift; done
      echo "$2" >"$cloud/helm_$release"
      ;;
    uninstall | rollback) changed && rm -f "$cloud/pending_$2" ;;
    *) refuse "unknown call: $*" ;;
  esac
}

file_of() {
  while [ "$1" != -f ]; do shift; done
  echo "$2"
}
kubectl_call() {
  case "$1 ${2-}" in
    'diff '* | 'apply '*)
      file=$(file_of "$@")
      if [ "$file" = - ]; then
        text=$(cat)
        case $text in *hf_*) name=hf-token ;; *) name=tessera-metrics ;; esac
        digest=given
      else
        name=${file##*/}
        digest=$(digest_of <"$file")
      fi
      if [ "$1" = diff ]; then
        [ "$(show "applied_$name")" = "$digest" ] || exit 1
        return
      fi
      case $name in
        nodes.yaml | card_nodes.yaml) needs=karpenter ;;
        runtime.yaml | card_runtime.yaml) needs=kubeflow-trainer ;;
        queue.yaml | card_queue.yaml) needs=kueue ;;
        alerts.yaml) needs=monitoring ;;
        *) needs='' ;;
      esac
      [ -z "$needs" ] || has "helm_$needs" || refuse "no matches for kind of $name"
      changed
      echo "$digest" >"$cloud/applied_$name"
      ;;
    'create secret') cat ;;
    'kustomize '*) echo '  image: tessera' ;;
    'get secret') has "applied_$3" && echo secret || true ;;
    'get crd') has helm_karpenter && echo crd || true ;;
    'get services') show service ;;
    'delete service') changed && rm -f "$cloud/service" ;;
    'delete nodepools.karpenter.sh') changed && rm -f "$cloud/applied_nodes.yaml" "$cloud/applied_card_nodes.yaml" ;;
    'delete nodeclaims.karpenter.sh') has applied_nodes.yaml && refuse "Karpenter starts new nodes" || { changed && rm -f "$cloud/instance"; } ;;
    'delete ec2nodeclasses.karpenter.k8s.aws') has instance && refuse "in use" || { changed && rm -f "$cloud/profile"; } ;;
    'delete persistentvolumeclaims') has instance && refuse "in use" || { changed && rm -f "$cloud/claims"; } ;;
    'delete persistentvolumes') has claims && refuse "bound" || { changed && rm -f "$cloud/volumes"; } ;;
    delete*) has cluster || refuse "no cluster" && changed ;;
    *) refuse "unknown call: $*" ;;
  esac
}

terraform_call() {
  shift # -chdir
  case "$*" in
    *"-backend-config=path="*)
      for argument; do :; done
      printf '%s' "${argument#*path=}" >"$FAKE/state_path"
      ;;
    plan*)
      vars=$(printf '%s\n' "$@" | grep '^-var=' | digest_of)
      for argument; do case $argument in -out=*) echo "$vars" >"${argument#-out=}" ;; esac; done
      [ "$(show network)" = "$vars" ] || exit 2
      ;;
    apply*)
      for argument; do :; done
      changed
      cp "$argument" "$cloud/network"
      echo state >"$(cat "$FAKE/state_path")"
      echo tessera-demo >"$cloud/bucket"
      ;;
    output*) has network && echo '{}' || refuse "no outputs" ;;
    'state list') has network && echo aws_vpc.this && { ! has bucket || echo 'aws_s3_bucket.data[0]'; } || true ;;
    'state rm'*) changed && mv "$cloud/bucket" "$FAKE/kept_bucket" ;;
    destroy*)
      for blocking in cluster stack_left instance interface group profile balancer; do
        has "$blocking" && refuse "DependencyViolation: $blocking"
      done
      changed
      rm -f "$cloud/network" "$cloud/bucket"
      ;;
    *) refuse "unknown call: $*" ;;
  esac
}

tessera_call() {
  case "$*" in
    *'--part eksctl'*) printf 'addons:\n  - name: coredns\n  - name: aws-ebs-csi-driver\nmanagedNodeGroups:\n' ;;
    'deploy queue --instance foo '*) refuse "unknown instance type 'foo'" ;;
    'deploy queue --device cuda '*)
      # The quota has as many cards as nodes.
      printf '%s\n# With 256 vCPUs in all, at 30.31 USD an hour on demand.\n- name: "nvidia.com/gpu"\n  nominalQuota: %s\n' "$*" "${call##* }"
      ;;
    'deploy queue '*) printf '%s\n# With 256 vCPUs in all, at 16.93 USD an hour on demand.\n' "$*" ;;
    *) echo "$*" ;;
  esac
}

# "aws" has its own name in the shell's way: the functions end in _call.
"${tool}_call" "$@"
