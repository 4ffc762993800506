#!/usr/bin/env bash
# soak.sh [SEEDS [MINUTES]]: trains and resumes with random settings, SEEDS times (100); kills ranks of a four-rank training
# run at random moments, SEEDS times, and compares the final weights with those of the undisturbed run; then kills a rank
# every 20 s for MINUTES (5) and prints the share of useful time and a table of the rest; finally tests overloaded
# processors. Takes about 15 minutes on two idle processors; the output is kept in build/release/soak.log.
# TESSERA_SOAK_FIRST_SEED sets the first seed (1).
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${1:-100}
minutes=${2:-5}
log=build/release/soak.log
scripts/install_packages.sh test
cmake --preset release >/dev/null
cmake --build --preset release --target tessera tessera_train_test tessera_soak_test
result=0
TESSERA_RANDOM_RUNS=$seeds TESSERA_RANDOM_FIRST_SEED=${TESSERA_SOAK_FIRST_SEED:-1} \
  build/release/src/train/tessera_train_test --gtest_filter='RandomRuns.*' 2>&1 | tee "$log" || result=$?
TESSERA_SOAK_SEEDS=$seeds TESSERA_SOAK_MINUTES=$minutes build/release/tests/e2e/tessera_soak_test 2>&1 | tee -a "$log" || result=$?
echo
echo "summary ($log)"
grep -E 'seeds, |random runs|kills in |beside the steps|^  .* s +-?[0-9.]+ %$|^\[  (PASSED|FAILED) ' "$log" || true
exit "$result"
