#!/usr/bin/env bash
# bench_summary_check.sh TESSERA: scripts/bench_summary.py makes tables from the output of every part of
# tessera bench; scripts/onednn_limit.py reads CPUID.
set -euo pipefail
summary=$(cd "$(dirname "$0")/.." && pwd)/scripts/bench_summary.py
program=$1
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

bench() {
  local name=$1
  shift
  "$program" bench "$@" --seconds 0 --rounds 1 --cold_bytes 100000 --json >>"$folder/$name.jsonl"
  printf '{"command": "tessera bench %s"}\n' "$1" >>"$folder/$name.jsonl"
}
step=(train-step --preset 15m --layers 1 --max_length 8)
bench gemm gemm --shapes 3x5x7 4x6x8
bench attention attention --preset 15m --max_length 16
bench elementwise elementwise --preset 15m --rows 8 --vocab_size 100
bench comm comm --ranks 2 --buffer_mb 1 --peers gloo
bench optimizer optimizer --num_parameters 1000
bench tokenizer tokenizer --text_bytes 3000
bench train_step "${step[@]}"
bench pytorch "${step[@]}" --against "echo 'ready PyTorch 1.0'; while read -r what; do echo 0.5; done"

python3 "$summary" "$folder" >"$folder/summary.md"
for heading in "Matrix products" Attention "Element-wise operations" "Sum of the buffers of several ranks" Optimizer \
  Tokenizer "Training step" "Training step against PyTorch"; do
  grep -q "^### $heading\$" "$folder/summary.md" || { echo "no section '$heading'"; cat "$folder/summary.md"; exit 1; }
done
grep -q '^| 3 x 5 x 7 | [0-9.]* ([0-9.]*-[0-9.]*)' "$folder/summary.md"
grep -q '^PyTorch 1.0, in turn with ours' "$folder/summary.md"
# Every row of a table has as many cells as its header.
awk -F'|' '/^\|/ { if (!inside) { cells = NF; inside = 1 } else if (NF != cells) { print "uneven: " $0; exit 1 } next }
  { inside = 0 }' "$folder/summary.md"

PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$(dirname "$summary") python3 - <<'EOF'
import struct
import onednn_limit
_, ebx, ecx, edx = onednn_limit.cpuid(0)
vendor = struct.pack("<III", ebx, edx, ecx).decode()
assert f"vendor_id\t: {vendor}\n" in open("/proc/cpuinfo").read(), vendor
assert onednn_limit.max_cpu_isa(announces_amx=True, max_palette=0) == "AVX512_CORE_BF16"
assert onednn_limit.max_cpu_isa(announces_amx=True, max_palette=1) is None
assert onednn_limit.max_cpu_isa(announces_amx=False, max_palette=0) is None
EOF
