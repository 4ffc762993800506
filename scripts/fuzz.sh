#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: builds the libFuzzer targets (preset asan) and runs each for SECONDS (30), one per
# processor at a time. Inputs that crash a target are kept in build/fuzz/findings, those that reached new code in
# build/fuzz/corpus, where the next call starts.
# With FUZZ_RUNS=N each target instead gets the first N inputs that libFuzzer makes from seed 1 and no corpus: the same ones
# in every call, so that CI fails for a change and not for the luck of the draw.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-30}
shift || true
scripts/install_packages.sh test
cmake --preset asan
cmake --build --preset asan --target fuzzers

if [ $# -gt 0 ]; then
  targets=("${@#fuzz_}")
  targets=("${targets[@]/#/build/asan/fuzzers/fuzz_}")
else
  targets=(build/asan/fuzzers/fuzz_*)
fi
mkdir -p build/fuzz/findings

# fuzz TARGET: prints one line with the result, preceded by the end of the log if it failed.
fuzz() {
  local name log corpus limits
  name=$(basename "$1")
  log=build/fuzz/$name.log
  corpus=build/fuzz/corpus/$name
  limits=(-max_total_time="$seconds" "$corpus")
  if [ -n "${FUZZ_RUNS:-}" ]; then
    limits=(-seed=1 -runs="$FUZZ_RUNS")
  else
    mkdir -p "$corpus"
  fi
  if "$1" "${limits[@]}" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build/fuzz/findings/$name-" >"$log" 2>&1; then
    echo "passed $name: $(sed -n 's/^Done \(.*\) runs in \(.*\) second.*/\1 inputs in \2 s/p' "$log")"
  else
    echo "$(tail -40 "$log")"$'\n'"FAILED $name: build/fuzz/findings"
  fi
}
export -f fuzz
export seconds

results=build/fuzz/results
# shellcheck disable=SC2016
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'fuzz "$0"' | tee "$results"
failed=$(grep -c '^FAILED ' "$results" || true)
passed=$(grep -c '^passed ' "$results" || true)
echo "fuzz targets: $passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" = ${#targets[@]} ]
