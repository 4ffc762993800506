# shellcheck shell=bash
# Sourced by the tests beside this file: strict mode, `here`, a scratch folder that is removed at the end, and fail.
# shellcheck disable=SC2034 # the tests read `here`
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
  echo "$*"
  exit 1
}
# pretend SCRIPT TOOL...: from here on SCRIPT answers to the names of these tools.
pretend() {
  local tool
  mkdir "$scratch/bin"
  for tool in "${@:2}"; do ln -s "$here/$1" "$scratch/bin/$tool"; done
  export PATH=$scratch/bin:$PATH
}
