#!/usr/bin/env bash
# test.sh [PRESET [CTEST ARGUMENTS...]]: installs missing packages, builds PRESET (release) and runs its tests.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
shift || true
scripts/install_packages.sh test
for folder in tests/tokenizer_compat tests/jinja_compat tests/gguf_compat tests/page; do
  [ -d "$folder/node_modules" ] && continue
  # Without network access the tests that need these packages are skipped, and say so.
  npm ci --prefix "$folder" --no-audit --no-fund ||
    echo "warning: npm could not install the packages that $folder needs" >&2
done
# Only its programs: the package itself starts a service.
if ! command -v prometheus >/dev/null && [ ! -x build/prometheus/usr/bin/prometheus ]; then
  mkdir -p build/prometheus
  (cd build/prometheus && apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb .) ||
    echo "warning: Prometheus cannot be downloaded: the tests that need it are skipped" >&2
fi
export PATH=$PATH:$PWD/build/prometheus/usr/bin
cmake --preset "$preset"
begin=$SECONDS
cmake --build --preset "$preset"
echo "built in $((SECONDS - begin)) s"
# More tests than cores at a time: many of them mostly wait. Sanitizers leave less of that.
jobs=$(($(nproc) + 2))
[ "$preset" = release ] || jobs=$(($(nproc) + 1))
status=0
ctest --preset "$preset" --parallel "$jobs" "$@" || status=$?
echo "=== cases"
scripts/test_report.py "build/$preset"
exit "$status"
