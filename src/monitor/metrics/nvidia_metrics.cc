#include "monitor/metrics/nvidia_metrics.h"

#include <algorithm>
#include <optional>
#include <string>

#include "monitor/metrics/metric_table.h"

namespace tessera {
namespace {

template <typename T>
void write_by_card(const NvidiaCards& found, Metric metric, std::optional<T> NvidiaCard::*value,
                   Exposition* out) {
  if (std::ranges::none_of(found.cards, [&](const NvidiaCard& card) { return bool(card.*value); })) return;
  out->family(info_of(metric));
  for (const NvidiaCard& card : found.cards) {
    if (!(card.*value)) continue;
    out->sample(static_cast<double>(*(card.*value)),
                {{"gpu", std::to_string(card.index)}, {"name", card.name}});
  }
}

void write_clock_limits(const NvidiaCards& found, Exposition* out) {
  const auto is_known = [](const NvidiaCard& card) { return card.clock_limits.has_value(); };
  if (std::ranges::none_of(found.cards, is_known)) return;
  out->family(info_of(Metric::kGpuThrottled));
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
  write_by_card(found, Metric::kGpuMemoryUsedBytes, &NvidiaCard::memory_used_bytes, out);
  write_by_card(found, Metric::kGpuMemoryTotalBytes, &NvidiaCard::memory_total_bytes, out);
  write_by_card(found, Metric::kGpuUtilizationRatio, &NvidiaCard::utilization, out);
  write_by_card(found, Metric::kGpuSmClockHertz, &NvidiaCard::sm_clock_hertz, out);
  write_by_card(found, Metric::kGpuPowerWatts, &NvidiaCard::power_watts, out);
  write_by_card(found, Metric::kGpuTemperatureCelsius, &NvidiaCard::temperature_celsius, out);
  write_clock_limits(found, out);
}

}  // namespace tessera
