#!/usr/bin/env bash
# remediation_check.sh: rounds of deploy/health/remediate.sh on fleets that fake_kubectl.sh plays, and the scripts between
# the node check and the node problem detector.
# shellcheck disable=SC2015 # A && B || fail
# shellcheck source=tests/cluster/header.sh
. "$(dirname "$0")/header.sh"
health=$here/../../deploy/health
pretend fake_kubectl.sh kubectl
export FAKE=$scratch
# The settings of the CronJob.
settings=$(grep -A 1 -E 'name: (MAX|MIN|EVICT)_' "$health/remediation.yaml" | tr -d ' "-' | grep -v '^$' |
  sed -n 's/^name://;h;n;s/^value://;H;x;s/\n/=/p')
[ "$(wc -l <<<"$settings")" = 5 ] || fail "settings: $settings"
now=$(date +%s)
ago() { date -u -d "@$((now - $1))" +%Y-%m-%dT%H:%M:%SZ; }
# node NAME POOL STATUS SICK_FOR_S [AGE_S]
node() { echo "$1 $2 claim-$1 $(ago "${5:-90000}") $3 $(ago "$4") - 0 -" >>"$FAKE/nodes"; }
begin() {
  for file in nodes pods replacements guarded changes; do : >"$FAKE/$file"; done
  rm -f "$FAKE/broken"
}
# round [SETTING=VALUE...]
round() {
  # shellcheck disable=SC2086 # one setting a word
  env $settings "$@" /bin/sh "$health/remediate.sh" >"$FAKE/log" 2>&1
}
changes() { tr '\n' ';' <"$FAKE/changes"; }
expect() { # CHANGES [TEXT OF THE LOG]
  [ "$(changes)" = "$1" ] || fail "line ${BASH_LINENO[0]}: expected changes '$1', found '$(changes)'; $(cat "$FAKE/log")"
  local text=${2:-}
  [[ -z $text ]] || grep -q -- "$text" "$FAKE/log" || fail "line ${BASH_LINENO[0]}: '$text' is not in: $(cat "$FAKE/log")"
  : >"$FAKE/changes"
}
taint=tessera-unhealthy=true:NoSchedule
fleet() { for i in 1 2 3 4 5 6 7 8; do node "n$i" cpu-amx "${1:-False}" 5000; done; }
set_node() { awk -v n="$1" -v f="$2" -v v="$3" '$1 == n { $f = v } { print }' "$FAKE/nodes" >"$FAKE/x" && mv "$FAKE/x" "$FAKE/nodes"; }

# A healthy fleet, an empty one, one whose checks say nothing.
for status in False Unknown -; do
  begin && fleet "$status" && round && expect ""
done
begin && round && expect ""

# One sick node: tainted, its pods left alone for a while, then evicted, then the node is replaced.
begin && fleet && node sick cpu-amx True 700 && echo "sick training llama-node-0-2" >"$FAKE/pods"
round && expect "annotate sick;taint sick $taint;" "may end by themselves for 300 s"
round && expect "" "may end by themselves"
set_node sick 8 $((now - 301))
echo llama-node-0-2 >"$FAKE/guarded"
round && expect "" "cannot be evicted now"
: >"$FAKE/guarded"
round && expect "evict llama-node-0-2;"
round && expect "replace claim-sick;"
grep -q "^[0-9]* sick\$" "$FAKE/replacements" || fail "not noted: $(cat "$FAKE/replacements")"
round && expect "" "Karpenter is replacing it"
# Meanwhile another falls sick: one at a time. In another pool it is another matter.
node second cpu-amx True 900 && node other spare True 900
round && expect "annotate other;taint other $taint;replace claim-other;"

# A node that recovers before it was replaced is kept.
begin && fleet && node sick cpu-amx True 700 && echo "sick training p" >"$FAKE/pods"
round && set_node sick 5 False && : >"$FAKE/changes"
round && expect "untaint sick;" "healthy again"
# One that is no longer known to be sick is kept as well, but for no new pods.
begin && fleet && node sick cpu-amx True 700 && echo "sick training p" >"$FAKE/pods"
round && set_node sick 5 Unknown && set_node sick 8 $((now - 301)) && : >"$FAKE/changes"
round && expect "" "keeps its taint"
# Not sick for long, not old enough: not yet.
begin && fleet && node sick cpu-amx True 60 && round && expect "" "none for long enough"
begin && fleet && node sick cpu-amx True 700 1200 && round && expect "" "none for long enough"
# A node that Karpenter did not start.
begin && fleet && node sick cpu-amx True 700 && set_node sick 3 - && round && expect "annotate sick;taint sick $taint;" "by hand"

# The budget: all sick, some sick, too many a day, a fleet of one.
begin && fleet True && round && expect "" "8 of 8 nodes are sick, more than 20 %"
begin && fleet && node a cpu-amx True 700 && node b cpu-amx True 800 && round && expect "annotate b;taint b $taint;replace claim-b;"
begin && fleet && node a cpu-amx True 700 && node b cpu-amx True 800 && node c cpu-amx True 800 && round && expect "" "3 of 11"
begin && fleet && node sick cpu-amx True 700
printf '%s\n' "$((now - 100)) x" "$((now - 5000)) y" "$((now - 80000)) z" >"$FAKE/replacements"
round && expect "" "that is the budget"
round MAX_PER_DAY=4 && expect "annotate sick;taint sick $taint;replace claim-sick;"
[ "$(awk 'NF == 2' "$FAKE/replacements" | wc -l)" = 4 ] || fail "replacements: $(cat "$FAKE/replacements")"
begin && fleet && node sick cpu-amx True 700
printf '%s\n' "$((now - 90000)) x" "$((now - 90000)) y" "$((now - 90000)) z" >"$FAKE/replacements"
round && expect "annotate sick;taint sick $taint;replace claim-sick;"
begin && node only cpu-amx True 700 && round && expect "annotate only;taint only $taint;replace claim-only;"
# A fleet that is always sick, for three days of rounds: no more are replaced than the budget says.
begin && node only cpu-amx True 700
for _ in 1 2 3 4 5 6; do
  round || fail "$(cat "$FAKE/log")"
  node_name=n$RANDOM$RANDOM
  grep -q ' yes$' "$FAKE/nodes" && : >"$FAKE/nodes" && node "$node_name" cpu-amx True 700
done
[ "$(grep -c replace "$FAKE/changes")" = 3 ] || fail "replaced $(changes)"

# Errors of the API server: the round fails, or goes on with the next, but nothing is replaced that is not noted.
for broken in "get nodes" "get -n" "annotate" "patch" "taint node"; do
  begin && fleet && node sick cpu-amx True 700 && echo "$broken" >"$FAKE/broken"
  if round; then fail "$broken: no error: $(cat "$FAKE/log")"; fi
  grep -q '^error: ' "$FAKE/log" || fail "$broken: $(cat "$FAKE/log")"
  if grep -q replace "$FAKE/changes"; then fail "$broken: replaced"; fi
  rm "$FAKE/broken" && round && grep -q 'replace claim-sick' "$FAKE/changes" || fail "$broken: not repeated: $(cat "$FAKE/log")"
done
begin && fleet && node sick cpu-amx True 700 && echo "get pods" >"$FAKE/broken"
if round; then fail "without knowing the pods"; fi
expect "annotate sick;taint sick $taint;" "cannot list its pods"
begin && fleet && echo "not a node line" >>"$FAKE/nodes"
if round; then fail "an unreadable line was accepted"; fi
begin && fleet && node sick cpu-amx True 700
if round MAX_PER_DAY=many; then fail "a budget that is no number was accepted"; fi
expect "" "expected a number, found 'many'"

# The plugin of the node problem detector: exit codes 0, 1, 2 are False, True, Unknown of TesseraUnhealthy.
report() {
  code=0
  output=$(/bin/sh "$health/report_node_check.sh" "$FAKE/result" 1200) || code=$?
  [ "$code" = "$1" ] && [[ $output == *"$2"* ]] || fail "report: expected $1 '$2', found $code '$output'"
}
rm -f "$FAKE/result"
report 2 "no check has ended"
: >"$FAKE/result"
report 2 "no check has ended"
printf '%s\n' "$now" 0 "" >"$FAKE/result"
report 0 healthy
printf '%s\n' "$now" 1 "amx: 0.3 of the fleet's median" >"$FAKE/result"
report 1 "amx: 0.3 of the fleet's median"
printf '%s\n' "$now" 2 "cannot read" >"$FAKE/result"
report 2 "cannot read"
printf '%s\n' "$now" 124 "" >"$FAKE/result"
report 2 "code 124"
printf '%s\n' "$((now - 1300))" 1 "bad" >"$FAKE/result"
report 2 "s ago"

# The loop beside it, with a program that finds something.
printf '#!/bin/sh\n[ "$*" = "doctor --node_check --json --passive" ] || exit 9\necho {}\necho "error: disk: slow" >&2\nexit 1\n' >"$scratch/bin/tessera"
chmod +x "$scratch/bin/tessera"
rm -f "$FAKE/result"
/bin/sh "$health/node_check_loop.sh" "$FAKE/result" 60 --passive &
loop=$!
for _ in $(seq 100); do
  [ -s "$FAKE/result" ] && break
  sleep 0.05
done
report 1 "disk: slow"
kill $loop
wait $loop || fail "the loop ended with $?"
