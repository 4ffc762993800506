#include "cluster/node/nvidia_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/node/node_check.h"
#include "fake_machine.h"
#include "support/check_named.h"
#include "test_paths.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

NvidiaCards sound_cards() {
  NvidiaCard card;
  card.name = "NVIDIA H100";
  card.utilization = 0.5;
  card.clock_limits = static_cast<uint64_t>(ClockLimit::kSoftwarePowerCap);
  card.temperature_celsius = 60;
  card.corrected_errors = 3;
  card.uncorrected_errors = 0;
  card.link_generation = card.max_link_generation = 5;
  card.link_width = card.max_link_width = 16;
  NvidiaCards found = {.driver = "580", .error = "", .cards = {card, card}};
  found.cards[1].index = 1;
  return found;
}

Check check_of(const NvidiaCards& found, const std::string& name) {
  return check_named(check_nvidia_cards(found, found), name);
}

// On a node that is to have cards, one that has left the bus is a fault.
TEST(NvidiaChecks, CardsThatHaveToBeThereAreMissed) {
  const NvidiaCards none, two = sound_cards();
  const std::vector<Check> checks = check_nvidia_cards(none, none, 1);
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].outcome, CheckOutcome::kFailed);
  EXPECT_EQ(checks[0].message, "0 of 1 NVIDIA card found: restart or replace the node");
  EXPECT_EQ(check_named(check_nvidia_cards(two, two, 2), "gpu").outcome, CheckOutcome::kOk);
  EXPECT_EQ(check_named(check_nvidia_cards(two, two, 4), "gpu").message,
            "2 of 4 NVIDIA cards found: restart or replace the node");
}

TEST(NvidiaChecks, NoCardNoCheck) { EXPECT_TRUE(check_nvidia_cards({}, {}).empty()); }

TEST(NvidiaChecks, SoundCardsAreOk) {
  for (const Check& check : check_nvidia_cards(sound_cards(), sound_cards())) {
    EXPECT_EQ(check.outcome, CheckOutcome::kOk) << check.name << ": " << check.message;
  }
  EXPECT_EQ(check_of(sound_cards(), "gpu").message, "2 NVIDIA cards, driver 580");
}

TEST(NvidiaChecks, ADriverOrACardThatDoesNotAnswerFails) {
  NvidiaCards found = sound_cards();
  found.cards[1] = NvidiaCard();
  found.cards[1].index = 1;
  found.cards[1].error = "GPU is lost (NVML error 15)";
  EXPECT_EQ(check_of(found, "gpu").outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check_of(found, "gpu").message, HasSubstr("card 1: GPU is lost (NVML error 15): restart"));
  EXPECT_EQ(check_of(found, "gpu_memory_errors").outcome, CheckOutcome::kOk);
  found = {.driver = "", .error = "Driver/library version mismatch", .cards = {}};
  EXPECT_EQ(check_nvidia_cards(found, found).size(), 1u);
  EXPECT_EQ(check_of(found, "gpu").outcome, CheckOutcome::kFailed);
}

TEST(NvidiaChecks, OnlySlowdownsThatLastFail) {
  for (const ClockLimitInfo& info : all_clock_limits()) {
    NvidiaCards found = sound_cards();
    found.cards[1].clock_limits = static_cast<uint64_t>(info.limit);
    EXPECT_EQ(check_of(found, "gpu_throttling").outcome,
              info.is_fault ? CheckOutcome::kFailed : CheckOutcome::kOk)
        << info.name;
    EXPECT_EQ(check_named(check_nvidia_cards(sound_cards(), found), "gpu_throttling").outcome,
              CheckOutcome::kOk)
        << info.name;
  }
  NvidiaCards found = sound_cards();
  found.cards[1].clock_limits = 0x48;
  EXPECT_THAT(
      check_of(found, "gpu_throttling").message,
      HasSubstr("slowed down: card 1 (NVIDIA H100): hardware slowdown, hardware thermal, 60 degrees"));
  EXPECT_EQ(check_of(found, "gpu_throttling").value, 1);
  for (NvidiaCard& card : found.cards) card.clock_limits.reset();
  EXPECT_EQ(check_of(found, "gpu_throttling").outcome, CheckOutcome::kSkipped);
}

TEST(NvidiaChecks, UncorrectedErrorsFailAndCorrectedOnesDoNot) {
  NvidiaCards found = sound_cards();
  found.cards[0].uncorrected_errors = 1;
  EXPECT_EQ(check_of(found, "gpu_memory_errors").outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check_of(found, "gpu_memory_errors").message,
              HasSubstr("1 uncorrected ECC error on card 0 (NVIDIA H100): reset"));
  for (NvidiaCard& card : found.cards) card.uncorrected_errors.reset();
  EXPECT_EQ(check_of(found, "gpu_memory_errors").outcome, CheckOutcome::kSkipped);
}

TEST(NvidiaChecks, ASlowLinkIsAdviceAndAnIdleOneIsNot) {
  NvidiaCards found = sound_cards();
  found.cards[0].link_width = 8;
  EXPECT_EQ(check_of(found, "gpu_link").outcome, CheckOutcome::kAdvice);
  EXPECT_THAT(check_of(found, "gpu_link").message, HasSubstr("card 0 (NVIDIA H100): 8 of 16 PCIe lanes"));
  found = sound_cards();
  found.cards[0].link_generation = 1;
  EXPECT_EQ(check_of(found, "gpu_link").outcome, CheckOutcome::kAdvice);
  EXPECT_THAT(check_of(found, "gpu_link").message, HasSubstr("PCIe generation 1 of 5"));
  found.cards[0].utilization = 0;
  EXPECT_EQ(check_of(found, "gpu_link").outcome, CheckOutcome::kOk);
  for (NvidiaCard& card : found.cards) card.link_width.reset();
  EXPECT_EQ(check_of(found, "gpu_link").outcome, CheckOutcome::kSkipped);
}

TEST(NvidiaChecks, TheNodeCheckHasThemWhereThereAreCards) {
  const FakeMachine machine;
  NodeCheckOptions options;
  options.is_passive = true;
  options.root = machine.root();
  options.nvml_library = fake_nvml_library();
  const std::vector<Check> checks = check_node(options);
  EXPECT_EQ(check_named(checks, "gpu").outcome, CheckOutcome::kOk);
  EXPECT_THAT(check_named(checks, "gpu_throttling").message,
              HasSubstr("card 1 (NVIDIA \"L4\"): hardware slowdown, hardware thermal, 97 degrees Celsius"));
  EXPECT_EQ(check_named(checks, "gpu_memory_errors").outcome, CheckOutcome::kOk);
  EXPECT_EQ(check_named(checks, "gpu_link").outcome, CheckOutcome::kAdvice);
  options.nvml_library = "libno-such-nvml.so.1";
  const std::vector<Check> without = check_node(options);
  EXPECT_EQ(without.size() + 4, checks.size());
  for (const Check& check : without) EXPECT_FALSE(check.name.starts_with("gpu")) << check.name;
}

}  // namespace
}  // namespace tessera
