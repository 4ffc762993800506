#!/usr/bin/env bash
# page_pictures.sh: draws docs/pictures/*.png, the page as docs/dashboard.md shows it. Needs chromium, the packages of
# tests/page (npm ci) and the built program (build/release/tessera).
set -euo pipefail
cd "$(dirname "$0")/.."
exec node tests/page/pictures.mjs build/release/tessera docs/pictures
