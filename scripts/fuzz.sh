#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: builds the libFuzzer targets and runs each for that time (30). What crashes a target is
# kept in build/fuzz/findings.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-30}
shift || true
scripts/install_packages.sh test
cmake --preset fuzz
cmake --build --preset fuzz --target fuzzers

if [ $# -gt 0 ]; then
  targets=("${@/#/build/fuzz/fuzzers/}")
else
  targets=(build/fuzz/fuzzers/fuzz_*)
fi
mkdir -p build/fuzz/findings
passed=0
failed=0
for target in "${targets[@]}"; do
  name=$(basename "$target")
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus"
  seeds=(src/*/fuzz_seeds/"${name#fuzz_}")
  [ -d "${seeds[0]}" ] || seeds=()
  echo "== $name, $seconds s"
  log=build/fuzz/$name.log
  if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/$name-" "$corpus" "${seeds[@]}" >"$log" 2>&1; then
    grep -E 'number_of_executed_units|peak_rss_mb' "$log"
    passed=$((passed + 1))
  else
    tail -40 "$log"
    failed=$((failed + 1))
  fi
done
echo "fuzz targets: $passed passed, $failed failed"
[ "$failed" = 0 ]
