#include "monitor/metrics/nvidia_metrics.h"

#include <gtest/gtest.h>

#include "monitor/metrics/metric_table.h"
#include "support/web/metrics_text.h"
#include "test_paths.h"

namespace tessera {
namespace {

TEST(NvidiaMetrics, EveryCardHasWhatItSupports) {
  for (const bool is_open_metrics : {false, true}) {
    Exposition out(is_open_metrics);
    write_nvidia_metrics(nvidia_cards(fake_nvml_library()), &out);
    const MetricsText text = parse_metrics(std::move(out).finish(), is_open_metrics);
    const std::string first = R"({gpu="0",name="NVIDIA H100 80GB HBM3"})",
                      second = R"({gpu="1",name="NVIDIA \"L4\""})";
    EXPECT_EQ(text.at("tessera_gpu_memory_used_bytes" + first), 60.0 * (1 << 30));
    EXPECT_EQ(text.at("tessera_gpu_memory_total_bytes" + second), 24.0 * (1 << 30));
    EXPECT_EQ(text.at("tessera_gpu_utilization_ratio" + first), 0.87);
    EXPECT_FALSE(text.samples.contains("tessera_gpu_utilization_ratio" + second));
    EXPECT_EQ(text.at("tessera_gpu_sm_clock_hertz" + first), 1755e6);
    EXPECT_EQ(text.at("tessera_gpu_power_watts" + second), 40.25);
    EXPECT_EQ(text.at("tessera_gpu_temperature_celsius" + second), 97);
    const auto throttled = [&](const std::string& card, const std::string& reason) {
      return text.at("tessera_gpu_throttled{" + card + ",reason=\"" + reason + "\"}");
    };
    const std::string second_card = R"(gpu="1",name="NVIDIA \"L4\"")";
    EXPECT_EQ(throttled(second_card, "hardware_thermal"), 1);
    EXPECT_EQ(throttled(second_card, "software_power_cap"), 0);
    EXPECT_EQ(throttled(R"(gpu="0",name="NVIDIA H100 80GB HBM3")", "software_power_cap"), 1);
    EXPECT_EQ(text.types.size(), 7u);
  }
}

TEST(NvidiaMetrics, WithoutCardsThereIsNothing) {
  Exposition out(false);
  write_nvidia_metrics(nvidia_cards("libno-such-nvml.so.1"), &out);
  NvidiaCards lost;
  lost.cards.emplace_back().error = "GPU is lost";
  write_nvidia_metrics(lost, &out);
  EXPECT_EQ(std::move(out).finish(), "");
}

}  // namespace
}  // namespace tessera
