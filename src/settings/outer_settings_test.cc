#include "settings/derived.h"

#include <gmock/gmock.h>

#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using OuterArguments = ArgumentsTest;

TEST_F(OuterArguments, AreThoseOfDiloco) {
  resolve();
  EXPECT_FALSE(outer_settings_of(spec_.outer).has_value());
  give("sync_every", "50");
  give("num_fragments", "4");
  give("fragment_sync_delay", "5");
  give("fragment_update_alpha", "0.5");
  resolve();
  const OuterSettings settings = outer_settings_of(spec_.outer).value();
  EXPECT_EQ(settings.sync_every, 50);
  EXPECT_EQ(settings.num_fragments, 4);
  EXPECT_EQ(settings.sync_delay, 5);
  EXPECT_EQ(settings.update_alpha, 0.5);
  EXPECT_EQ(settings.learning_rate, 0.7);
  EXPECT_EQ(settings.momentum, 0.9);
}

TEST_F(OuterArguments, HaveNoEffectWithoutSyncEvery) {
  give("outer_momentum", "0.8");
  testing::internal::CaptureStderr();
  resolve();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("outer_momentum has no effect: sync_every is 0"));
}

TEST_F(OuterArguments, MustFitEachOther) {
  give("sync_every", "4");
  give("num_fragments", "5");
  EXPECT_THAT(contradiction(), HasSubstr("num_fragments 5 is more than sync_every 4"));
  give("num_fragments", "2");
  give("fragment_sync_delay", "2");
  EXPECT_THAT(contradiction(),
              HasSubstr("fragment_sync_delay 2 must be less than sync_every 4 / num_fragments 2"));
  EXPECT_THAT(refusal("fragment_update_alpha", "1"), HasSubstr("fragment_update_alpha"));
  EXPECT_THAT(refusal("outer_learning_rate", "0"), HasSubstr("outer_learning_rate"));
}

TEST_F(OuterArguments, ExcludeWhatNeedsAllNodesOrADisk) {
  give("sync_every", "4");
  const std::pair<const char*, const char*> excluded[] = {
      {"peer_snapshot_steps", "10"},        {"offload_optimizer_device", "nvme"},
      {"optimizer_in_backward", "true"},    {"fit", "true"},
      {"load_weights_once", "per_cluster"}, {"zero_quantized_weights", "true"}};
  const RunSpec plain = spec_;
  for (const auto& [name, value] : excluded) {
    spec_ = plain;
    spec_.sharding.stage = 2;
    give(name, value);
    EXPECT_THAT(contradiction(), HasSubstr(std::string("sync_every cannot be combined with ") + name))
        << name;
  }
  spec_ = plain;
  give("optim", "muon");
  EXPECT_THAT(contradiction(), HasSubstr("found optim muon"));
}

}  // namespace
}  // namespace tessera
