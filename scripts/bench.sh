#!/usr/bin/env bash
# bench.sh [--update_docs]: runs every benchmark on this machine, from a fresh Debian 12. Installs packages (including
# Open MPI, to compare with), builds, and runs all parts of `tessera-bench`. JSON lines and summary.md go to build/bench;
# --update_docs also puts the summary into docs/performance.md; scripts/compare.sh compares with PyTorch. Takes about
# 20 minutes and 16 GiB. BENCH_SECONDS (0.5) is the time that each line measures,
# BENCH_ROUNDS (7) the minimum number of rounds.
set -euo pipefail
cd "$(dirname "$0")/.."

tessera=build/release/tessera
out=build/bench
seconds=${BENCH_SECONDS:-0.5}
rounds=${BENCH_ROUNDS:-7}

update_docs=false
case "${1:-}" in
  "") ;;
  --update_docs) update_docs=true ;;
  *) echo "error: expected nothing or --update_docs, found '$1'" >&2; exit 64 ;;
esac

say() { printf '\n== %s\n' "$*"; }

say "Packages and program"
scripts/install_packages.sh bench
cmake --preset release >/dev/null
cmake --build --preset release --target tessera tessera-bench tessera_mpi_ranks
mkdir -p "$out"
rm -f "$out"/*.jsonl

# run NAME ARGUMENTS...: appends the results of `tessera-bench ARGUMENTS` to NAME.jsonl, followed by the command.
run() {
  local name=$1 command="tessera-bench" argument
  shift
  for argument in "$@"; do
    case "$argument" in *" "*) argument="'$argument'" ;; esac
    command+=" $argument"
  done
  say "$command"
  "$tessera"-bench "$@" --rounds "$rounds" --json | tee -a "$out/$name.jsonl" | cut -c 1-150
  printf '{"command": "%s"}\n' "$command" >>"$out/$name.jsonl"
}

run gemm gemm --seconds "$seconds"
run gemm gemm --seconds "$seconds" --preset 15m 160m
run attention attention --seconds "$seconds" --preset llama3-8b 15m 160m
run elementwise elementwise --seconds "$seconds"
run elementwise elementwise --seconds "$seconds" --preset 15m --rows 1024
if "$tessera" doctor --json | grep -q '"granted": true'; then
  run tiles tiles --seconds "$seconds"
fi
run comm comm --seconds 2
run optimizer optimizer --seconds 1
run tokenizer tokenizer --seconds "$seconds"

layers=(train-step --preset llama3-8b --layers 2)
run train_step "${layers[@]}" --max_length 512 --micro_batch 1 --gradient_accumulation_steps 4
run train_step "${layers[@]}" --max_length 512 --micro_batch 1 --gradient_accumulation_steps 4 --merge_micro_batches never
run train_step "${layers[@]}" --max_length 2048 --micro_batch 1 --gradient_accumulation_steps 1
run train_step train-step --preset llama3.2-1b --layers 2 --with_head --max_length 512
run train_step train-step --preset 15m --with_head --vocab_size 8192 --max_length 256 --micro_batch 4 \
  --gradient_accumulation_steps 1
run train_step train-step --preset 160m --with_head --vocab_size 32000 --max_length 512 --micro_batch 4 \
  --gradient_accumulation_steps 1

/usr/bin/python3 scripts/summaries/bench_summary.py "$out" >"$out/summary.md"
say "Summary: $out/summary.md"
cat "$out/summary.md"
if $update_docs; then
  sed -i -e "/<!-- bench.sh: begin -->/,/<!-- bench.sh: end -->/{//!d}" \
    -e "/<!-- bench.sh: begin -->/r $out/summary.md" docs/performance.md
  say "docs/performance.md has the new figures"
fi
