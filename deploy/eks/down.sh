#!/usr/bin/env bash
# down.sh: deletes what up.sh created, in an order that leaves nothing behind: jobs, load balancers, training nodes, volumes, the
# cluster, then network, file system and roles; finally it lists what still carries the cluster's tag. Running it again continues
# after a failure. See docs/eks.md.
# shellcheck source=deploy/eks/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

help() {
  cat <<'HELP'
usage: down.sh --name NAME --region REGION [options]
  --keep-bucket   keep the bucket that up.sh created, with its content (one given to up.sh is always kept)
  --state DIR     as given to up.sh (~/.local/state/tessera/eks/NAME)
  --dry-run       show every command, run none
  --yes           do not ask
HELP
}

keep_bucket=
while [ $# -gt 0 ]; do
  option=${1//_/-}
  if ! common_option "$option" "${2-}"; then
    shifted=1
    case $option in
      --keep-bucket) keep_bucket=yes ;;
      --help | -h) help && exit 0 ;;
      *) usage_error "unknown option '$1'" ;;
    esac
  fi
  shift "$shifted" 2>/dev/null || usage_error "$1: a value is missing"
done
check_common
check_tools aws eksctl kubectl terraform
account=$(ask aws sts get-caller-identity --query Account --output text)
settings=$(cat "$state/settings" 2>/dev/null || echo "storage=fsx bucket= zone=")
say "cluster $name in $region, account ${account:-unknown}; state in $state"
storage=${settings#storage=}
cost_heading="until then it costs" cost_line "${storage%% *}" "$(cat "$state/fsx_capacity" 2>/dev/null || echo 1200)"
what="every job, volume and file system of $name"
[ -n "$keep_bucket" ] || [[ $settings != *"bucket= "* ]] || what+=", and its bucket with all that is in it"
confirm "This deletes $what."

# each COMMAND... IDS: runs the command with every id; the ids are one word.
each() {
  local ids=${*: -1} id
  for id in $ids; do
    run "${@:1:$#-1}" "$id"
  done
}
aws_run() { run aws --region "$region" "$@"; }

# delete_all KIND [FLAGS]: if the cluster knows the kind.
delete_all() {
  local kind=$1
  shift
  if [ -n "$dry_run" ] || [ -n "$(ask kubectl get crd "$kind" --ignore-not-found -o name)" ]; then
    run kubectl delete "$kind" --all "$@"
  fi
}

if [ -n "$dry_run" ] || [ -n "$(aws_ eks list-clusters --query "clusters[?@=='$name']")" ]; then
  say "== what the cluster started"
  run aws --region "$region" eks update-kubeconfig --name "$name" --kubeconfig "$KUBECONFIG"
  delete_all trainjobs.trainer.kubeflow.org -A --timeout=5m
  delete_all jobsets.jobset.x-k8s.io -A --timeout=5m
  run kubectl delete jobs.batch --all -n training --timeout=5m --ignore-not-found
  # Load balancers cost money, and their network interfaces block the deletion of the VPC.
  run kubectl delete ingresses.networking.k8s.io --all -A --timeout=5m
  services=$(ask kubectl get services -A -o \
    'go-template={{range .items}}{{if eq .spec.type "LoadBalancer"}}{{.metadata.namespace}}/{{.metadata.name}} {{end}}{{end}}')
  for service in $services; do
    run kubectl delete service -n "${service%%/*}" "${service#*/}" --timeout=5m
  done
  # The pools first, or Karpenter would start new nodes; the class last: with it go Karpenter's instance profiles.
  delete_all nodepools.karpenter.sh --timeout=20m
  delete_all nodeclaims.karpenter.sh --timeout=20m
  delete_all ec2nodeclasses.karpenter.k8s.aws --timeout=5m
  run kubectl delete persistentvolumeclaims --all -A --timeout=10m
  run kubectl delete persistentvolumes --all --timeout=10m
  say "== cluster"
  run eksctl delete cluster --name "$name" --region "$region" --wait --disable-nodegroup-eviction
fi

say "== what the cluster may have left behind"
owned="Name=tag:kubernetes.io/cluster/$name,Values=owned"
tag="Name=tag:tessera-cluster,Values=$name"
alive=Name=instance-state-name,Values=pending,running,stopping,stopped
instances=$(aws_ ec2 describe-instances --filters "$owned" "$alive" --query 'Reservations[].Instances[].InstanceId')
each aws --region "$region" ec2 terminate-instances --instance-ids "$instances"
each aws --region "$region" ec2 wait instance-terminated --instance-ids "$instances"
balancers=$(aws_ resourcegroupstaggingapi get-resources --tag-filters "Key=kubernetes.io/cluster/$name" \
  --resource-type-filters elasticloadbalancing:loadbalancer --query 'ResourceTagMappingList[].ResourceARN')
for arn in $balancers; do
  case $arn in
    */net/* | */app/*) aws_run elbv2 delete-load-balancer --load-balancer-arn "$arn" ;;
    *) aws_run elb delete-load-balancer --load-balancer-name "${arn##*/}" ;;
  esac
done
# By the tag that the driver of EBS gives them.
each aws --region "$region" ec2 delete-volume --volume-id \
  "$(aws_ ec2 describe-volumes --filters "$tag" Name=status,Values=available --query 'Volumes[].VolumeId')"
each aws --region "$region" ec2 delete-network-interface --network-interface-id "$(aws_ ec2 describe-network-interfaces \
  --filters "Name=tag:cluster.k8s.amazonaws.com/name,Values=$name" Name=status,Values=available \
  --query 'NetworkInterfaces[].NetworkInterfaceId')"
each aws --region "$region" ec2 delete-security-group --group-id \
  "$(aws_ ec2 describe-security-groups --filters "$owned" --query 'SecurityGroups[].GroupId')"
# A role cannot be deleted while an instance profile has it.
profiles=$(aws_ iam list-instance-profiles \
  --query "InstanceProfiles[?Roles[?RoleName=='KarpenterNodeRole-$name']].InstanceProfileName")
for profile in $profiles; do
  run aws iam remove-role-from-instance-profile --instance-profile-name "$profile" --role-name "KarpenterNodeRole-$name"
  run aws iam delete-instance-profile --instance-profile-name "$profile"
done
# What an interrupted eksctl did not delete. With the kind in the prefix, or $name would include the stacks of $name-2.
of_cluster="StackName=='eksctl-$name-cluster'"
for kind in nodegroup addon podidentityrole; do of_cluster+=" || starts_with(StackName, 'eksctl-$name-$kind-')"; done
stacks=$(aws_ cloudformation list-stacks \
  --query "StackSummaries[?($of_cluster) && StackStatus!='DELETE_COMPLETE'].StackName")
each aws --region "$region" cloudformation delete-stack --stack-name "$stacks"
each aws --region "$region" cloudformation wait stack-delete-complete --stack-name "$stacks"

say "== network, storage, roles"
if [ -n "$dry_run" ] || [ -s "$state/terraform.tfstate" ]; then
  terraform_init
  resources=$(ask terraform "-chdir=$state/terraform" state list)
  if [ -n "$keep_bucket" ]; then
    # Terraform forgets the bucket, and so leaves it.
    while read -r resource; do
      [[ $resource != aws_s3_bucket*.data* ]] || run terraform "-chdir=$state/terraform" state rm "$resource"
    done <<<"$resources"
  fi
  if [ -n "$dry_run$resources" ]; then
    # shellcheck disable=SC2086 # three words
    set -- $settings
    run terraform "-chdir=$state/terraform" destroy -input=false -auto-approve "-var=name=$name" "-var=region=$region" \
      "-var=$1" "-var=$2" "-var=$3"
  fi
  [ -n "$dry_run" ] || rm -f "$state/settings" "$state/region" "$state/fsx_capacity" "$state/logs" "$state/plan" "$state/outputs.json"
else
  say "no Terraform state in $state: if up.sh ran elsewhere, run down.sh there, or with its --state"
fi

say "== what is left"
left=
look() { # WHAT QUERY...: adds what it finds
  local kind=$1 found
  shift
  found=$(aws_ "$@")
  [ -z "$found" ] || left+="  $kind: ${found//$'\t'/ }"$'\n'
}
for filter in "$owned" "$tag"; do
  look "instances" ec2 describe-instances --filters "$filter" "$alive" --query 'Reservations[].Instances[].InstanceId'
  look "volumes" ec2 describe-volumes --filters "$filter" --query 'Volumes[].VolumeId'
done
look "cluster" eks list-clusters --query "clusters[?@=='$name']"
look "NAT gateways" ec2 describe-nat-gateways --filter "$tag" Name=state,Values=pending,available --query 'NatGateways[].NatGatewayId'
look "addresses" ec2 describe-addresses --filters "$tag" --query 'Addresses[].AllocationId'
look "Lustre file systems" fsx describe-file-systems \
  --query "FileSystems[?Tags[?Key=='tessera-cluster' && Value=='$name']].FileSystemId"
look "EFS file systems" efs describe-file-systems \
  --query "FileSystems[?Tags[?Key=='tessera-cluster' && Value=='$name']].FileSystemId"
look "load balancers" resourcegroupstaggingapi get-resources --tag-filters "Key=kubernetes.io/cluster/$name" \
  --resource-type-filters elasticloadbalancing:loadbalancer --query 'ResourceTagMappingList[].ResourceARN'
look "buckets" s3api list-buckets --query "Buckets[?Name=='tessera-$name-$account-$region' || Name=='tessera-$name-$account-$region-logs'].Name"
look "logs" logs describe-log-groups --log-group-name-prefix "/aws/eks/$name/" --query 'logGroups[].logGroupName'
[ -z "$dry_run" ] || exit 0
if [ -n "$left" ]; then
  printf 'these still carry the tag of %s and may cost:\n%s' "$name" "$left"
  [ -n "$keep_bucket" ] && [ "$left" = "  buckets: tessera-$name-$account-$region"$'\n' ] || exit 1
else
  say "nothing that costs"
fi
