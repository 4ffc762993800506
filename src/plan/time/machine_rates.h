// How fast a node is, as far as the time of a training step depends on it. Written for an instance type by
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
  double core_bf16_tflops = 0;  // arithmetic peak of bf16 products, one core
  double core_f32_tflops = 0;
  bool packs_weights = false;  // products take weights in a packed form (AMX)

  // Shares of that peak. A product of T tokens with a weight [N, K] reaches
  //   forward_efficiency * T / (T + half_tokens) * m / (m + half_width)    m: the smaller one of N and K
  // so `half_tokens` is the number of tokens with which half of the efficiency is reached.
  double forward_efficiency = 0.6;
  double backward_input_efficiency = 0.6;
  double backward_weight_efficiency = 0.55;
  double half_tokens = 64;
  double half_width = 128;
  double attention_efficiency = 0.3;           // of the operations model/flops.h counts
  double attention_backward_efficiency = 0.2;  // which does not count the recomputed scores

  double memory_gb_per_s = 0;           // of the node, read and written
  double cache_gb_per_s = 0;            // of one core, from its share of the caches
  double cache_mib = 0;                 // of the node's last-level caches
  double elementwise_efficiency = 0.6;  // share of these
  double optimizer_efficiency = 0.9;    // share of memory_gb_per_s
  double call_s = 5e-6;                 // per operation: starting and joining the threads

  double node_latency_s = 20e-6;  // per group that ranks of a node exchange
  double network_gbps = 25;       // of the node and direction, sustained
  double network_efficiency = 0.8;
  double network_latency_s = 100e-6;  // per transfer

  bool operator==(const MachineRates&) const = default;
};

// What a catalogue says about an instance type.
struct InstanceFacts {
  int64_t num_cores = 1;  // physical ones
  double clock_ghz = 0;   // all cores busy
  bool amx = false;
  bool avx512_bf16 = false;  // without either, bf16 is computed as float32
  bool avx512 = true;
  double memory_gb_per_s = 0;  // of the instance; 0: by its share of a socket's channels
  double network_gbps = 25;
};

// Efficiencies are those of docs/performance.md.
MachineRates rates_of_instance(const InstanceFacts& instance);

// As a JSON object, indent 2, trailing newline; members are named as above.
std::string rates_json(const MachineRates& rates);
// Members that are left out keep their default. Error(kBadData) naming `origin` and the member.
MachineRates parse_rates(std::string_view json, const std::string& origin);

}  // namespace tessera
