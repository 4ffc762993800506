#!/usr/bin/env bash
# soak.sh [SEEDS [MINUTES]]: kills ranks of a training of four ranks at random moments, SEEDS times (100), and compares
# the final weights with those of the undisturbed run; then a kill every 20 s for MINUTES (5), and overloaded processors.
# Prints every seed, the time from the kill to the next finished step (p50, p99), the steps done again and the useful
# share of time. TESSERA_SOAK_FIRST_SEED begins elsewhere than at 1.
set -euo pipefail
cd "$(dirname "$0")/.."

seeds=${1:-100}
minutes=${2:-5}
scripts/install_packages.sh test
cmake --preset release >/dev/null
cmake --build --preset release --target tessera tessera_soak_test
TESSERA_SOAK_SEEDS=$seeds TESSERA_SOAK_MINUTES=$minutes build/release/tests/tessera_soak_test
