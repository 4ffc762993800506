#include "monitor/metrics/nvidia_metrics.h"

#include <algorithm>
#include <optional>
#include <string>

#include "monitor/metrics/metric_table.h"

namespace tessera {
namespace {

template <typename T>
void write_by_card(const NvidiaCards& found, std::string_view name, std::optional<T> NvidiaCard::*value,
                   Exposition* out) {
  if (std::ranges::none_of(found.cards, [&](const NvidiaCard& card) { return bool(card.*value); })) return;
  out->family(metric(name));
  for (const NvidiaCard& card : found.cards) {
    if (!(card.*value)) continue;
    out->sample(static_cast<double>(*(card.*value)),
                {{"gpu", std::to_string(card.index)}, {"name", card.name}});
  }
}

void write_clock_limits(const NvidiaCards& found, Exposition* out) {
  const auto is_known = [](const NvidiaCard& card) { return card.clock_limits.has_value(); };
  if (std::ranges::none_of(found.cards, is_known)) return;
  out->family(metric("tessera_gpu_throttled"));
  for (const NvidiaCard& card : found.cards) {
    if (!is_known(card)) continue;
    for (const ClockLimitInfo& info : all_clock_limits()) {
      out->sample(card.has(info.limit) ? 1 : 0,
                  {{"gpu", std::to_string(card.index)}, {"name", card.name}, {"reason", info.name}});
    }
  }
}

}  // namespace

void write_nvidia_metrics(const NvidiaCards& found, Exposition* out) {
  write_by_card(found, "tessera_gpu_memory_used_bytes", &NvidiaCard::memory_used_bytes, out);
  write_by_card(found, "tessera_gpu_memory_total_bytes", &NvidiaCard::memory_total_bytes, out);
  write_by_card(found, "tessera_gpu_utilization_ratio", &NvidiaCard::utilization, out);
  write_by_card(found, "tessera_gpu_sm_clock_hertz", &NvidiaCard::sm_clock_hertz, out);
  write_by_card(found, "tessera_gpu_power_watts", &NvidiaCard::power_watts, out);
  write_by_card(found, "tessera_gpu_temperature_celsius", &NvidiaCard::temperature_celsius, out);
  write_clock_limits(found, out);
}

}  // namespace tessera
