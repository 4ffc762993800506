#include "model/offloaded_inputs.h"

#include <gtest/gtest.h>

#include "support/model_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

constexpr uint64_t kOffloadSeed = 3;

ModelConfig config_of(int64_t num_layers) {
  ModelConfig config = tiny_config();
  config.hidden_size = 36;
  config.num_hidden_layers = num_layers;
  return config;
}

// Loss and gradients of a batch, by a model that has done other passes before.
class OffloadedRun {
 public:
  OffloadedRun(int64_t num_layers, bool offloads)
      : test_(config_of(num_layers), DType::kBF16,
              random_weights(parameter_layout(config_of(num_layers)), 0.3f, kOffloadSeed)) {
    ActivationLimits limits = limits_of(batch({100, 60}), /*gradient_checkpointing=*/true);
    limits.offload_inputs = offloads;
    test_.model().offload_inputs_to(folder_.path() / "rank-0.inputs");
    test_.model().reserve(limits);
  }

  static PackedBatch batch(const std::vector<int64_t>& lengths) {
    return pack(random_rows(lengths, tiny_config().vocab_size, kOffloadSeed));
  }
  LlamaModel& model() { return test_.model(); }
  std::vector<float> step(const std::vector<int64_t>& lengths) {
    model().forward_backward(batch(lengths), 1.0f, 0, Update::kOverwrite);
    return test_.gradients();
  }
  // A pass that ends before the backward of `last_group`.
  void abandon(int64_t last_group) {
    model().call_between_layers(
        [=](int64_t group, WeightUse use) { return use == WeightUse::kForward || group > last_group; });
    model().forward_backward(batch({100, 60}), 1.0f);
    model().call_between_layers({});
  }
  bool folder_is_empty() const { return std::filesystem::is_empty(folder_.path()); }

 private:
  TestFolder folder_;
  TestModel test_;
};

TEST(OffloadedInputs, GiveTheSameBits) {
  for (const int64_t num_layers : {1, 3, 4, 5, 8}) {
    SCOPED_TRACE(num_layers);
    OffloadedRun memory(num_layers, false), disk(num_layers, true);
    EXPECT_TRUE(disk.folder_is_empty());
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{100, 60}, std::vector<int64_t>{5}, std::vector<int64_t>{50, 23}}) {
      EXPECT_TRUE(disk.step(lengths) == memory.step(lengths)) << lengths.front();
      EXPECT_EQ(disk.model().forward_loss(OffloadedRun::batch({90})).loss_sum,
                memory.model().forward_loss(OffloadedRun::batch({90})).loss_sum);
    }
    for (const int64_t group : {int64_t{1}, num_layers - 2}) {
      disk.abandon(group);
      EXPECT_TRUE(disk.step({100, 60}) == memory.step({100, 60})) << "abandoned before layer " << group;
    }
  }
}

TEST(OffloadedInputs, TakeThreeSlotsOfMemoryAndTheRestOfTheDisk) {
  OffloadedRun memory(8, false), disk(8, true);
  const ActivationBytes in_memory = memory.model().reserved_bytes(), on_disk = disk.model().reserved_bytes();
  const int64_t input_bytes = 160 * 36 * 2, slot_bytes = OffloadedInputs::slot_bytes(input_bytes);
  EXPECT_EQ(slot_bytes % kDirectAlignment, 0);
  EXPECT_EQ(on_disk.working_bytes, in_memory.working_bytes);
  EXPECT_NEAR(static_cast<double>(in_memory.saved_bytes - on_disk.saved_bytes),
              static_cast<double>(8 * input_bytes - 3 * slot_bytes), 64 * 8);
  ActivationLimits limits = limits_of(OffloadedRun::batch({100, 60}), /*gradient_checkpointing=*/true);
  EXPECT_EQ(disk.model().offloaded_bytes(limits), 0);
  limits.offload_inputs = true;
  EXPECT_EQ(disk.model().offloaded_bytes(limits), 5 * slot_bytes);
}

}  // namespace
}  // namespace tessera
