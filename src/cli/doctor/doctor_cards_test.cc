// Tests what doctor reports about cards, with fake ones.
#include "cli/doctor/doctor_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/node/nvidia_checks.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::Pair;

NvidiaCards two_cards() {
  NvidiaCard busy;
  busy.name = "NVIDIA H100";
  busy.memory_total_bytes = int64_t{80} << 30;
  busy.memory_free_bytes = int64_t{20} << 30;
  busy.sm_clock_hertz = 1'755'000'000;
  busy.max_sm_clock_hertz = 1'980'000'000;
  busy.memory_clock_hertz = 2'619'000'000;
  busy.power_watts = 699.5;
  busy.power_limit_watts = 700;
  busy.temperature_celsius = 61;
  busy.clock_limits = static_cast<uint64_t>(ClockLimit::kSoftwarePowerCap);
  busy.link_generation = busy.max_link_generation = 5;
  busy.link_width = 8;
  busy.max_link_width = 16;
  NvidiaCard lost;
  lost.index = 1;
  lost.error = "GPU is lost";
  return {.driver = "580.65.06", .error = "", .cards = {busy, lost}};
}

TEST(DoctorCards, RowsSayWhatIsKnownAndWarn) {
  const NvidiaCards found = two_cards();
  EXPECT_THAT(
      card_rows(found, check_nvidia_cards(found, found)),
      ElementsAre(
          Pair("driver", "580.65.06"), Pair("card 0", "NVIDIA H100, 80.0 GiB, 20.0 GiB free"),
          Pair("", "SM 1755 of 1980 MHz, memory 2619 MHz, limited by: software power cap"),
          Pair("", "700 of 700 W, 61 degrees Celsius, PCIe generation 5 of 5, 8 of 16 lanes"),
          Pair("card 1", "does not answer: GPU is lost"),
          Pair("warning", "card 1: GPU is lost: restart or replace the node"),
          Pair("warning",
               "card 0 (NVIDIA H100): 8 of 16 PCIe lanes: reseat the card, or check its slot and the BIOS")));
  EXPECT_THAT(card_rows({.driver = "", .error = "", .cards = {{}}}, {}),
              ElementsAre(Pair("card 0", "says nothing about itself")));
  EXPECT_TRUE(card_rows({}, {}).empty());
}

TEST(DoctorCards, JsonHasNullForWhatIsNotKnown) {
  const NvidiaCards found = two_cards();
  const nlohmann::ordered_json report = cards_json(found, check_nvidia_cards(found, found));
  EXPECT_EQ(report["driver"], "580.65.06");
  ASSERT_EQ(report["cards"].size(), 2u);
  EXPECT_EQ(report["cards"][0]["power_watts"], 699.5);
  EXPECT_EQ(report["cards"][0]["clock_limits"], nlohmann::ordered_json({"software_power_cap"}));
  EXPECT_TRUE(report["cards"][0]["utilization"].is_null());
  EXPECT_TRUE(report["cards"][1]["clock_limits"].is_null());
  EXPECT_EQ(report["cards"][1]["error"], "GPU is lost");
  ASSERT_EQ(report["warnings"].size(), 2u);
  EXPECT_EQ(report["warnings"][1]["name"], "gpu_link");
}

}  // namespace
}  // namespace tessera
