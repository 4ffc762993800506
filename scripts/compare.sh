#!/usr/bin/env bash
# compare.sh judges|job|step [--update_docs] [flags]: Tessera beside the libraries that it takes the place of, on this machine.
#   judges  Transformers, PEFT, TRL and lm-evaluation-harness check what the program reads, computes and writes
#           (python/tests/judges); flags are those of pytest
#   job     a training job with Transformers' Trainer, DeepSpeed ZeRO-3 and Gloo, and with tessera (about 12 minutes a round, 20 GiB);
#           flags are those of scripts/compare/job.py; --text FILE trains on other text than the C and C++ headers
#   step    a training step of two Llama-3-8B layers in PyTorch, eager and compiled, and in tessera (about 10 minutes, 16 GiB)
# Tables go to build/compare; --update_docs also puts them into docs/performance.md, and a line into README.md. Installs
# scripts/compare/requirements.txt into build/venv-compare, several GB, unless COMPARE_PYTHON names an interpreter that has
# them. TESSERA is the program (build/release/tessera); tessera-bench lies beside it. g++ is needed: PyTorch and DeepSpeed
# compile with it.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { echo "error: expected judges, job or step, found '${1:-nothing}'" >&2; exit 64; }

what=${1:-}
case "$what" in judges | job | step) shift ;; *) usage "$what" ;; esac
update_docs=false
if [ "${1:-}" = --update_docs ]; then
  update_docs=true
  shift
fi
out=build/compare
tessera=$(realpath -m "${TESSERA:-build/release/tessera}")
[ -x "$tessera" ] || { echo "error: $tessera is not there: build it, or set TESSERA" >&2; exit 66; }
mkdir -p "$out"

python=${COMPARE_PYTHON:-$PWD/build/venv-compare/bin/python}
if [ -z "${COMPARE_PYTHON:-}" ]; then
  wanted=$(sha256sum scripts/compare/requirements.txt)
  if [ "$(cat build/venv-compare/installed 2>/dev/null)" != "$wanted" ]; then
    python3 -m venv build/venv-compare
    build/venv-compare/bin/pip install --quiet -r scripts/compare/requirements.txt
    echo "$wanted" >build/venv-compare/installed
  fi
fi
PATH=$(dirname "$python"):$PATH  # torchrun, and ninja, which compiles operators
export PATH

# update NAME FILE: puts build/compare/NAME.md between its marks in a file.
update() {
  cat "$out/$1.md"
  $update_docs || return 0
  sed -i -e "/<!-- compare.sh $1: begin -->/,/<!-- compare.sh $1: end -->/{//!d}" \
    -e "/<!-- compare.sh $1: begin -->/r $out/$1.md" "$2"
}

# Writes a text of paragraphs that every machine with a C++ compiler has.
header_text() {
  find /usr/include/c++ /usr/include/linux -type f -size +4k -size -200k -print0 | LC_ALL=C sort -z | xargs -0 cat >"$1.all"
  head -c 2000000 "$1.all" | iconv -c -f UTF-8 -t UTF-8 >"$1"
  rm "$1.all"
}

compare_job() {
  local text=()
  if [[ " $* " != *" --text "* ]]; then
    text=(--text "$out/headers.txt")
    [ -s "$out/headers.txt" ] || header_text "$out/headers.txt"
  fi
  "$python" scripts/compare/job.py --tessera "$tessera" "${text[@]}" "$@"
  "$python" scripts/compare/job_table.py "$out"
  update job docs/performance.md
  update job_line README.md
}

compare_step() {
  local length flag command threads folder=$out/step
  [ $# = 0 ] || { echo "error: step takes no flags, found '$*'" >&2; exit 64; }
  threads=$("$tessera" doctor --json | sed -n 's/.*"threads": \([0-9]*\).*/\1/p')
  rm -rf "$folder"
  mkdir -p "$folder"
  export OMP_WAIT_POLICY=passive  # PyTorch's threads sleep between their turns
  for length in 512 2048; do
    for flag in "" " --compile"; do
      command="train-step --preset llama3-8b --layers 2 --max_length $length --gradient_accumulation_steps 1"
      command+=" --gradient_checkpointing false --rounds ${BENCH_ROUNDS:-9} --against"
      # shellcheck disable=SC2086  # words
      "$(dirname "$tessera")/tessera-bench" $command \
        "$python scripts/pytorch_step.py --layers 2 --max_length $length --num_threads $threads$flag" --json |
        tee -a "$folder/pytorch.jsonl" | cut -c 1-150
      printf '{"command": "tessera-bench %s %s"}\n' "$command" \
        "'python scripts/pytorch_step.py --max_length $length$flag'" >>"$folder/pytorch.jsonl"
    done
  done
  "$python" scripts/summaries/bench_summary.py "$folder" "scripts/compare.sh step" >"$out/step.md"
  update step docs/performance.md
}

case "$what" in
  judges)
    export TESSERA_PROGRAM=$tessera PYTHONPATH=$PWD/python
    exec "$python" -m pytest -q -o python_files='judge_*.py' python/tests/judges "$@"
    ;;
  job) compare_job "$@" ;;
  step) compare_step "$@" ;;
esac
