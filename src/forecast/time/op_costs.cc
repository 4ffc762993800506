#include "forecast/time/op_costs.h"

#include <algorithm>

namespace tessera {
namespace {

double as_double(int64_t value) { return static_cast<double>(value); }

// Threads of this node that are busy.
double busy_cores(const MachineRates& rates, const RankShare& share) {
  return std::min(as_double(rates.num_cores), as_double(share.num_threads * share.local_world_size));
}

double cores_of_rank(const MachineRates& rates, const RankShare& share) {
  return busy_cores(rates, share) / share.local_world_size;
}

}  // namespace

double UpdateWork::bytes() const {
  // The master is a bf16 weight and a remainder of as many bytes, or a float32 weight.
  const int64_t kept = state_bytes + num_elements * dtype_bytes(DType::kF32);
  const int64_t gradients = num_elements * dtype_bytes(gradient_dtype);
  return as_double(2 * kept + gradients * (gradient_reads + (sums_squares ? 1 : 0)));
}

bool RatedCosts::packs_weights(DType dtype) const { return rates_.packs_weights && dtype == DType::kBF16; }

double RatedCosts::memory_seconds(double bytes, const RankShare& share) const {
  return bytes * share.local_world_size / (rates_.memory_gb_per_s * 1e9);
}

double RatedCosts::seconds(const OpWork& work, const RankShare& share) {
  const double cores = cores_of_rank(rates_, share);
  const double flop_per_s =
      cores * 1e12 * (work.dtype == DType::kBF16 ? rates_.core_bf16_tflops : rates_.core_f32_tflops);
  if (work.kind == WorkKind::kProduct) return product_seconds(work, flop_per_s, share);
  if (work.kind == WorkKind::kAttention) {
    const bool is_backward = work.name == "attention_backward";
    const double row = std::max(1.0, 2 * work.pairs / std::max(1.0, as_double(work.sizes[0])));
    const double efficiency =
        (is_backward ? rates_.attention_backward_efficiency : rates_.attention_efficiency) * row /
        (row + rates_.attention_half_row);
    return work.flop() / (flop_per_s * efficiency) + rates_.call_s;
  }
  // Data that fits into the rank's share of the caches was just written there.
  const double in_cores = work.bytes / (cores * rates_.core_gb_per_s * 1e9);
  const double cache_bytes = rates_.cache_mib * 1024 * 1024 / share.local_world_size;
  const double in_memory = work.bytes > cache_bytes / 2 ? memory_seconds(work.bytes, share) : 0;
  return std::max(in_cores, in_memory) + rates_.call_s;
}

double RatedCosts::product_seconds(const OpWork& work, double flop_per_s, const RankShare& share) const {
  const bool is_weight = work.name == "linear_backward_weight";
  const double tokens = as_double(work.sizes[0]);
  const double width = as_double(std::min(work.sizes[1], work.sizes[2]));
  const double efficiency =
      is_weight ? rates_.backward_weight_efficiency * width / (width + rates_.weight_half_width)
                : (work.name == "linear_backward_input" ? rates_.backward_input_efficiency
                                                        : rates_.forward_efficiency) *
                      tokens / (tokens + rates_.half_tokens) * width / (width + rates_.half_width);
  const double adding = is_weight && work.adds
                            ? dtype_bytes(DType::kF32) * as_double(work.sizes[1]) * as_double(work.sizes[2])
                            : 0;
  const double speed = work.quantization == Quantization::kNone   ? 1
                       : work.quantization == Quantization::kInt8 ? rates_.int8_product_speed
                                                                  : rates_.nf4_product_speed;
  const double computing = work.flop() / (flop_per_s * efficiency * speed) + memory_seconds(adding, share);
  return std::max(computing, memory_seconds(work.bytes, share)) + rates_.product_call_s;
}

double RatedCosts::update_seconds(const UpdateWork& work, const RankShare& share) {
  const double in_memory = memory_seconds(work.bytes(), share) / rates_.optimizer_efficiency;
  const double per_second = cores_of_rank(rates_, share) * rates_.core_coded_giga_elements_per_s * 1e9;
  const double coding = work.has_codes ? as_double(work.num_elements) / per_second : 0;
  return std::max(in_memory, coding) + update_product_seconds(work, share);
}

double RatedCosts::update_product_seconds(const UpdateWork& work, const RankShare& share) const {
  const double core_tflops =
      work.weight_dtype == DType::kBF16 ? rates_.core_bf16_tflops : rates_.core_f32_tflops;
  return work.flop / (cores_of_rank(rates_, share) * core_tflops * 1e12 * rates_.forward_efficiency);
}

double RatedCosts::node_sum_seconds(int64_t num_elements, bool adds, const RankShare& share) {
  const int64_t arrays = share.local_world_size + (adds ? 2 : 1);
  return memory_seconds(as_double(num_elements * arrays * dtype_bytes(DType::kF32)), share);
}

double RatedCosts::network_seconds(int64_t sent_bytes, int64_t received_bytes, int64_t num_transfers) const {
  const double bytes_per_s = rates_.network_gbps / 8 * 1e9 * rates_.network_efficiency;
  return as_double(std::max(sent_bytes, received_bytes)) / bytes_per_s +
         as_double(num_transfers) * rates_.network_latency_s;
}

std::vector<int64_t> all_to_all_sizes(const OpWork& work) {
  if (work.kind != WorkKind::kAttention) return {};
  const auto [T, H, G, E] = work.sizes;
  const int64_t of_head = T * E * dtype_bytes(work.dtype), qkv = (H + 2 * G) * of_head, o = H * of_head;
  if (work.name == "attention_backward") return {qkv, o, o, qkv};
  return {qkv, o};
}

double all_to_all_seconds(int64_t bytes, DType dtype, const RankShare& share, OpCosts& op_costs) {
  OpWork copying;
  copying.name = "add";
  copying.dtype = dtype;
  copying.bytes = 4.0 * static_cast<double>(bytes);
  return op_costs.seconds(copying, share) + 2 * op_costs.node_latency_s();
}

}  // namespace tessera
