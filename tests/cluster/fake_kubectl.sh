#!/bin/sh
# kubectl for deploy/health/remediate.sh. $FAKE/nodes: lines as its template makes them; $FAKE/pods: node, namespace, pod;
# $FAKE/replacements: what the ConfigMap has; $FAKE/guarded: pods that a PodDisruptionBudget protects. A call whose text
# contains the line in $FAKE/broken fails. $FAKE/changes has the calls that changed something.
set -u
case "$*" in
  *"$(cat "$FAKE/broken" 2>/dev/null || echo never)"*)
    echo "Unable to connect to the server" >&2
    exit 1
    ;;
esac
# update NODE FIELD VALUE
update() {
  awk -v node="$1" -v field="$2" -v value="$3" '$1 == node { $field = value } { print }' "$FAKE/nodes" >"$FAKE/nodes.new"
  mv "$FAKE/nodes.new" "$FAKE/nodes"
}
change() { echo "$*" >>"$FAKE/changes"; }
case "$1 $2" in
  'get nodes') cat "$FAKE/nodes" ;;
  'get -n') cat "$FAKE/replacements" ;;
  'get pods')
    node=${7#spec.nodeName=}
    awk -v node="${node%%,*}" '$1 == node { print $2, $3 }' "$FAKE/pods"
    ;;
  'patch -n')
    text=${9#*'replacements":"'}
    printf '%b\n' "${text%'"}}'}" >"$FAKE/replacements"
    ;;
  'annotate node')
    change annotate "$3"
    update "$3" 8 "${5#*=}"
    ;;
  'taint node')
    case "$*" in
      *tessera-unhealthy-)
        change untaint "$3"
        update "$3" 7 -
        ;;
      *)
        change taint "$3" "$5"
        update "$3" 7 yes
        ;;
    esac
    ;;
  'create --raw')
    pod=${3%/eviction}
    pod=${pod##*/}
    grep -q '"kind":"Eviction"' || exit 1
    if grep -qx "$pod" "$FAKE/guarded"; then
      echo "Cannot evict pod as it would violate the pod's disruption budget." >&2
      exit 1
    fi
    change evict "$pod"
    grep -v " $pod\$" "$FAKE/pods" >"$FAKE/pods.new"
    mv "$FAKE/pods.new" "$FAKE/pods"
    ;;
  'delete nodeclaim')
    change replace "$3"
    node=$(awk -v claim="$3" '$3 == claim { print $1 }' "$FAKE/nodes")
    update "$node" 9 yes
    ;;
  *)
    echo "unknown call: $*" >&2
    exit 1
    ;;
esac
