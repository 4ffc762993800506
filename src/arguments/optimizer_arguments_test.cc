#include <gmock/gmock.h>

#include "support/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using OptimizerArguments = ArgumentsTest;

TEST_F(OptimizerArguments, StateThatIsNotByElementsIsNeitherStreamedNorCopied) {
  for (const char* optim : {"muon", "adafactor"}) {
    give("optim", optim);
    give("offload_optimizer_device", "nvme");
    EXPECT_THAT(contradiction(), HasSubstr(std::string("contradicts optim ") + optim));
    give("offload_optimizer_device", "none");
    give("peer_snapshot_steps", "5");
    EXPECT_THAT(contradiction(), HasSubstr(std::string("peer_snapshot_steps 5 contradicts optim ") + optim));
    give("peer_snapshot_steps", "0");
    resolve();
  }
}

TEST_F(OptimizerArguments, MuonsSettingsWithoutItAreWarnedOf) {
  give("muon_momentum", "0.9");
  testing::internal::CaptureStderr();
  resolve();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("muon_momentum has no effect: optim is adamw_torch"));
  EXPECT_THAT(refusal("muon_momentum", "1"), HasSubstr("from 0 to below 1"));
}

TEST_F(OptimizerArguments, DeepSpeedsMuonIsMuonWithItsRateAndDefaults) {
  give("deepspeed", R"({"train_micro_batch_size_per_gpu": "auto",
                        "optimizer": {"type": "Muon", "params": {"lr": 0.02, "momentum": 0.9}}})");
  resolve();
  EXPECT_EQ(args_.optim, "muon");
  EXPECT_EQ(args_.learning_rate, 0.02);
  EXPECT_EQ(args_.muon_momentum, 0.9);
  EXPECT_EQ(args_.muon_adjust_lr_fn, "original");
  EXPECT_EQ(args_.adam_beta2, 0.95);
  EXPECT_EQ(args_.adam_epsilon, 1e-10);
  give("optim", "adamw_torch");
  EXPECT_THAT(contradiction(), HasSubstr("optimizer.type muon and optim adamw_torch"));
}

}  // namespace
}  // namespace tessera
