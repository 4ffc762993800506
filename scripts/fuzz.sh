#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: builds the libFuzzer targets (preset asan) and runs each for SECONDS (30), one per
# processor at a time. Inputs that crash a target are kept in build/fuzz/findings.
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
  local name log corpus
  name=$(basename "$1")
  log=build/fuzz/$name.log
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus"
  if "$1" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/$name-" "$corpus" >"$log" 2>&1; then
    echo "passed $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s"
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
