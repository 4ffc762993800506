#!/bin/sh
# remediate.sh: one round of replacing sick nodes, for a CronJob. A node is sick while its condition TesseraUnhealthy or
# TesseraCardFault is True; Unknown is no reason to act. Per pool one node at a time: taint, let its training pods end or evict them within their
# PodDisruptionBudgets, then delete its NodeClaim, upon which Karpenter drains the rest and starts another node. Settings
# and their defaults stand in remediation.yaml. Nothing is kept between rounds but the taint, the time of the taint as an
# annotation, and the replacements of the last day in a ConfigMap; a round that fails is repeated by the next.
set -u
selector='nodeType in (cpu-amx,gpu)'
taint=tessera-unhealthy
since=tessera-unhealthy-since
log="-n tessera-system configmap tessera-node-replacements"
now=$(date +%s)
say() { echo "$*"; }
die() {
  say "error: $*" >&2
  exit 1
}
for setting in MAX_PER_DAY MAX_SICK_PERCENT MIN_SICK_S MIN_AGE_S EVICT_AFTER_S; do
  eval "value=\${$setting:-}"
  # shellcheck disable=SC2154 # eval above assigns it
  case $value in '' | *[!0-9]*) die "$setting: expected a number, found '$value'" ;; esac
done

# One line a node: name, pool, claim, created, status of the condition, since, tainted, time of the taint, being deleted;
# "-" for what it has not.
# shellcheck disable=SC2016 # $ belongs to the template
template='{{range .items}}{{.metadata.name}}
{{- " "}}{{with index .metadata.labels "karpenter.sh/nodepool"}}{{.}}{{else}}-{{end}}
{{- " "}}{{$claim := "-"}}{{range .metadata.ownerReferences}}{{if eq .kind "NodeClaim"}}{{$claim = .name}}{{end}}{{end}}{{$claim}}
{{- " "}}{{.metadata.creationTimestamp}}
{{- " "}}{{$status := "- -"}}{{$fault := ""}}{{range .status.conditions}}{{if eq .type "TesseraUnhealthy"}}
{{- $status = printf "%s %s" .status .lastTransitionTime}}{{end}}
{{- if and (eq .type "TesseraCardFault") (eq .status "True")}}
{{- $fault = printf "%s %s" .status .lastTransitionTime}}{{end}}{{end}}{{with $fault}}{{.}}{{else}}{{$status}}{{end}}
{{- " "}}{{$taint := "-"}}{{range .spec.taints}}{{if eq .key "tessera-unhealthy"}}{{$taint = "yes"}}{{end}}{{end}}{{$taint}}
{{- " "}}{{$since := "0"}}{{range $key, $value := .metadata.annotations}}{{if eq $key "tessera-unhealthy-since"}}
{{- $since = $value}}{{end}}{{end}}{{$since}}
{{- " "}}{{if .metadata.deletionTimestamp}}yes{{else}}-{{end}}{{"\n"}}{{end}}'

listing=$(kubectl get nodes -l "$selector" -o go-template="$template") || die "cannot list the nodes; nothing was done"
# The two times as seconds since 1970.
nodes=$(printf '%s\n' "$listing" | TZ=UTC awk '
  function seconds(time) { gsub(/[-T:Z]/, " ", time); return mktime(time) }
  NF == 9 { $4 = seconds($4); $6 = $6 == "-" ? 0 : seconds($6); print; next }
  NF > 0 { print "unreadable line: " $0 >"/dev/stderr"; exit 1 }') || die "cannot read the list of nodes; nothing was done"

# shellcheck disable=SC2086 # $log is several words
history=$(kubectl get $log -o 'jsonpath={.data.replacements}') || die "cannot read what was replaced; nothing was done"
history=$(printf '%s\n' "$history" | awk -v now="$now" 'NF == 2 && now - $1 < 86400')
num_replaced() { printf '%s\n' "$history" | awk 'NF == 2' | wc -l; }

# Notes the node among the replacements. Without the note it is not replaced: the budget would not hold.
note_replacement() {
  printf '%s\n' "$history" | grep -q " $1\$" && return 0
  history=$(printf '%s\n%s %s\n' "$history" "$now" "$1" | awk 'NF == 2')
  # shellcheck disable=SC2086
  kubectl patch $log --type merge -p "{\"data\":{\"replacements\":\"$(printf '%s' "$history" | tr '\n' ';' |
    sed 's/;/\\n/g')\"}}" >/dev/null
}

# continue_with NODE CLAIM TAINTED_AT: the next step for a node that has the taint.
continue_with() {
  [ "$2" != - ] || { say "$1: no NodeClaim: Karpenter did not start it, replace it by hand" && return 0; }
  pods=$(kubectl get pods -A -l app.kubernetes.io/component=training \
    --field-selector "spec.nodeName=$1,status.phase!=Succeeded,status.phase!=Failed" \
    -o 'go-template={{range .items}}{{.metadata.namespace}} {{.metadata.name}}{{if .metadata.deletionTimestamp}} ends{{end}}{{"\n"}}{{end}}') ||
    die "$1: cannot list its pods"
  pods=$(printf '%s\n' "$pods" | awk 'NF')
  if [ -z "$pods" ]; then
    note_replacement "$1" || die "$1: cannot note its replacement; it stays"
    kubectl delete nodeclaim "$2" --wait=false || die "$1: cannot delete NodeClaim $2"
    say "$1: replaced: NodeClaim $2 deleted"
    return 0
  fi
  if [ $((now - $3)) -lt "$EVICT_AFTER_S" ]; then
    say "$1: $(printf '%s\n' "$pods" | wc -l) training pods may end by themselves for $((EVICT_AFTER_S - now + $3)) s more"
    return 0
  fi
  printf '%s\n' "$pods" | while read -r namespace pod ends; do
    [ -z "$ends" ] || { say "$1: waits for $namespace/$pod to end" && continue; }
    if printf '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"%s","namespace":"%s"}}' "$pod" "$namespace" |
      kubectl create --raw "/api/v1/namespaces/$namespace/pods/$pod/eviction" -f - >/dev/null; then
      say "$1: evicted $namespace/$pod"
    else
      say "$1: $namespace/$pod cannot be evicted now (its PodDisruptionBudget?); the next round tries again"
    fi
  done
}

# start_with POOL: taints the node of a pool that has been sick longest, if the budget allows it.
start_with() {
  total=$(printf '%s\n' "$nodes" | awk -v pool="$1" '$2 == pool' | wc -l)
  sick=$(printf '%s\n' "$nodes" | awk -v pool="$1" '$2 == pool && $5 == "True"' | wc -l)
  [ "$sick" -gt 0 ] || return 0
  if [ "$sick" -gt 1 ] && [ $((sick * 100)) -gt $((total * MAX_SICK_PERCENT)) ]; then
    say "$1: $sick of $total nodes are sick, more than $MAX_SICK_PERCENT %: none is replaced, look for a common cause"
    return 0
  fi
  if [ "$(num_replaced)" -ge "$MAX_PER_DAY" ]; then
    say "$1: $sick of $total nodes sick, but $(num_replaced) were replaced within a day: that is the budget (MAX_PER_DAY)"
    return 0
  fi
  next=$(printf '%s\n' "$nodes" | awk -v pool="$1" -v now="$now" -v sick="$MIN_SICK_S" -v age="$MIN_AGE_S" \
    '$2 == pool && $5 == "True" && $9 == "-" && now - $6 >= sick && now - $4 >= age { print $6, $1, $3 }' | sort -n | head -n 1)
  [ -n "$next" ] || { say "$1: $sick of $total nodes sick, none for long enough yet" && return 0; }
  next=${next#* }
  node=${next% *}
  # The time first: with the taint alone the pods would be evicted at once.
  kubectl annotate node "$node" --overwrite "$since=$now" >/dev/null || die "$node: cannot annotate it"
  kubectl taint node "$node" --overwrite "$taint=true:NoSchedule" >/dev/null || die "$node: cannot taint it"
  say "$node: sick for too long: tainted"
  continue_with "$node" "${next#* }" "$now"
}

for pool in $(printf '%s\n' "$nodes" | awk 'NF { print $2 }' | sort -u); do
  busy=
  while read -r node _ claim _ status _ _ tainted_at deleted; do
    [ -n "$node" ] || continue
    if [ "$deleted" = yes ]; then
      say "$node: Karpenter is replacing it"
      busy=yes
    elif [ "$status" = False ]; then
      kubectl taint node "$node" "$taint-" >/dev/null || die "$node: cannot remove its taint"
      say "$node: healthy again: taint removed"
    elif [ "$status" != True ]; then
      say "$node: nobody knows whether it is still sick: it keeps its taint"
      busy=yes
    else
      [ -z "$busy" ] || { say "$node: waits for its turn" && continue; }
      busy=yes
      case $tainted_at in *[!0-9]*) tainted_at=0 ;; esac
      continue_with "$node" "$claim" "$tainted_at"
    fi
  done <<NODES
$(printf '%s\n' "$nodes" | awk -v pool="$pool" '$2 == pool && $7 == "yes"')
NODES
  [ -n "$busy" ] || start_with "$pool"
done
