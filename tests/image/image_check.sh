#!/usr/bin/env bash
# image_check.sh TESSERA: builds the image and runs it as a cluster does: not as root, nothing writable but volumes, no
# capabilities, limits on memory and processors. TESSERA makes the model. Exit code 77 = skipped.
# TESSERA_IMAGE_TWICE=1 also builds the image a second time from nothing and compares.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$(realpath "$1")
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "podman and mmdebstrap need root"
for each in podman runc mmdebstrap; do
  command -v "$each" >/dev/null || skip "$each is not installed (scripts/install_packages.sh test)"
done

scratch=$(mktemp -d)
name=tessera-image-check-$$
trap 'podman rm --force --time 0 --ignore "$name" >/dev/null; rm -rf "$scratch"' EXIT
fail() { echo "$*"; exit 1; }
expect() { grep -qE -- "$2" "$1" || fail "no line matches '$2' in: $(cat "$1")"; }

tag=$(sha256sum <<<"$root" | cut -c 1-12)  # several checkouts can be tested on one machine
image=localhost/tessera:$tag
built=$("$root/deploy/docker/build_local.sh" "$tag") || { [ $? = 74 ] && skip "Debian's packages cannot be had"; exit 1; }
echo "$built"
inspect() { podman image inspect "$image" --format "$1"; }

# --- what is in it
[ "$(inspect '{{.Config.User}} {{.Config.Entrypoint}} {{len .RootFS.Layers}}')" = '1000:1000 [tessera] 1' ] ||
  fail "another user, entry point or number of layers: $(inspect '{{json .Config}} {{.RootFS.Layers}}')"
for label in title description vendor licenses version revision created base.name; do
  [ -n "$(inspect "{{index .Labels \"org.opencontainers.image.$label\"}}")" ] || fail "no label $label"
done
commit=$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true)
[ "$(inspect '{{index .Labels "org.opencontainers.image.revision"}}')" = "$commit" ] || fail "the revision is not $commit"
over_base=$((($(sed -E 's/.* ([0-9]+) bytes .*/\1/' <<<"$built") - $(sed -E 's/.*: ([0-9]+)\)/\1/' <<<"$built")) / 1000000))
[ "$over_base" -lt 120 ] || fail "$over_base MB over the base: expected 103"
echo "$over_base MB over the base"

# --- the files that .dockerignore lets through are enough for the stage that compiles
printf 'FROM scratch\nCOPY . /\n' >"$scratch/Dockerfile"
podman build --quiet --file "$scratch/Dockerfile" --tag "$image-context" "$root" >/dev/null
context=$(podman image mount "$image-context")
cmake -S "$context" -B "$scratch/build" -G Ninja -DTESSERA_TESTS=OFF -DTESSERA_COMPARE=OFF -DTESSERA_NPM=/bin/false \
  >"$scratch/log" 2>&1 || fail "$(cat "$scratch/log")"
ninja -C "$scratch/build" -n tessera >"$scratch/log" || fail "$(cat "$scratch/log")"
podman image unmount "$image-context" >/dev/null
podman image rm "$image-context" >/dev/null

limits=(--ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --user 1000:1000 --read-only --cap-drop all
  --security-opt no-new-privileges --memory 300m --cpus 2 --tmpfs "/tmp:rw,size=16m" --read-only-tmpfs=false)
mkdir "$scratch/data"
container() { podman --runtime runc run --rm --network none "${limits[@]}" --volume "$scratch/data:/data" "$@"; }
in_shell() { container --entrypoint sh "${@:2}" "$image" -ec "$1"; }

in_shell 'dpkg-query --show; echo; cat /usr/share/sbom/tessera.spdx.json; echo; test -s /etc/ssl/certs/ca-certificates.crt
  find / -xdev \( -perm /6000 -o -newermt @'"$(git -C "$root" log -1 --format=%ct)"' \) ! -type d ! -path "/etc/host*" \
    ! -path /etc/resolv.conf ! -path /etc/mtab ! -path "/run/*"' --user 0 \
  >"$scratch/content"
awk -v RS= -v dir="$scratch" 'NR == 1 { print >(dir "/packages") } NR == 2 { print >(dir "/sbom") }
  NR == 3 { print >(dir "/odd") }' "$scratch/content"
/usr/bin/python3 "$root/tests/image/sbom_check.py" "$scratch/sbom" "$scratch/packages"
[ ! -s "$scratch/odd" ] || fail "files with privileges, or newer than the commit: $(cat "$scratch/odd")"
in_shell 'touch /etc/x /usr/x /var/x /x' 2>"$scratch/err" && fail "the root can be written"
[ "$(grep -c 'Read-only file system' "$scratch/err")" = 4 ] || fail "$(cat "$scratch/err")"

# --- doctor sees the limits
container --cpus 1 "$image" doctor >"$scratch/doctor"
expect "$scratch/doctor" 'cgroup CPU limit +1\.00 processors'
expect "$scratch/doctor" 'cgroup limit +300\.0 MiB'

# --- two ranks, undisturbed
"$root/tests/image/tiny_model.sh" "$program" "$scratch/data"
chown -R 1000:1000 "$scratch/data"
train=(launch --nproc_per_node 2 --termination_grace_s 20 train --model model --dataset text.txt --text_per_line --max_length 64
  --packing --per_device_train_batch_size 1 --learning_rate 1e-3 --cache_dir cache --logging_steps 1000 --save_steps 100000
  --resume_from_checkpoint auto --grace_period_s 15)
last_loss() { sed -n '$ s/.*"loss": *\([^,}]*\).*/\1/p' "$scratch/data/$1/metrics.jsonl"; }
container "$image" "${train[@]}" --max_steps 800 --output_dir whole >"$scratch/whole" 2>&1 || fail "$(cat "$scratch/whole")"
[ "$(stat -c %u "$scratch/data/whole/model.safetensors")" = 1000 ] || fail "the model belongs to somebody else"

# --- SIGTERM, as kubelet sends it to the first process: a checkpoint, 143; the same command resumes and ends alike
podman --runtime runc run --detach --name "$name" --network none "${limits[@]}" --volume "$scratch/data:/data" "$image" \
  "${train[@]}" --max_steps 800 --output_dir ended >/dev/null
for ((i = 0; ; ++i)); do
  [ "$(sed -n '$=' "$scratch/data/ended/metrics.jsonl" 2>/dev/null)0" -lt 200 ] || break
  [ "$i" -lt 600 ] || fail "not 20 steps in 60 s: $(podman logs "$name" 2>&1)"
  sleep 0.1
done
podman stop --time 30 "$name" >/dev/null
code=$(podman inspect "$name" --format '{{.State.ExitCode}}')
[ "$code" = 143 ] || fail "exit code $code after SIGTERM: $(podman logs "$name" 2>&1)"
checkpoint=$(cat "$scratch/data/ended/latest") || fail "no checkpoint: $(podman logs "$name" 2>&1)"
container "$image" "${train[@]}" --max_steps 800 --output_dir ended >"$scratch/resumed" 2>&1 || fail "$(cat "$scratch/resumed")"
expect "$scratch/resumed" "$checkpoint"
[[ -n $(last_loss whole) && $(last_loss ended) = "$(last_loss whole)" ]] ||
  fail "the resumed run ended with the loss $(last_loss ended), the undisturbed one with $(last_loss whole)"
cmp "$scratch/data/ended/model.safetensors" "$scratch/data/whole/model.safetensors"

# --- a memory limit that is too small is the plan's business, not the kernel's
container --memory 24m --memory-swap 24m "$image" train --model model --dataset text.txt --text_per_line --max_length 64 \
  --packing --per_device_train_batch_size 64 --max_steps 1 --output_dir small >"$scratch/small" 2>&1 && code=0 || code=$?
[ "$code" = 78 ] || fail "exit code $code with 24 MiB: $(cat "$scratch/small")"
expect "$scratch/small" 'error: .*memory'

if [ "${TESSERA_IMAGE_TWICE:-}" = 1 ]; then
  again=$("$root/deploy/docker/build_local.sh" --no-cache "$tag")
  [ "$again" = "$built" ] || fail "a second build differs: $again"
  echo "the same image when built twice"
fi
