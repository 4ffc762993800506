#!/usr/bin/env bash
# up.sh: creates an EKS cluster for training with Tessera, from the network to the queue. Every step first checks whether it is
# done: running it again continues after a failure, and changes nothing once everything exists. See docs/eks.md.
# shellcheck source=deploy/eks/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

help() {
  cat <<'HELP'
usage: up.sh --name NAME --region REGION --image IMAGE [options]
  --image IMAGE             the program's image, for the node check: REGISTRY/tessera:TAG
  --zone ZONE               of the training nodes and their file system (the region's first)
  --storage fsx|efs|s3      Lustre with a bucket behind it, NFS, or a disk for one node and a bucket to read from (fsx)
  --fsx-capacity GIB        1200 or a multiple of 2400 (1200, or as large as it is); it can only grow
  --fsx-efa                 a file system that nodes with --efa can reach by EFA, too: 4800 GiB or a multiple, 1000 MB/s per TiB
  --bucket BUCKET           an existing bucket with data; otherwise one is created (fsx, s3)
  --trainer VERSION         2.1.0 (with Kueue 0.15.2) or 2.2.0 (with Kueue 0.19.2) (2.1.0)
  --instance TYPE, --nodes N  the queue's quota (r7i.16xlarge, 4)
  --spot-only               no on-demand nodes when spot capacity runs out
  --efa                     only sizes with an EFA card, and the plugin that gives its interfaces to pods
  --cards N                 also nodes with NVIDIA cards, at most N cards in total, with their queue training-gpu (none)
  --card-instance TYPE, --card-nodes N  that queue's quota (g6e.16xlarge, as many as N cards make)
  --card-image IMAGE        the program's image for them, built with --build-arg PRESET=cuda
  --max-vcpus N             the most that Karpenter may start in total (1024, or what the queue's quota needs)
  --public-access-cidr CIDR network that can reach the API server (0.0.0.0/0)
  --no-monitoring           without Prometheus and Grafana
  --logs                    also Loki, with the jobs' logs in a bucket of its own for 30 days; stays on once it is
  --state DIR               Terraform's state, kubeconfig, rendered files (~/.local/state/tessera/eks/NAME)
  --dry-run                 show every command, run none
  --yes                     do not ask
HF_TOKEN in the environment becomes the Secret hf-token, which jobs read; an existing one is left unchanged.
HELP
}

# Only kubectl gets the token, through a pipe.
token=${HF_TOKEN:-}
unset HF_TOKEN
image='' zone='' storage=fsx fsx_capacity='' fsx_efa='' bucket='' trainer=2.1.0 instance=r7i.16xlarge nodes=4 spot_only='' efa=''
max_vcpus='' public_access_cidr=0.0.0.0/0 monitoring=yes logs='' cards='' card_instance=g6e.16xlarge card_nodes='' card_image=''
while [ $# -gt 0 ]; do
  option=${1//_/-}
  if common_option "$option" "${2-}"; then
    shift "$shifted" 2>/dev/null || usage_error "$1: a value is missing"
    continue
  fi
  shifted=2
  case $option in
    --image) image=${2-} ;;
    --zone) zone=${2-} ;;
    --storage) storage=${2-} ;;
    --fsx-capacity) fsx_capacity=${2-} ;;
    --bucket) bucket=${2-} ;;
    --trainer) trainer=${2#v} ;;
    --instance) instance=${2-} ;;
    --nodes) nodes=${2-} ;;
    --max-vcpus) max_vcpus=${2-} ;;
    --public-access-cidr) public_access_cidr=${2-} ;;
    --spot-only) spot_only=yes shifted=1 ;;
    --efa) efa=yes shifted=1 ;;
    --fsx-efa) fsx_efa=yes shifted=1 ;;
    --cards) cards=${2-} ;;
    --card-instance) card_instance=${2-} ;;
    --card-nodes) card_nodes=${2-} ;;
    --card-image) card_image=${2-} ;;
    --no-monitoring) monitoring='' shifted=1 ;;
    --logs) logs=yes shifted=1 ;;
    --help | -h) help && exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
  shift "$shifted" 2>/dev/null || usage_error "$1: a value is missing"
done
check_common
[[ $image =~ ^[A-Za-z0-9][A-Za-z0-9._/:@-]*$ ]] || usage_error "--image: expected REGISTRY/NAME:TAG, found '$image'"
[[ $storage =~ ^(fsx|efs|s3)$ ]] || usage_error "--storage: expected fsx, efs or s3, found '$storage'"
# The bucket that Terraform makes; account numbers have 12 digits.
new_bucket=tessera-$name-000000000000-$region
[ "$storage" = efs ] || [ -n "$bucket" ] || [ ${#new_bucket} -le 63 ] ||
  usage_error "--name: with --storage $storage at most $((63 - ${#new_bucket} + ${#name})) characters in $region, or S3 takes no bucket of that \
name; or give --bucket"
[ -z "$logs" ] || [ -n "$monitoring" ] || usage_error "--logs: Grafana shows them: leave out --no-monitoring"
[ -z "$logs" ] || [ ${#new_bucket} -le 58 ] ||
  usage_error "--logs: needs a name of at most $((58 - ${#new_bucket} + ${#name})) characters in $region, or S3 takes no bucket of that name"
[ -z "$cards" ] || [[ $card_image =~ ^[A-Za-z0-9][A-Za-z0-9._/:@-]*$ ]] ||
  usage_error "--card-image: expected REGISTRY/NAME:TAG, found '$card_image'"
for number in "${fsx_capacity:-1}" "$nodes" "${max_vcpus:-1}" "${cards:-1}" "${card_nodes:-1}"; do
  [[ $number =~ ^[1-9][0-9]{0,6}$ ]] || usage_error "expected a number from 1 on, found '$number'"
done
case $trainer in
  2.1.0) kueue=0.15.2 ;;
  2.2.0) kueue=0.19.2 ;;
  *) usage_error "--trainer: expected 2.1.0 or 2.2.0, found '$trainer'" ;;
esac
[ -z "$fsx_efa" ] || [[ $storage = fsx && -n $efa ]] || usage_error "--fsx-efa: is for --storage fsx and nodes with --efa"
[ -z "$fsx_efa" ] || [ -z "$fsx_capacity" ] || ((fsx_capacity % 4800 == 0)) ||
  usage_error "--fsx-capacity: with --fsx-efa expected a multiple of 4800, found $fsx_capacity"
[ -z "$fsx_capacity" ] || [ "$fsx_capacity" = 1200 ] || ((fsx_capacity % 2400 == 0)) ||
  usage_error "--fsx-capacity: expected 1200 or a multiple of 2400, found $fsx_capacity"
karpenter=1.8.1 prometheus_stack=80.4.1 loki=6.46.0 alloy=1.4.0 nvidia_device_plugin=0.17.1 efa_device_plugin=v0.5.7
# How many vCPUs the queue's quota is, and what they cost; "" in a dry run without the program.
queue=(tessera deploy queue --instance "$instance" --nodes "$nodes")
quota=
if command -v tessera >/dev/null; then
  quota=$("${queue[@]}" 2>&1) || usage_error "${quota#error: }"
fi
vcpus=$(sed -n 's/^ *# With \([0-9]*\) vCPUs.*/\1/p' <<<"$quota")
training_usd=$(sed -n 's/^ *# With .* at \([0-9.]*\) USD.*/\1/p' <<<"$quota")
[ -z "$max_vcpus" ] || ((max_vcpus >= ${vcpus:-0})) ||
  usage_error "--max-vcpus $max_vcpus: the quota of $nodes x $instance is $vcpus vCPUs, which jobs would wait for in vain"
max_vcpus=${max_vcpus:-$((${vcpus:-0} > 1024 ? vcpus : 1024))}

# The same of nodes with cards, one card a pod.
card_queue=(tessera deploy queue --device cuda --instance "$card_instance" --nodes "${card_nodes:-${cards:-1}}")
if [ -n "$cards" ] && command -v tessera >/dev/null; then
  quota=$("${card_queue[@]}" 2>&1) || usage_error "${quota#error: }"
  quota_cards=$(sed -n '/nvidia.com\/gpu/{n;s/.*nominalQuota: //;s/"//g;s/k$/000/;p}' <<<"$quota")
  card_vcpus=$(sed -n 's/^ *# With \([0-9]*\) vCPUs.*/\1/p' <<<"$quota")
  ((cards >= quota_cards)) ||
    usage_error "--cards $cards: ${card_nodes:-$cards} x $card_instance have $quota_cards, which jobs would wait for in vain"
fi

check_tools aws eksctl kubectl helm terraform tessera
account=$(ask aws sts get-caller-identity --query Account --output text)
say "cluster $name in $region, account ${account:-unknown}; state in $state"
# A smaller file system would be a new one: Terraform would delete this one and all that is on it.
present_capacity=$(remembered fsx_capacity)
fsx_capacity=${fsx_capacity:-${present_capacity:-$([ -n "$fsx_efa" ] && echo 4800 || echo 1200)}}
[ "$storage" != fsx ] || ((fsx_capacity >= ${present_capacity:-0})) ||
  die "--fsx-capacity $fsx_capacity: the file system has $present_capacity GiB, and a smaller one would replace it with an empty one" 78
# Without it Terraform would delete the logs.
logs=${logs:-$(remembered logs)}
[ -z "$logs" ] || say "logs: a disk of 20 GiB, 2 USD a month, and 0.023 USD per GB and month in the bucket"
cost_line "$storage${fsx_efa:+-efa}" "$fsx_capacity" "$nodes x $instance" "$training_usd"
confirm "This starts to cost money."

# With another storage, zone or way to reach it Terraform would delete the file system and all that is on it.
settings="storage=$storage bucket=$bucket zone=$zone${fsx_efa:+ fsx_efa=yes}"
present_settings=$(remembered settings)
if [ -n "$present_settings" ] && [ "$present_settings" != "$settings" ]; then
  die "this cluster was made with $present_settings, not $settings: changing it would delete the data; give the same \
options again, or down.sh first" 78
fi
if [ -z "$dry_run" ]; then
  echo "$settings" >"$state/settings"
  echo "$region" >"$state/region"
  [ -z "$logs" ] || echo "$logs" >"$state/logs"
  [ "$storage" != fsx ] || echo "$fsx_capacity" >"$state/fsx_capacity"
fi

say "== network, storage, roles"
variables=("-var=name=$name" "-var=region=$region" "-var=zone=$zone" "-var=storage=$storage" "-var=bucket=$bucket"
  "-var=fsx_capacity_gib=$fsx_capacity" "-var=efa=$([ -n "$efa" ] && echo true || echo false)"
  "-var=fsx_efa=$([ -n "$fsx_efa" ] && echo true || echo false)" "-var=logs=$([ -n "$logs" ] && echo true || echo false)")
terraform_init
say "+ terraform -chdir=$state/terraform plan ${variables[*]}"
planned=2
if [ -z "$dry_run" ]; then
  planned=0
  terraform "-chdir=$state/terraform" plan -input=false -detailed-exitcode "-out=$state/plan" "${variables[@]}" >&3 || planned=$?
fi
case $planned in
  0) say "unchanged" ;;
  2) run terraform "-chdir=$state/terraform" apply -input=false "$state/plan" ;;
  *) die "terraform plan failed: see above" ;;
esac
write "$state/outputs.json" terraform "-chdir=$state/terraform" output -json

if [ -z "$(aws_ iam list-roles --path-prefix /aws-service-role/spot.amazonaws.com/ --query 'Roles[].RoleName')" ]; then
  run aws iam create-service-linked-role --aws-service-name spot.amazonaws.com
fi

say "== cluster"
deploy=(tessera deploy cluster --infrastructure "$state/outputs.json")
write "$state/cluster.yaml" "${deploy[@]}" --part eksctl --public_access_cidr "$public_access_cidr"
if [ -z "$(aws_ eks list-clusters --query "clusters[?@=='$name']")" ]; then
  # What an earlier attempt left behind without a cluster would block this one.
  stack=eksctl-$name-cluster
  if [ -n "$(aws_ cloudformation list-stacks --query "StackSummaries[?StackName=='$stack' && StackStatus!='DELETE_COMPLETE'].StackId")" ]; then
    run aws --region "$region" cloudformation delete-stack --stack-name "$stack"
    run aws --region "$region" cloudformation wait stack-delete-complete --stack-name "$stack"
  fi
  run eksctl create cluster -f "$state/cluster.yaml"
else
  aws_ eks wait cluster-active --name "$name"
fi
# Parts that an interrupted `create cluster` did not get to.
if [ -z "$dry_run" ]; then
  present=" $(aws_ eks list-addons --cluster-name "$name" --query 'addons[]' | tr '\n\t' '  ') "
  missing=
  while read -r addon; do
    [[ $present == *" $addon "* ]] || missing+=" $addon"
  done < <(sed -n '/^addons:/,/^managedNodeGroups:/s/^  - name: //p' "$state/cluster.yaml")
  [ -z "$missing" ] || run eksctl create addon -f "$state/cluster.yaml"
  [ -n "$(aws_ eks list-access-entries --cluster-name "$name" --query "accessEntries[?ends_with(@, '/KarpenterNodeRole-$name')]")" ] ||
    run eksctl create accessentry -f "$state/cluster.yaml"
  [ -n "$(aws_ eks list-pod-identity-associations --cluster-name "$name" --namespace kube-system --service-account karpenter \
    --query 'associations[].associationId')" ] || run eksctl create podidentityassociation -f "$state/cluster.yaml"
  [ -n "$(aws_ eks list-nodegroups --cluster-name "$name" --query "nodegroups[?@=='system']")" ] ||
    run eksctl create nodegroup -f "$state/cluster.yaml"
  aws_ eks wait nodegroup-active --cluster-name "$name" --nodegroup-name system
fi
run aws --region "$region" eks update-kubeconfig --name "$name" --kubeconfig "$KUBECONFIG"

# release NAME NAMESPACE CHART VERSION [HELM FLAGS...]: installs a chart, or upgrades it if its version or values have changed.
release() {
  local release=$1 namespace=$2 chart=$3 version=$4 digest pending file=$here/values/$1.yaml
  shift 4
  if [ -f "$file" ]; then set -- --values "$file" "$@"; else file=/dev/null; fi
  digest=$({ echo "$version $*" && cat "$file"; } | sha256sum | cut -c 1-32)
  if [ -n "$(ask helm list -n "$namespace" --filter "^$release\$" --selector "tessera-values=$digest" --deployed -q)" ]; then
    say "$release $version: unchanged"
    return 0
  fi
  # Undo what a killed helm had begun; helm refuses otherwise.
  pending=$(ask helm list -n "$namespace" --filter "^$release\$" --pending -o json)
  case $pending in
    *pending-install*) run helm uninstall "$release" -n "$namespace" --wait ;;
    *pending*) run helm rollback "$release" -n "$namespace" --wait ;;
  esac
  run helm upgrade --install "$release" "$chart" --version "$version" -n "$namespace" --create-namespace "$@" \
    --labels "tessera-values=$digest" --wait --timeout 15m
}

# apply FILE: unless the cluster already has it.
apply() {
  if [ -z "$dry_run" ] && kubectl diff --server-side --force-conflicts -f "$1" >/dev/null 2>&1; then
    say "$(basename "$1"): unchanged"
  else
    run kubectl apply --server-side --force-conflicts -f "$1"
  fi
}

say "== controllers"
release karpenter kube-system oci://public.ecr.aws/karpenter/karpenter "$karpenter" \
  --set "settings.clusterName=$name" --set "settings.interruptionQueue=$name"
release kubeflow-trainer kubeflow-system oci://ghcr.io/kubeflow/charts/kubeflow-trainer "$trainer"
release kueue kueue-system oci://registry.k8s.io/kueue/charts/kueue "$kueue"
[ -z "$cards" ] ||
  release nvidia-device-plugin kube-system nvidia-device-plugin "$nvidia_device_plugin" --repo https://nvidia.github.io/k8s-device-plugin
[ -z "$efa" ] ||
  release aws-efa-k8s-device-plugin kube-system aws-efa-k8s-device-plugin "$efa_device_plugin" --repo https://aws.github.io/eks-charts
[ -z "$monitoring" ] ||
  release monitoring monitoring oci://ghcr.io/prometheus-community/charts/kube-prometheus-stack "$prometheus_stack"
if [ -n "$logs" ]; then
  if [ -z "$(aws_ eks list-pod-identity-associations --cluster-name "$name" --namespace monitoring --service-account loki \
    --query 'associations[].associationId')" ]; then
    run aws --region "$region" eks create-pod-identity-association --cluster-name "$name" --namespace monitoring \
      --service-account loki --role-arn "$(aws_ iam get-role --role-name "$name-loki" --query Role.Arn)"
  fi
  release loki monitoring loki "$loki" --repo https://grafana.github.io/helm-charts --set "loki.storage.s3.region=$region" \
    --set "loki.storage.bucketNames.chunks=tessera-$name-$account-$region-logs"
fi

say "== nodes, storage, queue"
card_flags=()
[ -z "$spot_only" ] || card_flags+=(--spot_only)
[ -z "$efa" ] || card_flags+=(--efa)
node_flags=(--max_vcpus "$max_vcpus" "${card_flags[@]}")
write "$state/nodes.yaml" "${deploy[@]}" --part nodes "${node_flags[@]}"
apply "$state/nodes.yaml"
if [ -n "$cards" ]; then
  write "$state/card_nodes.yaml" "${deploy[@]}" --part nodes --device cuda --max_cards "$cards" \
    --max_vcpus "$((${card_vcpus:-0} > 1024 ? card_vcpus : 1024))" "${card_flags[@]}"
  apply "$state/card_nodes.yaml"
fi
apply "$here/namespace.yaml"
# Its claim is that of the next document.
runtime=(tessera deploy runtime --trainer "v${trainer%.*}" --image "$image" --storage_class none)
write "$state/runtime.yaml" "${runtime[@]}"
apply "$state/runtime.yaml"
write "$state/storage.yaml" "${deploy[@]}" --part storage
apply "$state/storage.yaml"
write "$state/queue.yaml" "${queue[@]}"
apply "$state/queue.yaml"
if [ -n "$cards" ]; then
  write "$state/card_runtime.yaml" tessera deploy runtime --device cuda --trainer "v${trainer%.*}" --image "$card_image" --storage_class none
  apply "$state/card_runtime.yaml"
  write "$state/card_queue.yaml" "${card_queue[@]}"
  apply "$state/card_queue.yaml"
fi
if [ -n "$monitoring" ]; then
  # The token that is made below.
  write "$state/alerts.yaml" tessera deploy alerts --token_secret tessera-metrics
  dashboards=(tessera deploy dashboards)
  [ -n "$logs" ] || dashboards+=(--loki_url '')
  write "$state/dashboards.yaml" "${dashboards[@]}"
  apply "$state/alerts.yaml"
  apply "$state/dashboards.yaml"
  # Its configuration is one of the documents above.
  [ -z "$logs" ] || release alloy monitoring alloy "$alloy" --repo https://grafana.github.io/helm-charts
fi

say "== sick nodes"
# shellcheck disable=SC2016 # expanded by that shell
write "$state/health.yaml" bash -c 'set -o pipefail; kubectl kustomize "$0" | sed "s|image: tessera\$|image: $1|"' \
  "$here/../health" "$image"
apply "$state/health.yaml"

say "== secrets"
# make_secret NAME SHOWN COMMAND...: applies what the command prints, through a pipe: no command line and no file shows it.
make_secret() {
  local secret=$1 shown=$2
  shift 2
  if [ -n "$(ask kubectl get secret "$secret" -n training --ignore-not-found -o name)" ]; then
    say "$secret: unchanged"
    return 0
  fi
  say "+ $shown | kubectl apply --server-side -f -"
  [ -n "$dry_run" ] || "$@" | kubectl apply --server-side -f - >&3
}
# With it Prometheus reads the metrics of jobs.
make_secret tessera-metrics "${runtime[*]} --secrets" "${runtime[@]}" --secrets
create_token=(kubectl create secret generic hf-token -n training --from-file=token=/dev/stdin --dry-run=client -o yaml)
hf_token() { printf '%s' "$token" | "${create_token[@]}"; }
if [ -n "$token" ]; then
  make_secret hf-token "printf %s \"\$HF_TOKEN\" | ${create_token[*]}" hf_token
else
  say "no HF_TOKEN in the environment: gated models need the Secret hf-token (docs/kubernetes.md)"
fi

say "ready. Next:"
say "  export KUBECONFIG=$KUBECONFIG"
say "  tessera deploy kubernetes --model meta-llama/Llama-3.1-8B --dataset ... --instance $instance --nodes $nodes --image $image | kubectl apply --server-side -f -"
[ -z "$monitoring" ] || say "  kubectl get secret -n monitoring monitoring-grafana -o jsonpath='{.data.admin-password}' | base64 --decode   # Grafana's, user admin"
say "  $here/down.sh --name $name --region $region   # when done; until then it costs what is stated above"
