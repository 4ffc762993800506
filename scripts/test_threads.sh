#!/usr/bin/env bash
# test_threads.sh [CTEST ARGUMENTS...]: builds and runs only the tests of ranks and collectives, under ThreadSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."

suites=(context launch network node_group store shard)
targets=("${suites[@]/#/tessera_}")
scripts/install_packages.sh test
cmake --preset tsan
cmake --build --preset tsan --target "${targets[@]/%/_test}"
status=0
ctest --preset tsan --parallel "$(($(nproc) + 1))" -R "^($(IFS='|' && echo "${suites[*]}"))\." "$@" || status=$?
echo "=== cases"
scripts/test_report.py build/tsan
exit "$status"
