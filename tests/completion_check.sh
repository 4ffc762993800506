#!/usr/bin/env bash
# completion_check.sh TESSERA: what Tab offers after a few command lines, asked of bash and, where they are installed,
# fish and zsh.
set -euo pipefail
program=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
mkdir bin models
ln -s "$program" bin/tessera
PATH=$scratch/bin:$PATH
touch run.yaml 'a text.txt'
for shell in bash zsh fish; do "$program" completion $shell >"_tessera.$shell"; done
mkdir functions
mv _tessera.zsh functions/_tessera

# The words offered, one a line, sorted.
offers_bash() {
  bash -c 'source _tessera.bash; line=$1; read -ra COMP_WORDS <<<"${line//=/ = }"
    [[ $line != *" " ]] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tessera; printf "%s\n" "${COMPREPLY[@]}"' bash "$1" | sort
}
offers_fish() {
  HOME=$scratch fish --no-config -c 'source _tessera.fish; complete -C $argv[1]' "$1" |
    sed 's/\t.*//; s/^--.*=//; s|/$||' | sort
}
offers_zsh() { zsh -f "$here/zsh_offers.zsh" "$scratch/functions" "$1" | sort; }

# expect SHELLS LINE WORD...: these words and no others.
expect() {
  local shells=$1 line=$2 shell found
  shift 2
  for shell in $shells; do
    command -v "$shell" >/dev/null || continue
    found=$("offers_$shell" "$line" | xargs -rd '\n' echo)
    [ "$found" = "$(printf '%s\n' "$@" | sort | xargs -rd '\n' echo)" ] ||
      { echo "$shell: after '$line': expected '$*', found '$found'"; failed=1; }
  done
}

failed=0
all='bash fish zsh'
expect "$all" 'tessera tok' tokenizer tokenize
expect "$all" 'tessera checkpoint ' list verify
expect "$all" 'tessera deploy ku' kubernetes
expect "$all" 'tessera plan s' search
expect "$all" 'tessera plan --fit_d' --fit_disk
expect "$all" 'tessera train --lr_s' --lr_scheduler_type --lr_scheduler_kwargs
expect "$all" 'tessera train --dtype ' bfloat16 float32
expect "$all" 'tessera train --optim=ad' adafactor adamw_8bit adamw_bf16 adamw_torch
expect "$all" 'tessera train --num_threads '
expect "$all" 'tessera train --model mo' models
expect "$all" 'tessera train ru' run.yaml
expect "$all" 'tessera launch --nproc_per_node 2 train --max_st' --max_steps
expect "$all" 'tessera launch ev' eval
expect "$all" 'tessera config show --zero_st' --zero_stage
expect "$all" 'tessera help ins' inspect
expect "$all" 'tessera completion ' bash fish zsh
expect "$all" 'tessera init --preset 6' 60m
expect bash 'tessera train --lr-s' --lr-scheduler-type --lr-scheduler-kwargs
expect bash 'tessera train --dataset a' 'a text.txt'
expect bash 'tessera train --packing t' true
expect "bash zsh" 'tessera --ver' --version
exit $failed
