#include "forecast/time/machine_rates.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "formats/json.h"

namespace tessera {
namespace {

// Calls visit(name, member) for every member.
template <typename Rates, typename Visit>
void for_each_member(Rates& rates, const Visit& visit) {
  visit("num_cores", rates.num_cores);
  visit("core_bf16_tflops", rates.core_bf16_tflops);
  visit("core_f32_tflops", rates.core_f32_tflops);
  visit("packs_weights", rates.packs_weights);
  visit("forward_efficiency", rates.forward_efficiency);
  visit("backward_input_efficiency", rates.backward_input_efficiency);
  visit("backward_weight_efficiency", rates.backward_weight_efficiency);
  visit("half_tokens", rates.half_tokens);
  visit("half_width", rates.half_width);
  visit("weight_half_width", rates.weight_half_width);
  visit("product_call_s", rates.product_call_s);
  visit("int8_product_speed", rates.int8_product_speed);
  visit("nf4_product_speed", rates.nf4_product_speed);
  visit("attention_efficiency", rates.attention_efficiency);
  visit("attention_backward_efficiency", rates.attention_backward_efficiency);
  visit("attention_half_row", rates.attention_half_row);
  visit("memory_gb_per_s", rates.memory_gb_per_s);
  visit("cache_mib", rates.cache_mib);
  visit("core_gb_per_s", rates.core_gb_per_s);
  visit("call_s", rates.call_s);
  visit("optimizer_efficiency", rates.optimizer_efficiency);
  visit("core_coded_giga_elements_per_s", rates.core_coded_giga_elements_per_s);
  visit("imbalance", rates.imbalance);
  visit("node_latency_s", rates.node_latency_s);
  visit("network_gbps", rates.network_gbps);
  visit("network_efficiency", rates.network_efficiency);
  visit("network_latency_s", rates.network_latency_s);
  visit("disk_gb_per_s", rates.disk_gb_per_s);
  visit("step_s", rates.step_s);
}

// Zero is a time that is neglected, or a size at which nothing is lost; a speed of zero has no meaning.
bool may_be_zero(std::string_view name) {
  return name.ends_with("_s") || name.find("half_") != name.npos || name == "imbalance";
}

void read_member(const JsonNode& node, std::string_view, bool* member) { *member = node.boolean_or(*member); }
void read_member(const JsonNode& node, std::string_view, int64_t* member) {
  constexpr int64_t kMaxCores = 1 << 20;
  if (!node.is_null()) *member = node.integer(1, kMaxCores);
}
void read_member(const JsonNode& node, std::string_view name, double* member) {
  *member = node.number_or(*member);
  const bool is_speed = name.ends_with("_per_s");
  if (!std::isfinite(*member) || *member < 0 || (*member == 0 && (is_speed || !may_be_zero(name)))) {
    node.expected(is_speed || !may_be_zero(name) ? "a number above 0" : "a number of at least 0");
  }
}

}  // namespace

MachineRates rates_of_instance(const InstanceFigures& instance) {
  // Operations of a core in a cycle. AMX: TDPBF16PS, 16 x 16 sums of 32 products, takes 16 cycles. AVX-512:
  // two units of 16 float32 lanes; VDPBF16PS does two products in each. AVX2: half as wide.
  constexpr double kAmx = 1024, kAvx512Bf16 = 128, kAvx512 = 64, kAvx2 = 32;
  // Per core, of 8 channels of DDR5-4800 for 48 cores (Sapphire Rapids), times what STREAM reaches of them.
  constexpr double kCoreMemoryGbPerS = 8 * 8 * 4.8 / 48 * 0.75;
  MachineRates rates;
  const auto cores = static_cast<double>(instance.num_cores);
  rates.num_cores = instance.num_cores;
  const double f32_flop = instance.avx512 ? kAvx512 : kAvx2;
  const double bf16_flop = instance.amx ? kAmx : instance.avx512_bf16 ? kAvx512Bf16 : f32_flop;
  rates.core_f32_tflops = f32_flop * instance.clock_ghz * 1e-3;
  rates.core_bf16_tflops = bf16_flop * instance.clock_ghz * 1e-3;
  rates.packs_weights = instance.amx;
  rates.memory_gb_per_s = instance.memory_gb_per_s > 0 ? instance.memory_gb_per_s : cores * kCoreMemoryGbPerS;
  constexpr double kCoreCacheMib = 2;  // of L3, Sapphire Rapids and its successors
  rates.cache_mib = cores * kCoreCacheMib;
  constexpr double kClockMeasuredGhz = 3.2;  // the machine of docs/performance.md under AMX
  rates.core_gb_per_s *= instance.clock_ghz / kClockMeasuredGhz;
  rates.network_gbps = instance.network_gbps;
  rates.imbalance = 0.03;  // two ranks of one thread each (docs/performance.md, "Predicted steps")
  // docs/memory.md, "Quantized base".
  rates.int8_product_speed = instance.amx ? 1.6 : instance.avx512_bf16 ? 2 : 1;
  if (instance.amx) return rates;
  // oneDNN comes nearer to the lower peak of the vector units, whatever the width.
  rates.forward_efficiency = 1;
  rates.backward_input_efficiency = 0.9;
  rates.backward_weight_efficiency = 0.78;
  rates.half_tokens = 200;
  rates.half_width = rates.weight_half_width = 0;
  rates.product_call_s = 5e-6;
  rates.attention_efficiency = 0.41;
  rates.attention_backward_efficiency = 0.245;
  rates.attention_half_row = 110;
  return rates;
}

MachineRates rates_of_card(const CardFigures& card, bool optimizer_on_host) {
  // Shares of the peak that attention reaches within a step (362 TFLOPS forward and 330 backward on Hopper,
  // 233 and 180 with the kernels of other cards, counting half of the square), and products; with these,
  // predicted steps take as long as measured ones.
  constexpr double kProducts = 0.68;
  constexpr double kF32Share = 0.07;         // without TF32
  constexpr double kHostUpdateGbPerS = 150;  // 4.5 billion parameters in 0.8 s on 16 cores
  MachineRates rates;
  rates.num_cores = 1;
  rates.core_bf16_tflops = card.bf16_tflops;
  rates.core_f32_tflops = kF32Share * card.bf16_tflops;
  rates.forward_efficiency = rates.backward_input_efficiency = rates.backward_weight_efficiency = kProducts;
  rates.half_tokens = rates.half_width = rates.weight_half_width = 0;
  rates.product_call_s = rates.call_s = 5e-6;
  rates.attention_efficiency = card.has_wgmma ? 0.366 : 0.236;
  rates.attention_backward_efficiency = card.has_wgmma ? 0.334 : 0.182;
  rates.memory_gb_per_s = rates.core_gb_per_s = card.memory_gb_per_s;
  rates.optimizer_efficiency = optimizer_on_host ? kHostUpdateGbPerS / card.memory_gb_per_s : 0.88;
  return rates;
}

std::string rates_json(const MachineRates& rates) {
  nlohmann::ordered_json json;
  for_each_member(rates, [&](const char* name, const auto& member) { json[name] = member; });
  return json.dump(2) + "\n";
}

MachineRates parse_rates(std::string_view text, const std::string& origin) {
  const Json document = parse_json(text, origin);
  const JsonNode node(document, origin);
  node.object();
  MachineRates rates;
  std::vector<std::string_view> names;
  for_each_member(rates, [&](const char* name, auto& member) {
    read_member(node[name], name, &member);
    names.emplace_back(name);
  });
  for (const auto& [name, value] : document.items()) {
    if (std::ranges::find(names, name) != names.end()) continue;
    fail(ExitCode::kBadData, "{}: unknown member '{}': expected one of {}", origin, printable(name),
         fmt::join(names, ", "));
  }
  return rates;
}

}  // namespace tessera
