#!/usr/bin/env bash
# Checks that every C++ file is formatted by clang-format 14. Exit code 77 = skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang-format-14 >/dev/null; then
  echo "skipped: clang-format-14 is not installed"
  exit 77
fi
find src tests -name node_modules -prune -o \( -name '*.h' -o -name '*.cc' \) -print0 |
  xargs -0 clang-format-14 --dry-run --Werror
