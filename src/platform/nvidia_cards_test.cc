#include "platform/nvidia_cards.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "test_paths.h"

namespace tessera {
namespace {

class FakeCards : public testing::Test {
 protected:
  void TearDown() override { unsetenv("FAKE_NVML"); }
  static NvidiaCards read(const char* variant = "") {
    setenv("FAKE_NVML", variant, 1);
    return nvidia_cards(fake_nvml_library());
  }
};

TEST_F(FakeCards, EveryValueIsReadInItsUnit) {
  const NvidiaCards found = read();
  EXPECT_EQ(found.driver, "580.65.06");
  EXPECT_EQ(found.error, "");
  ASSERT_EQ(found.cards.size(), 2u);
  const NvidiaCard& card = found.cards[0];
  EXPECT_EQ(card.index, 0);
  EXPECT_EQ(card.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(card.uuid, "GPU-11111111-2222-3333-4444-555555555555");
  EXPECT_EQ(card.error, "");
  EXPECT_EQ(card.memory_total_bytes, int64_t{80} << 30);
  EXPECT_EQ(card.memory_free_bytes, int64_t{20} << 30);
  EXPECT_EQ(card.memory_used_bytes, int64_t{60} << 30);
  EXPECT_EQ(card.utilization, 0.87);
  EXPECT_EQ(card.sm_clock_hertz, 1'755'000'000);
  EXPECT_EQ(card.max_sm_clock_hertz, 1'980'000'000);
  EXPECT_EQ(card.memory_clock_hertz, 2'619'000'000);
  EXPECT_EQ(card.max_memory_clock_hertz, 2'619'000'000);
  EXPECT_EQ(card.power_watts, 699.5);
  EXPECT_EQ(card.power_limit_watts, 700);
  EXPECT_EQ(card.temperature_celsius, 61);
  EXPECT_EQ(card.corrected_errors, 3);
  EXPECT_EQ(card.uncorrected_errors, 0);
  EXPECT_EQ(card.link_generation, 5);
  EXPECT_EQ(card.max_link_generation, 5);
  EXPECT_EQ(card.link_width, 16);
  EXPECT_EQ(card.max_link_width, 16);
  for (const ClockLimitInfo& info : all_clock_limits()) {
    EXPECT_EQ(card.has(info.limit), info.limit == ClockLimit::kSoftwarePowerCap) << info.name;
  }
}

TEST_F(FakeCards, WhatACardDoesNotSupportIsEmpty) {
  const NvidiaCards found = read();
  ASSERT_EQ(found.cards.size(), 2u);
  const NvidiaCard& card = found.cards[1];
  EXPECT_EQ(card.index, 1);
  EXPECT_EQ(card.name, "NVIDIA \"L4\"");
  EXPECT_EQ(card.utilization, std::nullopt);
  EXPECT_EQ(card.corrected_errors, std::nullopt);
  EXPECT_EQ(card.uncorrected_errors, std::nullopt);
  EXPECT_EQ(card.link_width, 8);
  EXPECT_TRUE(card.has(ClockLimit::kHardwareSlowdown));
  EXPECT_TRUE(card.has(ClockLimit::kHardwareThermal));
  EXPECT_FALSE(card.has(ClockLimit::kIdle));
  EXPECT_FALSE(NvidiaCard().has(ClockLimit::kIdle));
}

TEST_F(FakeCards, WithoutALibraryOrADriverThereAreNone) {
  EXPECT_TRUE(nvidia_cards("libno-such-nvml.so.1").is_empty());
  EXPECT_TRUE(nvidia_cards("libm.so.6").is_empty()) << "a library without these functions";
  EXPECT_TRUE(read("no_driver").is_empty());
}

TEST_F(FakeCards, ADriverThatDoesNotFitIsAnError) {
  const NvidiaCards found = read("mismatch");
  EXPECT_FALSE(found.is_empty());
  EXPECT_TRUE(found.cards.empty());
  EXPECT_EQ(found.error, "Driver/library version mismatch (NVML error 18)");
}

TEST_F(FakeCards, ACardThatIsLostKeepsItsIndex) {
  const NvidiaCards found = read("lost");
  ASSERT_EQ(found.cards.size(), 2u);
  EXPECT_EQ(found.cards[0].error, "");
  EXPECT_EQ(found.cards[1].index, 1);
  EXPECT_EQ(found.cards[1].error, "GPU is lost (NVML error 15)");
  EXPECT_EQ(found.cards[1].memory_total_bytes, std::nullopt);
}

// A machine of the tests has a card or not; both must work.
TEST_F(FakeCards, TheMachinesOwnAreReadTheSameTwice) {
  EXPECT_EQ(nvidia_cards().cards.size(), nvidia_cards().cards.size());
}

TEST(ClockLimits, FaultsAreThoseOfHeatAndPowerSupply) {
  uint64_t all = 0, faults = 0;
  for (const ClockLimitInfo& info : all_clock_limits()) {
    all |= static_cast<uint64_t>(info.limit);
    if (info.is_fault) faults |= static_cast<uint64_t>(info.limit);
  }
  EXPECT_EQ(all, 0x1ffu);
  EXPECT_EQ(faults, 0xe8u);
}

}  // namespace
}  // namespace tessera
