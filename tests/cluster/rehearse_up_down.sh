#!/usr/bin/env bash
# rehearse_up_down.sh: runs deploy/eks/up.sh and down.sh against tools that only pretend (fake_tools.sh).
# shellcheck disable=SC2015 # A && B || fail
# shellcheck source=tests/cluster/header.sh
. "$(dirname "$0")/header.sh"
eks=$here/../../deploy/eks
pretend fake_tools.sh aws eksctl kubectl helm terraform tessera
common=(--name demo --region us-east-1)
# Not a real token; it must not appear in anything that is written.
export HF_TOKEN=hf_not_to_be_seen

export FAKE=$scratch/account
# begin: a new account, with nothing in it.
begin() {
  rm -rf "$FAKE"
  mkdir -p "$FAKE/cloud"
  : >"$FAKE/calls" && : >"$FAKE/changes" && : >"$FAKE/seen"
}
up() { "$eks/up.sh" "${common[@]}" --image registry.example/tessera:1 --state "$FAKE/state" --yes "$@" >>"$FAKE/log" 2>&1; }
down() { "$eks/down.sh" "${common[@]}" --state "$FAKE/state" --yes "$@" >>"$FAKE/log" 2>&1; }
snapshot() { (cd "$FAKE/cloud" && grep -r '' . | sort && find . -type f -empty | sort); }
# until_done COMMAND: as often as it fails.
until_done() {
  local attempts=0
  until "$@"; do
    attempts=$((attempts + 1))
    [ $attempts -lt 120 ] || fail "$*: still fails: $(tail -5 "$FAKE/log")"
  done
  echo "$*: complete after $attempts failures"
}

begin
up || fail "up.sh: $(tail -5 "$FAKE/log")"
wanted=$(snapshot)
grep -q nodes.yaml <<<"$wanted" || fail "nothing was made: $wanted"
: >"$FAKE/changes"
up || fail "up.sh a second time: $(tail -5 "$FAKE/log")"
[ ! -s "$FAKE/changes" ] || fail "the second run changed: $(cat "$FAKE/changes")"
# Another value of a chart or a flag is applied, and nothing else.
up --max-vcpus 512 || fail "up.sh with another limit: $(tail -5 "$FAKE/log")"
[ "$(cat "$FAKE/changes")" = "kubectl apply --server-side --force-conflicts -f $FAKE/state/nodes.yaml" ] ||
  fail "another limit changed: $(cat "$FAKE/changes")"
# Nodes with cards are added to a cluster that has none, with their plugin, runtime and queue.
: >"$FAKE/changes"
cards=(--max-vcpus 512 --cards 4 --card-image registry.example/tessera:1-cuda)
up "${cards[@]}" || fail "up.sh with cards: $(tail -5 "$FAKE/log")"
[ "$(sed 's/.* //; s,.*/,,' "$FAKE/changes" | tr '\n' ' ')" = "15m card_nodes.yaml card_runtime.yaml card_queue.yaml " ] ||
  fail "cards changed: $(cat "$FAKE/changes")"
grep -q 'helm upgrade --install nvidia-device-plugin nvidia-device-plugin .* --repo https://nvidia.github.io/k8s-device-plugin' "$FAKE/changes" ||
  fail "the device plugin: $(cat "$FAKE/changes")"
grep -q -- '--device cuda --max_cards 4' "$FAKE/state/card_nodes.yaml" || fail "the pool: $(cat "$FAKE/state/card_nodes.yaml")"
grep -q -- '--image registry.example/tessera:1-cuda' "$FAKE/state/card_runtime.yaml" || fail "the image: $(cat "$FAKE/state/card_runtime.yaml")"
: >"$FAKE/changes"
up "${cards[@]}" || fail "up.sh with cards a second time: $(tail -5 "$FAKE/log")"
[ ! -s "$FAKE/changes" ] || fail "the second run with cards changed: $(cat "$FAKE/changes")"
# Likewise Loki with its bucket; it stays, also where a later call does not name it.
: >"$FAKE/changes"
up "${cards[@]}" --logs || fail "up.sh --logs: $(tail -5 "$FAKE/log")"
[ "$(sed -E 's/^(terraform).*( apply).*/\1\2/; s/^(helm) upgrade --install (\S+) .*/\1 \2/; s,^kubectl apply.*/,,; s/^aws .* eks (\S+) .*/\1/' "$FAKE/changes" |
  tr '\n' ' ')" = "terraform apply create-pod-identity-association helm loki dashboards.yaml helm alloy " ] || fail "logs changed: $(cat "$FAKE/changes")"
grep -q 'helm upgrade --install loki .*bucketNames.chunks=tessera-demo-111122223333-us-east-1-logs' "$FAKE/changes" || fail "the bucket of the logs"
: >"$FAKE/changes"
up "${cards[@]}" || fail "up.sh after --logs: $(tail -5 "$FAKE/log")"
[ ! -s "$FAKE/changes" ] || fail "without --logs a second run changed: $(cat "$FAKE/changes")"
for other in "--storage efs" "--zone us-east-1c"; do
  # shellcheck disable=SC2086 # two words
  if up $other; then fail "$other was accepted"; fi
done
grep -q 'changing it would delete the data' "$FAKE/log" || fail "no reason given: $(tail -1 "$FAKE/log")"
# Nor is another region, in which Terraform would delete what it has made in the first.
for script in up down; do
  if $script --region us-west-2; then fail "$script.sh in another region was accepted"; fi
  tail -1 "$FAKE/log" | grep -q 'demo is in us-east-1' || fail "$script.sh in another region: $(tail -1 "$FAKE/log")"
done
# A file system grows, stays as it is, and never shrinks.
up --fsx-capacity 4800 && up || fail "a larger file system: $(tail -5 "$FAKE/log")"
[ "$(grep -c 'fsx_capacity_gib=4800' "$FAKE/calls")" = 2 ] || fail "the capacity is not remembered"
if up --fsx-capacity 2400; then fail "a smaller file system was accepted"; fi
grep -q 'would replace it with an empty one' "$FAKE/log" || fail "no reason given: $(tail -1 "$FAKE/log")"
if grep -r -q "$HF_TOKEN" "$FAKE" --exclude-dir=cloud; then fail "the token is in $(grep -rl "$HF_TOKEN" "$FAKE")"; fi

begin
for script in "up.sh --image r/t:1" down.sh; do
  # shellcheck disable=SC2086 # the options are words
  "$eks/"$script "${common[@]}" --state "$FAKE/state" --dry-run >"$FAKE/log" </dev/null || fail "$script --dry-run: $(tail -3 "$FAKE/log")"
  [ "$(grep -c '^[+?] ' "$FAKE/log")" -gt 20 ] || fail "$script --dry-run shows too little: $(cat "$FAKE/log")"
  if grep -q "$HF_TOKEN" "$FAKE/log"; then fail "$script --dry-run shows the token"; fi
done
# But for the quota, which it checks and shows.
[ "$(grep -vc '^tessera deploy queue ' "$FAKE/calls")" = 0 ] && [ ! -e "$FAKE/state" ] || fail "the dry run called: $(cat "$FAKE/calls")"

# Every call fails the first time; then every change fails after it was made. What is there in the end is the same.
for mode in before after; do
  begin
  echo "$mode" >"$FAKE/mode"
  until_done up
  diff <(echo "$wanted") <(snapshot) || fail "up.sh with failures ($mode): another result"
  # A cluster in use also has these.
  for thing in stack_left instance profile service claims volumes volume interface group; do echo "x-1" >"$FAKE/cloud/$thing"; done
  echo "kube-system/lb" >"$FAKE/cloud/service"
  echo "arn:aws:elasticloadbalancing:us-east-1:111122223333:loadbalancer/net/lb/1" >"$FAKE/cloud/balancer"
  : >"$FAKE/seen"
  until_done down
  [ "$(find "$FAKE/cloud" -type f ! -name spot_role)" = "" ] || fail "down.sh ($mode) left: $(snapshot)"
  tail -1 "$FAKE/log" | grep -q 'nothing that costs' || fail "down.sh ($mode): $(tail -3 "$FAKE/log")"
  rm "$FAKE/mode"
  : >"$FAKE/changes"
  down || fail "down.sh a second time: $(tail -3 "$FAKE/log")"
  [ ! -s "$FAKE/changes" ] || fail "the second down.sh changed: $(cat "$FAKE/changes")"
done

# Options of an attempt whose terraform made nothing do not bind the next one.
begin
mkdir "$FAKE/state"
echo "storage=fsx bucket= zone=us-east-1c" >"$FAKE/state/settings"
echo 4800 >"$FAKE/state/fsx_capacity"
up --fsx-capacity 1200 || fail "after an attempt that made nothing: $(tail -3 "$FAKE/log")"

# EFA is decided when a file system is made.
begin
up --efa --fsx-efa || fail "a file system with EFA: $(tail -3 "$FAKE/log")"
grep -q 'fsx_capacity_gib=4800 .*fsx_efa=true' "$FAKE/calls" || fail "the variables of a file system with EFA: $(grep -m 1 fsx_efa "$FAKE/calls")"
if up --efa; then fail "one without EFA in its place was accepted"; fi

begin
up && down --keep-bucket || fail "down.sh --keep-bucket: $(tail -3 "$FAKE/log")"
[ -e "$FAKE/kept_bucket" ] || fail "the bucket was not kept"
# The stacks of a cluster named demo-2 begin with that, too.
if grep -qF "starts_with(StackName, 'eksctl-demo-')" "$FAKE/calls"; then fail "down.sh takes stacks of other clusters"; fi
echo i-left >"$FAKE/cloud/volume"
# A volume in use is not deleted, and so is reported.
echo volume >"$FAKE/in_use"
if down; then fail "a volume that is left is not reported"; fi
grep -q 'volumes: i-left' "$FAKE/log" || fail "what is left: $(tail -3 "$FAKE/log")"

for wrong in "--name UPPER" "--name a-name-of-thirty-three-characters" "--region here" "--storage nfs" "--trainer 9" "--fsx-capacity 0" "--fsx-capacity 1300" "--fsx-efa" "--fsx-efa --efa --fsx-capacity 2400" "--fsx-efa --efa --storage efs" "--max-vcpus 64" "--instance foo" "--image a;b" "--cards 4" "--cards 0 --card-image r/t:1" \
  "--cards 2 --card-image r/t:1 --card-nodes 4" "--logs --no-monitoring" "--logs --name a-name-of-thirty-charactersss" "--nonsense" "--name"; do
  begin
  code=0
  # shellcheck disable=SC2086
  "$eks/up.sh" "${common[@]}" --image r/t:1 --dry-run $wrong >"$FAKE/log" 2>&1 || code=$?
  [ $code = 64 ] && [ "$(grep -c '^error: ' "$FAKE/log")" = 1 ] || fail "$wrong: exit $code, $(cat "$FAKE/log")"
done
begin
code=0
"$eks/up.sh" "${common[@]}" --image r/t:1 --state "$FAKE/state" </dev/null >"$FAKE/log" 2>&1 || code=$?
[ $code = 64 ] && [ ! -s "$FAKE/changes" ] || fail "without a terminal and --yes: exit $code, changes $(cat "$FAKE/changes")"
