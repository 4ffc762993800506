#!/usr/bin/env bash
# test_python.sh: makes the wheel from a built program (BUILD=DIR, build/release), installs it into empty environments, checks
# that the program there is complete and needs nothing of the build folder, and runs python/tests. The tools come from PyPI.
# PYTHONS="python3.9 python3.13" tries these interpreters (python3). docs/packaging.md says what is checked.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${BUILD:-$root/build/release}" && pwd)
read -ra pythons <<<"${PYTHONS:-python3}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PIP_CACHE_DIR=$root/build/pip-cache PIP_DISABLE_PIP_VERSION_CHECK=1 XDG_CACHE_HOME=$scratch/cache
unset LD_LIBRARY_PATH PYTHONPATH TESSERA_PROGRAM

BUILD=$build "$root/scripts/package.sh" wheel "$scratch"
wheel=$(echo "$scratch"/*.whl)
version=$("$build/tessera" --version | head -1)
passed=0
failed=0

# check NAME COMMAND...: a test, whose output is shown if it fails.
check() {
  local name=$1
  shift
  # A subshell of its own: `set -e` has no effect in a function that is part of a condition.
  set +e
  (set -euo pipefail; "$@") >"$scratch/log" 2>&1
  local status=$?
  set -e
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    echo "ok      $name"
  else
    failed=$((failed + 1))
    echo "FAILED  $name"
    tail -40 "$scratch/log"
  fi
}

# The tag of a wheel made on Debian 12. A call of a newer function of glibc shows here first.
tag_is_manylinux_2_35() {
  local tag=manylinux_2_35_x86_64
  echo "$wheel"
  "$root/build/venv/package/bin/auditwheel" show "$wheel" | tr '\n' ' ' | grep "platform tag: *\"$tag\""
  [[ $wheel == *-py3-none-$tag.whl ]]
}

wheel_has_licences() {
  python3 -m zipfile --list "$wheel" >"$scratch/files"
  grep -q 'licenses/LICENSE ' "$scratch/files"
  grep -q 'licenses/libraries/libdnnl2.copyright ' "$scratch/files"
}

installs_without_anything_else() {
  "$1" -m venv "$env"
  "$env/bin/pip" install --quiet --no-index "$wheel"
  [ "$("$env/bin/tessera" --version | head -1)" = "$version" ]
}

package_imports() {
  [ "$("$env/bin/python" -c 'import tessera; print("tessera", tessera.__version__)')" = "$version" ]
}

libraries_are_inside() {
  ldd "$program" >"$scratch/libraries"
  # A library that is not found has no path. The system libraries below are those a wheel may use (PEP 600).
  awk -v inside="$env/" '$2 == "=>" && index($3, inside) != 1 { print $3, $4 }' "$scratch/libraries" |
    grep -vE '/(libc|libm|libresolv|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so\.[0-9]+ ' >"$scratch/outside" || true
  cat "$scratch/outside"
  [ ! -s "$scratch/outside" ]
}

manual_pages_are_found() {
  gzip -dc "$env/share/man/man1/tessera-train.1.gz" >"$scratch/page"
  grep -q learning_rate "$scratch/page"
}

exit_code_is_the_programs() {
  local status=0
  "$env/bin/tessera" no-such-command || status=$?
  [ "$status" = 64 ]
}

# By SIGPIPE, although Python ignores it.
closed_pipe_ends_it() {
  set +o pipefail
  "$env/bin/tessera" help --markdown | true
  [ "${PIPESTATUS[0]}" = 141 ]
}

trains() {
  PATH=$env/bin:$PATH "$root/tests/image/tiny_model.sh" tessera "$scratch/data"
  "$env/bin/tessera" train "${run[@]}" --max_steps 2 --output_dir "$scratch/trained"
  [ -s "$scratch/trained/model.safetensors" ]
}

stops_at_sigterm() {
  local pid status=0
  "$env/bin/tessera" train "${run[@]}" --max_steps 1000000 --output_dir "$scratch/stopped" >"$scratch/train.log" 2>&1 &
  pid=$!
  for _ in {1..300}; do
    grep -q "'loss'" "$scratch/train.log" && break
    sleep 0.1
  done
  kill -TERM $pid
  wait $pid || status=$?
  tail -3 "$scratch/train.log"
  [ "$status" = 143 ]
}

check "file and auditwheel agree on manylinux_2_35" tag_is_manylinux_2_35
check "the wheel has the licences" wheel_has_licences
for python in "${pythons[@]}"; do
  env=$scratch/${python//\//_}
  program=
  run=(--model "$scratch/data/model" --dataset "$scratch/data/text.txt" --text_per_line --max_length 64 --logging_steps 1)
  check "$python: installs without a network" installs_without_anything_else "$python"
  program=$(echo "$env"/lib/python3.*/site-packages/tessera/bin/tessera)
  check "$python: the package imports" package_imports
done
check "all libraries but the system's are inside" libraries_are_inside
check "manual pages are found" manual_pages_are_found
check "exit codes are the program's" exit_code_is_the_programs
check "a closed pipe ends the program" closed_pipe_ends_it
check "trains" trains
check "SIGTERM reaches the program" stops_at_sigterm

if compgen -G "$root/python/tests/test_*.py" >/dev/null; then
  venv=$root/build/venv/test
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  needed=(pytest)
  [ ! -f "$root/python/tests/requirements.txt" ] || needed+=(-r "$root/python/tests/requirements.txt")
  "$venv/bin/pip" install --quiet "${needed[@]}"
  "$venv/bin/pip" install --quiet --no-index --force-reinstall --no-deps "$wheel"
  status=0
  (cd "$scratch" && "$venv/bin/python" -m pytest -q --ignore="$root/python/tests/judges" "$root/python/tests") 2>&1 | tee "$scratch/log" || status=$?
  good=$(tail -1 "$scratch/log" | grep -oP '\d+(?= passed)' || echo 0)
  bad=$(tail -1 "$scratch/log" | grep -oP '\d+(?= failed)' || echo 0)
  # It also fails without a failed test: at an error in a file, or if there are no tests.
  [ "$status" = 0 ] || [ "$bad" != 0 ] || bad=1
  passed=$((passed + good)) failed=$((failed + bad))
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
