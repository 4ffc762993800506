// Updates in the backward pass: the same bits as updates after it, under the same clipping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>

#include "expect_error.h"
#include "optim/clip.h"
#include "optim/elementwise.h"
#include "shard/parameter_store.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// 6 steps of 4 rows, merged into one pass.
SavingRun merged_run() {
  SavingRun run;
  run.spec.placement.merge_micro_batches = AutoChoice::kAlways;
  return run;
}

void train_in_backward(SavingRun& run, const std::string& output, const std::string& clip_mode = "global") {
  run.spec.placement.optimizer_in_backward = true;
  run.spec.clipping.mode = from_word(clip_mode);
  run.spec.output_dir = run.folder() / output;
  run.run();
}

void move_to_disk(RunSettings* spec) {
  spec->placement.param_device = spec->placement.optimizer_device = OffloadDevice::kNvme;
  spec->placement.offload_dir = fs::path(spec->output_dir).parent_path() / "offload";
  spec->placement.transfers.block_bytes = 4096;  // even a tiny layer is several blocks
}

struct FormCase {
  const char* dtype;
  const char* optim;
  bool is_tied;
  bool checkpointing;
  const char* pack_weights;
  double max_grad_norm;
  bool is_on_disk = false;  // weights of layers and optimizer state
};

TEST(OptimizerInBackward, GivesTheSameBytesAsUpdatesAfterThePass) {
  const std::vector<FormCase> cases = {{"bfloat16", "adamw_torch", false, true, "never", 0.05},
                                       {"bfloat16", "adamw_bf16", true, false, "always", 0},
                                       {"float32", "lion_32bit", true, true, "auto", 0.05},
                                       {"float32", "adamw_bf16", true, false, "auto", 0, true},
                                       {"float32", "adamw_torch", false, false, "never", 0},
                                       {"bfloat16", "adamw_torch", false, true, "auto", 0.05, true}};
  for (const FormCase& of : drawn_cases(cases)) {
    SCOPED_TRACE(
        fmt::format("{} {}, tied {}, clipping at {}", of.dtype, of.optim, of.is_tied, of.max_grad_norm));
    SavingRun run = merged_run();
    ModelConfig config = tiny_config();
    config.tie_word_embeddings = of.is_tied;
    config.num_hidden_layers = 5;
    write_test_model(run.spec.model.folder, config);
    run.spec.precision.dtype = from_word(of.dtype);
    run.spec.optimizer.form = from_word(of.optim);
    run.spec.placement.gradient_checkpointing = of.checkpointing;
    run.spec.placement.pack_weights = from_word(of.pack_weights);
    run.spec.clipping.max_norm = of.max_grad_norm;
    run.spec.objective.neftune_alpha = 5;
    run.spec.optimizer.weight_decay = 0.1;
    run.run();
    const fs::path expected = run.output();
    if (of.is_on_disk) move_to_disk(&run.spec);
    train_in_backward(run, "in backward");
    expect_same_run(run.output(), expected);
    EXPECT_EQ(tensor_files(run.output()), tensor_files(expected));
  }
}

struct RanksFormCase {
  RanksCase ranks;
  const char* dtype;
  bool is_tied;
  const char* pack_weights;
  double max_grad_norm;
  const char* state;  // offload_optimizer_device
};

TEST(OptimizerInBackward, GivesTheSameBytesOnSeveralRanks) {
  const std::vector<RanksFormCase> cases = {
      {{{1, 2}, 2, "auto"}, "bfloat16", false, "always", 0.05, "none"},
      {{{1, 4}, 3, "auto"}, "float32", true, "auto", 0, "nvme"},
      {{{2, 1}, 2, "per_step"}, "bfloat16", true, "never", 0.05, "none"},
      {{{2, 2}, 3, "per_layer"}, "bfloat16", false, "auto", 0.05, "nvme"},
      {{{4, 1}, 3, "per_layer"}, "bfloat16", false, "never", 0, "none"}};
  for (const RanksFormCase& of : drawn_cases(cases)) {
    SCOPED_TRACE(of.ranks.name());
    ModelConfig config = tiny_config();
    config.tie_word_embeddings = of.is_tied;
    config.num_hidden_layers = 5;
    SavingRun run(of.ranks.ranks, config);
    run.spec.placement.merge_micro_batches = AutoChoice::kAlways;
    run.spec.sharding.stage = of.ranks.stage;
    run.spec.sharding.gather_schedule = from_word(of.ranks.schedule);
    run.spec.sharding.prefetch_bucket_size = 0;
    run.spec.precision.dtype = from_word(of.dtype);
    run.spec.placement.pack_weights = from_word(of.pack_weights);
    run.spec.clipping.max_norm = of.max_grad_norm;
    run.run();
    const fs::path expected = run.output();
    run.spec.placement.optimizer_device = from_word(of.state);
    run.spec.placement.offload_dir = std::string(of.state) == "nvme" ? run.folder() / "offload" : fs::path();
    train_in_backward(run, "in backward");
    expect_same_run(run.output(), expected);
    EXPECT_EQ(tensor_files(run.output()), tensor_files(expected));

    run.spec.output_dir = run.folder() / "resumed";
    run.spec.resume = parse_resume("auto");
    run.run_until_signal(3);
    run.run();
    expect_same_run(run.output(), expected);
  }
}

TEST(OptimizerInBackward, EachFormResumesTheCheckpointsOfTheOther) {
  SavingRun run = merged_run();
  run.spec.precision.dtype = DType::kBF16;
  run.spec.evaluation.strategy = IntervalStrategy::kSteps;
  run.spec.evaluation.steps = 2;
  run.spec.data.eval_dataset = run.spec.data.dataset;
  run.run();
  const fs::path expected = run.output();
  const auto choose_form = [&run](bool in_backward) {
    run.spec.placement.optimizer_in_backward = in_backward;
    run.spec.placement.param_device = in_backward ? OffloadDevice::kNvme : OffloadDevice::kNone;
    run.spec.placement.offload_dir = run.folder() / "offload";
  };
  for (const bool ends_in_backward : {true, false}) {
    run.spec.output_dir = run.folder() / fmt::format("resumed {}", ends_in_backward);
    choose_form(!ends_in_backward);
    run.spec.resume = parse_resume("auto");
    run.run_until_signal(3);
    choose_form(ends_in_backward);
    EXPECT_EQ(run.run().differences, "");
    expect_same_run(run.output(), expected);
  }
}

// The norm by which the first step after the checkpoint is clipped is in the checkpoint.
TEST(OptimizerInBackward, ClippingByThePreviousNormResumesBitForBit) {
  SavingRun run = merged_run();
  run.spec.clipping.max_norm = 0.01;
  train_in_backward(run, "whole", "previous");
  const fs::path expected = run.output();
  run.spec.output_dir = run.folder() / "resumed";
  run.spec.resume = parse_resume("auto");
  run.run_until_signal(2);
  run.run();
  expect_same_run(run.output(), expected);
}

// Without memory of earlier steps AdamW's first moment is the gradient as it was clipped.
double norm_of_update(const fs::path& checkpoint) {
  double squares = 0;
  int64_t num_found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    for (const auto& [name, values] : read_tensors(entry.path())) {
      if (!name.starts_with("exp_avg") || name.starts_with("exp_avg_sq")) continue;
      ++num_found;
      for (const float value : values) squares += static_cast<double>(value) * value;
    }
  }
  EXPECT_GT(num_found, 0);
  return std::sqrt(squares);
}

TEST(OptimizerInBackward, ClipsByTheNormThatTheModeNames) {
  for (const std::string mode : {"global", "previous"}) {
    SavingRun run = merged_run();
    run.spec.optimizer.beta1 = 0;
    run.spec.clipping.max_norm = 0.01;
    run.spec.placement.optimizer_in_backward = true;
    run.spec.clipping.mode = from_word(mode);
    std::vector<double> norms;
    run.run({}, [&](const StepMetrics& metrics) { norms.push_back(metrics.grad_norm); });
    for (size_t step = 0; step < norms.size(); ++step) {
      const double clips_by = mode == "previous" && step > 0 ? norms[step - 1] : norms[step];
      EXPECT_NEAR(norm_of_update(run.output() / fmt::format("checkpoint-{}", step + 1)),
                  norms[step] * clip_factor(clips_by, 0.01), 1e-6)
          << mode << ", step " << step + 1;
    }
    EXPECT_GT(std::abs(norms[1] / norms[0] - 1), 1e-3) << "the modes cannot be told apart";
  }
}

TEST(OptimizerInBackward, StopsBeforeTheUpdateWhenTheLossIsNotFinite) {
  for (const double max_grad_norm : {0.0, 1e30}) {  // before the second run, and in the only one
    TinyRun tiny;
    tiny.spec.placement.optimizer_in_backward = true;
    tiny.spec.placement.merge_micro_batches = AutoChoice::kAlways;
    tiny.spec.schedule.learning_rate = 1e30;
    tiny.spec.clipping.max_norm = max_grad_norm;
    tiny.spec.saving.strategy = SaveStrategy::kSteps;
    tiny.spec.saving.steps = 1;
    ThreadPool pool(2);
    RecordingObserver observer;
    Trainer trainer(tiny.spec, pool, observer);
    expect_error(ExitCode::kNumerics, {"step 2: loss", "not finite", "left as they are after step 1"},
                 [&] { trainer.run(); });
    trainer.export_model(tiny.folder() / "now");
    EXPECT_EQ(read_tensors(tiny.folder() / "now"), read_tensors(tiny.output() / "checkpoint-1"));
  }
}

// A model with its parameters in either form, from the same start.
class Trained {
 public:
  Trained(const ModelConfig& config, bool in_backward)
      : model_(config, DType::kF32, *ops_), parameters_(make(in_backward)) {
    model_.reserve(limits_of(batch_));
    parameters_->state().write(StateKind::kMaster, 0, random_weights(model_.layout(), 0.3f, 11));
    parameters_->state().written();
  }

  ParameterStore& parameters() { return *parameters_; }
  const ParameterLayout& layout() const { return model_.layout(); }
  void run(float grad_scale = 0.1f) {
    model_.forward_backward(batch_, grad_scale, /*label_smoothing=*/0,
                            parameters_->begin_pass(true, PassKind::kLastPass));
    parameters_->end_pass();
  }
  std::vector<float> values(StateKind kind) const {
    std::vector<float> out(static_cast<size_t>(model_.layout().num_elements()));
    parameters_->state().read(kind, 0, out);
    return out;
  }

 private:
  std::unique_ptr<ParameterStore> make(bool in_backward) {
    ZeroSettings settings;
    settings.optimizer_in_backward = in_backward;
    return std::make_unique<ParameterStore>(model_, settings,
                                            std::make_unique<AdamW>(OptimizerSpec{.weight_decay = 0.1}),
                                            false, single_process(), pool_);
  }

  ThreadPool pool_{2};
  std::unique_ptr<Ops> ops_ = make_cpu_ops(pool_);
  PackedBatch batch_ = pack(random_rows({9, 5}, 13, 3));
  LlamaModel model_;
  std::unique_ptr<ParameterStore> parameters_;
};

double norm_of(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

TEST(UpdatesInBackward, ClipEveryGroupByItself) {
  for (const bool is_tied : {false, true}) {
    ModelConfig config = tiny_config();
    config.tie_word_embeddings = is_tied;
    Trained whole(config, /*in_backward=*/false);
    whole.run();
    whole.parameters().update({.step = 1, .learning_rate = 1e-2}, {});
    const std::vector<float> unclipped = whole.values(state_kind(0));
    std::vector<double> norms;
    for (const ParameterLayout::Group& group : whole.layout().groups()) {
      const auto begin = static_cast<size_t>(group.begin), count = static_cast<size_t>(group.end) - begin;
      norms.push_back(norm_of(std::span(unclipped).subspan(begin, count)) / 0.1);  // 1 - beta1
    }
    const auto [least, most] = std::ranges::minmax(norms);
    const double max_norm = (least + most) / 2;
    Trained streamed(config, /*in_backward=*/true);
    streamed.parameters().backward_update()->begin({.step = 1, .learning_rate = 1e-2}, max_norm, {});
    streamed.run();
    EXPECT_EQ(streamed.parameters().gradient_squares(), whole.parameters().gradient_squares());
    const std::vector<float> clipped = streamed.values(state_kind(0));
    for (size_t g = 0; g < norms.size(); ++g) {
      const ParameterLayout::Group group = whole.layout().groups()[g];
      for (auto i = static_cast<size_t>(group.begin); i < static_cast<size_t>(group.end); ++i) {
        ASSERT_NEAR(clipped[i], unclipped[i] * clip_factor(norms[g], max_norm), 1e-6 * most)
            << "element " << i;
      }
    }
  }
}

TEST(UpdatesInBackward, AnnounceEveryGroupBeforeItChangesAndNothingElse) {
  Trained streamed(tiny_config(), /*in_backward=*/true);
  const std::vector<float> before = streamed.values(StateKind::kMaster);
  streamed.run();  // without an update
  EXPECT_FALSE(streamed.parameters().backward_update()->has_begun());
  EXPECT_EQ(streamed.values(StateKind::kMaster), before);
  std::vector<bool> is_announced(before.size());
  streamed.parameters().backward_update()->begin(
      {.step = 1, .learning_rate = 1e-2}, 0, [&](ElementRange range) {
        const std::vector<float> now = streamed.values(StateKind::kMaster);
        for (size_t i = 0; i < now.size(); ++i) {
          if (is_announced[i]) continue;
          ASSERT_EQ(now[i], before[i]) << "element " << i;
        }
        std::fill(is_announced.begin() + range.begin, is_announced.begin() + range.end, true);
      });
  streamed.run();
  EXPECT_TRUE(std::ranges::all_of(is_announced, std::identity()));
  EXPECT_TRUE(streamed.parameters().backward_update()->has_begun());
  EXPECT_FALSE(streamed.parameters().backward_update()->is_under_way());
  const std::vector<float> after = streamed.values(StateKind::kMaster);
  streamed.parameters().backward_update()->begin({.step = 2, .learning_rate = 1e-2}, 0, {});
  streamed.parameters().backward_update()->cancel();
  streamed.run();
  EXPECT_EQ(streamed.values(StateKind::kMaster), after);
}

// Gradients grow towards the embedding, so that some scale makes only the lower ones infinite.
TEST(UpdatesInBackward, LeaveWhatFollowsAGradientThatIsNotFinite) {
  bool is_found = false;
  for (float scale = 1e36f; scale < 3e38f && !is_found; scale *= 1.25f) {
    Trained streamed(tiny_config(), /*in_backward=*/true);
    const std::vector<float> before = streamed.values(StateKind::kMaster);
    streamed.parameters().backward_update()->begin({.step = 1, .learning_rate = 1e-2}, 0, {});
    streamed.run(scale);
    const std::string name = streamed.parameters().not_finite_gradient();
    is_found = !name.empty() && streamed.parameters().backward_update()->has_begun();
    if (!is_found) continue;
    const auto group = static_cast<size_t>(streamed.layout().at(name).group);
    const std::vector<float> after = streamed.values(StateKind::kMaster);
    const auto end = streamed.layout().groups()[group].end;
    EXPECT_TRUE(std::equal(after.begin(), after.begin() + end, before.begin())) << name;
    EXPECT_FALSE(std::equal(after.begin() + end, after.end(), before.begin() + end)) << name;
  }
  EXPECT_TRUE(is_found);
}

}  // namespace
}  // namespace tessera
