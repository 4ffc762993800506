#include "forecast/time/exchange_of_heads.h"

namespace tessera {

std::vector<int64_t> exchanges_of_heads(const OpWork& work) {
  if (work.kind != WorkKind::kAttention) return {};
  const auto [T, H, G, E] = work.sizes;
  const int64_t of_head = T * E * dtype_bytes(work.dtype), qkv = (H + 2 * G) * of_head, o = H * of_head;
  if (work.name == "attention_backward") return {qkv, o, o, qkv};
  return {qkv, o};
}

double exchange_of_heads_seconds(int64_t bytes, DType dtype, const RankShare& share, OpCosts& op_costs) {
  OpWork copying;
  copying.name = "add";
  copying.dtype = dtype;
  copying.bytes = 4.0 * static_cast<double>(bytes);
  return op_costs.seconds(copying, share) + 2 * op_costs.node_latency_s();
}

}  // namespace tessera
