// The speeds of a node that the time of a training step depends on. Written for an instance type by
// rates_of_instance(), or by hand as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Every speed is that of a node whose cores are all busy.
struct MachineRates {
  int64_t num_cores = 1;
  double core_bf16_tflops = 1;  // arithmetic peak of bf16 products of one core
  double core_f32_tflops = 0.1;
  bool packs_weights = false;  // products take weights in a packed form (AMX)

  // A product of T tokens with a weight [N, K], m the smaller one of N and K, takes
  //   2 T N K / (cores * peak * efficiency * T / (T + half_tokens) * m / (m + half_width)) + product_call_s
  // so half_tokens is the number of tokens that reaches half of the efficiency. The product for a weight's
  // gradient, whose contraction runs over the tokens, depends on m alone, with weight_half_width; if it adds
  // to the gradient it also reads that from memory.
  double forward_efficiency = 0.55;
  double backward_input_efficiency = 0.55;
  double backward_weight_efficiency = 0.55;
  double half_tokens = 72;
  double half_width = 110;
  double weight_half_width = 350;
  double product_call_s = 25e-6;
  // Products with a quantized weight, forward and backward together, relative to those with a bf16 one.
  double int8_product_speed = 1;
  double nf4_product_speed = 1;
  // Shares of the peak, of the operations that model/flops.h counts (recomputed scores are not), times
  // L / (L + attention_half_row) for rows of L tokens.
  double attention_efficiency = 0.35;
  double attention_backward_efficiency = 0.25;
  double attention_half_row = 250;

  double memory_gb_per_s = 20;  // of the node, read and written
  double cache_mib = 32;        // last-level caches of the node
  // Bytes an element-wise operation reads and writes on one core if memory does not limit it.
  double core_gb_per_s = 17;
  double call_s = 5e-6;               // per operation that is not a product: waking and joining threads
  double optimizer_efficiency = 0.9;  // share of memory_gb_per_s

  // Elements (10^9) whose state is in 8-bit codes that a core updates; measured with AVX-512 on a busy
  // machine.
  double core_coded_giga_elements_per_s = 0.25;

  double imbalance = 0;           // wait of ranks for the slowest of them, relative to their operations
  double node_latency_s = 20e-6;  // each time ranks of a node wait for one another
  double network_gbps = 25;       // of the node and direction, sustained
  double network_efficiency = 0.8;
  double network_latency_s = 100e-6;  // per transfer
  double disk_gb_per_s = 1;           // of offload_dir, half reads and half writes
  double step_s = 1e-3;               // per step: rows, the all-gather of sums, logging

  bool operator==(const MachineRates&) const = default;
};

// An instance type as described in a catalogue.
struct InstanceFigures {
  int64_t num_cores = 1;  // physical ones
  double clock_ghz = 0;   // all cores busy
  bool amx = false;
  bool avx512_bf16 = false;  // without either, bf16 is computed as float32
  bool avx512 = true;
  double memory_gb_per_s = 0;  // of the instance; 0: by its share of a socket's channels
  double network_gbps = 25;
};

// Efficiencies are those of docs/performance.md: "Results" with AMX, "Predicted steps" without.
MachineRates rates_of_instance(const InstanceFigures& instance);

// A kind of NVIDIA card as described in a catalogue.
struct CardFigures {
  double bf16_tflops = 0;  // peak of dense products
  double memory_gb_per_s = 0;
  bool has_wgmma = false;  // Hopper: attention has kernels of its own there
};

// The rates of a run on one card, from what docs/gpu.md measured on an H200; `optimizer_on_host`: the
// processor updates the weights.
MachineRates rates_of_card(const CardFigures& card, bool optimizer_on_host);

// The rates as a JSON object, indent 2, trailing newline; members are named as above.
std::string rates_json(const MachineRates& rates);
// Members that are left out keep their default. Error(kBadData) naming `origin` and the member.
MachineRates parse_rates(std::string_view json, const std::string& origin);

}  // namespace tessera
