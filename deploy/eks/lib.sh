# shellcheck shell=bash
# What up.sh and down.sh share: options, asking, running, the cost line. Sourced.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec 3>&1

say() { printf '%s\n' "$*" >&3; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit "${2:-1}"
}
usage_error() {
  printf 'error: %s: --help lists the options\n' "$*" >&2
  exit 64
}

# A command that changes something. A dry run only shows it.
run() {
  say "+ $(printf '%q ' "$@")"
  [ -n "$dry_run" ] || "$@" >&3
}

# A command that only looks; its output is the answer. A dry run shows it and takes the answer to be empty. If the command fails
# the script ends, even from within $(...): no answer is not the same as an empty one.
trap 'exit 1' TERM
ask() {
  if [ -n "$dry_run" ]; then
    say "? $(printf '%q ' "$@")"
    return 0
  fi
  "$@" && return 0
  printf 'error: no answer from %s\n' "$(printf '%q ' "$@")" >&2
  kill -TERM $$
  exit 1
}

# write FILE COMMAND...: the command's output becomes the file.
write() {
  local file=$1
  shift
  say "+ $(printf '%q ' "$@")>$file"
  [ -z "$dry_run" ] || return 0
  "$@" >"$file.new" || die "no $file: see above"
  mv "$file.new" "$file"
}

# An answer of AWS, "" for none.
aws_() { ask aws --region "$region" --output text "$@" | sed '/^None$/d'; }

# Options of both scripts; sets `shifted` to the number of arguments taken.
# shellcheck disable=SC2034 # they read it
common_option() {
  shifted=2
  case $1 in
    --name) name=${2-} ;;
    --region) region=${2-} ;;
    --state) state=${2-} ;;
    --dry-run) dry_run=yes shifted=1 ;;
    --yes) yes=yes shifted=1 ;;
    *) return 1 ;;
  esac
}

# shellcheck disable=SC2034
name='' region=${AWS_REGION:-${AWS_DEFAULT_REGION:-}} state='' dry_run='' yes='' shifted=0

check_common() {
  [[ $name =~ ^[a-z][a-z0-9-]{0,36}[a-z0-9]$ ]] ||
    usage_error "--name: expected 2 to 38 lower-case letters, digits and hyphens, beginning with a letter, found '$name'"
  [[ $region =~ ^[a-z]{2}(-[a-z]+)+-[0-9]$ ]] || usage_error "--region: expected a region such as us-east-1, found '$region'"
  state=${state:-${XDG_STATE_HOME:-$HOME/.local/state}/tessera/eks/$name}
  # Never the user's current cluster.
  export KUBECONFIG=$state/kubeconfig TF_IN_AUTOMATION=1 AWS_PAGER=
  [ -n "$dry_run" ] || mkdir -p "$state"
  # In another region Terraform would delete what it made in this one, or forget it.
  local present
  present=$(remembered region)
  [ -z "$present" ] || [ "$present" = "$region" ] ||
    die "--region $region: the cluster $name is in $present; one in another region needs another name, as its roles are everywhere" 78
}

# remembered WHAT: what an earlier up.sh has written down, unless it ended before Terraform made anything.
remembered() { [ ! -s "$state/terraform.tfstate" ] || cat "$state/$1" 2>/dev/null || true; }

check_tools() {
  local tool
  [ -z "$dry_run" ] || return 0
  for tool in "$@"; do
    command -v "$tool" >/dev/null || die "$tool is not installed (docs/eks.md lists what is needed)" 69
  done
}

confirm() {
  local answer=
  [ -z "$dry_run$yes" ] || return 0
  [ -t 0 ] || die "no terminal to ask on: --yes answers yes" 64
  printf '%s [type the name of the cluster to continue] ' "$1" >&3
  read -r answer || true
  [ "$answer" = "$name" ] || die "nothing was done" 130
}

# Works on a copy: Terraform writes beside its files, which may be installed where the user cannot write.
terraform_init() {
  run cp -R "$here/terraform" "$state/"
  run terraform "-chdir=$state/terraform" init -input=false -reconfigure "-backend-config=path=$state/terraform.tfstate"
}

# Prices of us-east-1 in USD on demand: of instances as in the plan's catalogue (2026-07-20), of the rest as on
# aws.amazon.com/{eks,vpc,fsx/lustre,efs,s3}/pricing in 2025. Other regions cost up to twice as much. A month has 730 hours.
price_date="2025 (instances: July 2026)"
cost_line() { # STORAGE FSX_GIB [NODES USD_PER_HOUR]; begins with $cost_heading
  awk -v heading="${cost_heading:-cost while it exists}" -v storage="$1" -v gib="$2" -v nodes="${3-}" -v usd="${4-}" -v date="$price_date" 'BEGIN {
    control = 0.10; nat = 0.045 + 0.005; system_nodes = 2 * (0.1008 + 50 * 0.08 / 730)
    if (storage == "fsx") { disk = gib * 0.145 / 730; what = sprintf("FSx %d GiB %.2f", gib, disk) }
    if (storage == "fsx-efa") { disk = gib * 0.60 / 730; what = sprintf("FSx with EFA %d GiB %.2f", gib, disk) }
    if (storage == "efs") what = "EFS 0.30 per GB and month of data"
    if (storage == "s3") what = "S3 0.023 and disks 0.08 per GB and month"
    total = control + nat + system_nodes + disk
    printf "%s: %.2f USD/h, %.0f USD/month = control plane %.2f + NAT gateway %.2f + 2 system nodes %.2f + %s;\n", \
      heading, total, total * 730, control, nat, system_nodes, what
    if (usd == "") { nodes = "4 x r7i.16xlarge"; usd = "16.93" }
    printf "  plus 0.045 USD per GB through the NAT gateway, and training nodes only while jobs run: %s %s USD/h on\n", nodes, usd
    printf "  demand, about 0.4 of that as spot (`tessera plan` lists all). Prices of us-east-1, on demand, %s.\n", date
  }' >&3
}
