#!/usr/bin/env bash
# package_check.sh BUILD: makes the relocatable folder and the Debian package from a built program, and runs the program
# of both: the folder's under another name and, where the system allows it, with nothing of the system but glibc.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "$*"; exit 1; }
export LD_LIBRARY_PATH=

kinds=(folder)
command -v dpkg-shlibdeps >/dev/null && kinds+=(deb)
BUILD=$build "$root/scripts/package.sh" "${kinds[@]}" "$scratch"
version=$("$build/tessera" --version | head -1)

check_tree() {
  [ "$("$1/bin/tessera" --version | head -1)" = "$version" ] || fail "$1: another version"
  [ "$(ls "$1/share/man/man1" | wc -l)" -gt 30 ] || fail "$1: manual pages are missing"
  local page=$scratch/tessera-train.1
  gzip -dc "$1/share/man/man1/tessera-train.1.gz" >"$page"
  grep -q -- 'learning_rate' "$page" || fail "$page: flags are missing"
  if command -v mandoc >/dev/null; then
    for each in "$1"/share/man/man1/*.gz; do
      mandoc -Tlint -Wwarning "$each" | grep -v 'missing date' && fail "$each: see above"
    done
  fi
  (source "$1/share/bash-completion/completions/tessera" && complete -p tessera >/dev/null) || fail "no completion"
  [ -s "$1/share/fish/vendor_completions.d/tessera.fish" ] || fail "$1: no completion for fish"
}

mv "$scratch"/tessera-*-linux-x86_64 "$scratch/moved here"
moved="$scratch/moved here"
check_tree "$moved"
[ -s "$moved/share/zsh/site-functions/_tessera" ] || fail "no completion for zsh"
[ -s "$moved/share/doc/tessera/libraries/libdnnl2.copyright" ] || fail "no licence of oneDNN"
# The only system libraries are the loader and those shipped with it.
outside=$(ldd "$moved/bin/tessera" | grep '=> /' | grep -vF "$moved/" | awk '{ print $1 }' | sort | tr '\n' ' ')
[ -z "$(tr ' ' '\n' <<<"$outside" | grep -vE '^(libc|libm|libresolv|libdl|libpthread|librt|)(\.so\..*)?$')" ] ||
  fail "from outside the folder: $outside"

if unshare --map-root-user --mount true 2>/dev/null; then
  bare=$scratch/bare
  mkdir -p "$bare/proc" "$bare/lib64" "$bare/lib/x86_64-linux-gnu"
  cp -L /lib64/ld-linux-x86-64.so.2 "$bare/lib64"
  for library in $outside; do
    cp -L "$(ldd "$moved/bin/tessera" | awk -v name="$library" '$1 == name { print $3 }')" "$bare/lib/x86_64-linux-gnu"
  done
  mv "$moved" "$bare/tessera"
  moved=$bare/tessera
  # The loader finds out the program's folder from /proc.
  in_bare='mount --rbind /proc "$0/proc" && exec chroot "$0" /tessera/bin/tessera --version'
  [ "$(unshare --map-root-user --mount sh -c "$in_bare" "$bare" | head -1)" = "$version" ] ||
    fail "does not run without the system's libraries"
fi

[ ${#kinds[@]} = 2 ] || { echo "no Debian package: dpkg-shlibdeps is not installed"; exit 0; }
dpkg-deb --extract "$scratch"/tessera_*.deb "$scratch/deb"
check_tree "$scratch/deb/usr"
[ -s "$scratch/deb/usr/share/zsh/vendor-completions/_tessera" ] || fail "no completion for zsh"
depends=$(dpkg-deb --field "$scratch"/tessera_*.deb Depends)
for package in libc6 libdnnl2 libisal2 libcurl4; do
  [[ $depends == *"$package ("* ]] || fail "the package does not depend on $package: $depends"
done
