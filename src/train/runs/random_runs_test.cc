// Runs with settings drawn at random, on models whose checkpoints have several pieces: each is trained whole,
// interrupted and resumed with the same settings (the same bytes), and resumed with different settings (the
// same losses). TESSERA_RANDOM_RUNS and TESSERA_RANDOM_FIRST_SEED choose the number of seeds and the first
// seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>

#include "base/error.h"
#include "base/text.h"
#include "context/context_team.h"
#include "data/rows/batch_plan.h"
#include "io/file.h"
#include "kernels/block_code/block_code.h"
#include "model/attention_shape.h"
#include "model/families/families.h"
#include "support/test_tokenizer.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Rows per step, for any number of ranks: divisible by 1, 2, 3, 4 and by every micro-batch below.
constexpr int64_t kGlobalBatch = 12;
constexpr int64_t kNumSteps = 5;

int64_t environment_number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::stoll(text) : otherwise;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t number(int64_t first, int64_t last) {
    return std::uniform_int_distribution<int64_t>(first, last)(random_);
  }
  bool coin() { return number(0, 1) == 1; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[number(0, std::ssize(values) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

// Draws a family that Hugging Face's files can describe.
void draw_family(Draw& draw, ModelConfig* config) {
  config->family = draw.one_of<const char*>({"llama", "llama", "mistral", "qwen2", "qwen3"});
  if (config->family == "mistral") {
    config->sliding_window.assign(static_cast<size_t>(config->num_hidden_layers), draw.number(5, 60));
  } else if (config->family == "qwen2") {
    config->qkv_bias = true;
  } else {
    config->qkv_bias = config->o_bias = draw.coin();
    config->qk_norm = config->family == "qwen3";
    config->mlp_bias = config->family == "llama" && draw.coin();
  }
}

// 0.6 to 4 million parameters; a piece of a checkpoint is 2^18.
ModelConfig draw_config(Draw& draw) {
  ModelConfig config = tiny_config();
  config.head_dim = draw.one_of<int64_t>({8, 16, 30});
  config.num_key_value_heads = draw.number(1, 3);
  config.num_attention_heads = config.num_key_value_heads * draw.number(1, 3);
  config.hidden_size = draw.one_of<int64_t>({64, 96, 130, 192});
  config.intermediate_size = draw.number(60, 400);
  config.num_hidden_layers = draw.number(1, 4);
  config.vocab_size = draw.number(4500, 9000);
  config.max_position_embeddings = 128;
  config.tie_word_embeddings = draw.coin();
  draw_family(draw, &config);
  return config;
}

// The machines that compute, and how the work is divided, must not change a loss.
struct Machine {
  Ranks ranks;
  int64_t threads_per_rank = 1;
};

Machine draw_machine(Draw& draw) {
  Machine machine;
  machine.ranks = draw.one_of<Ranks>({{1, 1}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {3, 1}});
  machine.threads_per_rank = draw.number(1, machine.ranks.world_size() == 1 ? 5 : 3);
  return machine;
}

// Without what check_outer() refuses.
void draw_outer(Draw& draw, RunSettings* spec) {
  spec->outer.sync_every = draw.number(1, 5);
  spec->outer.num_fragments = draw.number(1, spec->outer.sync_every);
  spec->outer.sync_delay = draw.number(0, (spec->outer.sync_every - 1) / spec->outer.num_fragments);
  spec->outer.update_alpha = draw.one_of({0.0, 0.5});
  spec->placement.optimizer_in_backward = false;
  spec->sharding.quantized_weights = false;
  spec->placement.optimizer_device = spec->placement.param_device = OffloadDevice::kNone;
  spec->sharding.load_once = LoadOnce::kPerNode;
  if (spec->sharding.gather_schedule == GatherChoice::kPerLayer)
    spec->sharding.gather_schedule = GatherChoice::kAuto;
}

// Ranks that share rows.
int64_t draw_context_size(Draw& draw, const Machine& machine, const ModelConfig& config) {
  const int64_t size = draw.number(1, 4);
  const bool is_possible =
      machine.ranks.world_size() % size == 0 &&
      context_heads_refusal(attention_shape(config, 0), size).empty() &&
      context_team_refusal(machine.ranks.num_nodes, machine.ranks.local_world_size, size).empty();
  return is_possible ? size : 1;
}

void draw_division(Draw& draw, const Machine& machine, const ModelConfig& config, RunSettings* spec) {
  spec->sharding.context_parallel_size = draw_context_size(draw, machine, config);
  const int64_t num_teams = machine.ranks.world_size() / spec->sharding.context_parallel_size;
  spec->batch.rows_per_device = draw.one_of<int64_t>({1, 1, 2, 3, 4});
  while (kGlobalBatch % (spec->batch.rows_per_device * num_teams) != 0) {
    --spec->batch.rows_per_device;
  }
  spec->batch.global_rows.reset();
  if (draw.number(0, 2) == 0) {
    spec->batch.global_rows = kGlobalBatch;
    spec->batch.rows_per_device = draw.number(1, 5);
  }
  spec->batch.accumulation_steps =
      accumulation_of_global_batch(kGlobalBatch, spec->batch.rows_per_device, num_teams);
  spec->sharding.stage = draw.number(0, 3);
  spec->sharding.gather_schedule =
      from_word(*spec->sharding.stage == 3 ? draw.one_of({"auto", "per_step", "per_layer"}) : "auto");
  spec->sharding.overlap_comm = draw.coin();
  spec->guards.replay_check_steps = draw.one_of({0, 0, 1, 2});
  spec->sharding.quantized_weights =
      spec->precision.dtype == DType::kBF16 && *spec->sharding.stage > 0 && draw.coin();
  spec->sharding.quantized_gradients = from_word(draw.one_of({"none", "none", "int8", "int4"}));
  spec->placement.gradient_checkpointing = draw.coin();
  spec->placement.checkpointing_mode = from_word(draw.one_of({"full", "selective", "offload"}));
  spec->placement.merge_micro_batches = from_word(draw.one_of({"auto", "always", "never"}));
  const bool is_alone = machine.ranks.world_size() == 1;
  spec->placement.optimizer_in_backward = (is_alone || *spec->sharding.stage >= 2) &&
                                          spec->lora.finetuning_type == FinetuningType::kFull && draw.coin();
  if (spec->placement.optimizer_in_backward) {
    spec->placement.merge_micro_batches = AutoChoice::kAlways;
    if (!spec->computes_norm_first()) spec->guards.replay_check_steps = 0;
  }
  spec->network.fabric = parse_fabric(draw.one_of({"tcp", "tcp", "tcp;ofi_rxm"}));
  spec->network.connections = draw.number(1, 5);
  spec->sharding.grad_accum_dtype =
      spec->precision.dtype == DType::kBF16 && draw.coin() ? DType::kBF16 : DType::kF32;
  const bool may_offload =
      spec->placement.optimizer_in_backward || spec->lora.finetuning_type == FinetuningType::kLora;
  spec->placement.param_device = from_word(may_offload && is_alone ? draw.one_of({"none", "nvme"}) : "none");
  spec->placement.pack_weights = from_word(draw.one_of({"auto", "always", "never"}));
  const bool leaves_node =
      spec->sharding.gather_schedule == GatherChoice::kPerLayer && machine.ranks.num_nodes > 1;
  if ((leaves_node || spec->placement.param_device == OffloadDevice::kNvme) &&
      spec->placement.pack_weights == AutoChoice::kAlways) {
    spec->placement.pack_weights = AutoChoice::kAuto;
  }
  spec->sharding.load_once =
      from_word(*spec->sharding.stage == 0 ? "per_node" : draw.one_of({"per_node", "per_cluster"}));
  spec->saving.in_background = draw.coin();
  spec->placement.optimizer_device = from_word(draw.one_of({"none", "nvme"}));
  const bool is_elementwise =
      spec->optimizer.form != OptimizerForm::kMuon && spec->optimizer.form != OptimizerForm::kAdafactor;
  spec->outer.sync_every = 0;
  if (is_elementwise && spec->sharding.context_parallel_size == 1 && draw.number(0, 3) == 0)
    draw_outer(draw, spec);
}

void draw_training(Draw& draw, RunSettings* spec) {
  spec->precision.dtype = from_word(draw.one_of({"float32", "bfloat16"}));
  spec->optimizer.form = from_word(draw.one_of(
      {"adamw_torch", "adamw_bf16", "adamw_8bit", "lion_32bit", "lion_8bit", "muon", "adafactor"}));
  spec->batch.max_steps = kNumSteps;
  spec->schedule.learning_rate = 1e-3;
  spec->schedule.form =
      schedule_of(*schedule_named(draw.one_of({"linear", "cosine", "constant_with_warmup", "inverse_sqrt"})));
  spec->schedule.warmup_steps = static_cast<double>(draw.number(0, 2));
  spec->optimizer.weight_decay = draw.one_of({0.0, 0.1});
  spec->optimizer.weight_decay_norms = draw.coin();
  spec->clipping.max_norm = draw.one_of({0.0, 0.5, 1.0});
  spec->objective.label_smoothing = draw.one_of({0.0, 0.0, 0.1});
  spec->objective.neftune_alpha = draw.one_of({0.0, 0.0, 5.0});
  spec->data.shuffle = draw.coin();
  spec->seed = draw.number(1, 1000);
  spec->data.packing = draw.coin();
  spec->data.packing_cross_document_attention = spec->data.packing && draw.coin();
  spec->data.max_length = draw.number(24, 120);
  spec->data.allow_truncation = true;
  spec->reporting.logging_steps = static_cast<double>(draw.number(1, 3));
  spec->evaluation.strategy = from_word(draw.one_of({"no", "steps"}));
  spec->evaluation.steps = static_cast<double>(draw.number(1, 3));
  spec->saving.strategy = SaveStrategy::kSteps;
  spec->saving.steps = 1;
  if (draw.number(0, 2) > 0) return;
  spec->lora.finetuning_type = FinetuningType::kLora;
  spec->lora.rank = draw.number(1, 20);
  spec->lora.dropout = draw.one_of({0.0, 0.1});
  spec->lora.use_rslora = draw.coin();
  spec->lora.targets = draw.coin() ? std::vector<std::string>{"all"}
                                   : std::vector<std::string>{"k_proj", "layers.0.mlp.gate_proj", "o_proj"};
  spec->base.bits = draw.one_of<std::optional<int64_t>>({std::nullopt, 8, 4});
}

// At least 3 letters, as a JSON string.
std::string draw_words(Draw& draw, int64_t most) {
  std::string text = "\"";
  for (int64_t left = draw.number(3, most); left > 0; --left)
    text += static_cast<char>(draw.number(0, 5) == 0 ? ' ' : draw.number('a', 'z'));
  return text + "\"";
}

// Fewer documents would do for one epoch; some runs take several. A prompt leaves room for the completion in
// the shortest rows.
void write_documents(Draw& draw, int64_t least, bool have_prompts, const fs::path& file) {
  std::string lines;
  for (int64_t left = draw.number(least, 90); left > 0; --left) {
    lines += have_prompts ? fmt::format("{{\"prompt\":{},\"completion\":{}}}\n", draw_words(draw, 20),
                                        draw_words(draw, 119))
                          : fmt::format("{{\"text\":{}}}\n", draw_words(draw, 119));
  }
  write_text_file(file, lines);
}

// One source of rows, streamed or not, or two with weights, evaluated on the same rows or on some that are
// split off.
void draw_data(Draw& draw, const fs::path& folder, RunSettings* spec) {
  const bool have_prompts = draw.coin();
  const bool splits = spec->evaluation.evaluates() && draw.coin();
  const bool is_mixture = draw.coin();
  const int64_t least = splits || is_mixture ? 60 : 30;
  write_documents(draw, least, have_prompts, folder / "documents.jsonl");
  spec->data.dataset = {folder / "documents.jsonl"};
  if (is_mixture) {
    write_documents(draw, least, draw.coin(), folder / "more.jsonl");
    spec->data.dataset = {spec->data.dataset[0] + ":0.6", (folder / "more.jsonl").string() + ":0.4"};
  }
  spec->data.train_on_prompt = draw.coin();
  spec->data.streaming = !splits && !is_mixture && draw.coin();
  spec->data.streaming_buffer_rows = draw.number(1, 40);
  if (splits) {
    spec->data.validation_split_percentage = static_cast<double>(draw.number(5, 20));
  } else {
    spec->data.eval_dataset = {folder / "documents.jsonl"};
  }
}

// The alignment that 8-bit state needs.
bool begins_with_blocks(const ModelConfig& config) {
  const ParameterLayout layout = parameter_layout(config);
  return std::ranges::all_of(layout.parameters(),
                             [](const Parameter& p) { return p.offset % kCodeBlock == 0; });
}

struct RandomRun {
  explicit RandomRun(uint64_t seed)
      : draw(seed), config(draw_config(draw)), tiny(config), machine(draw_machine(draw)) {
    write_text_file(fs::path(tiny.spec.model.folder) / "tokenizer.json", byte_tokenizer({"</s>"}).dump());
    write_text_file(fs::path(tiny.spec.model.folder) / "tokenizer_config.json", R"({"eos_token": "</s>"})");
    draw_training(draw, &tiny.spec);
    const bool has_blocks =
        tiny.spec.lora.finetuning_type == FinetuningType::kFull && begins_with_blocks(config);
    if (word_of(tiny.spec.optimizer.form).ends_with("_8bit") && !has_blocks)
      tiny.spec.optimizer.form = OptimizerForm::kAdamWHalf;
    draw_data(draw, tiny.folder().path(), &tiny.spec);
    draw_division(draw, machine, config, &tiny.spec);
  }

  std::string text() const {
    return fmt::format("{} nodes of {} ranks of {} threads: {}", machine.ranks.num_nodes,
                       machine.ranks.local_world_size, machine.threads_per_rank,
                       training_arguments_json(tiny.spec));
  }

  // Trains into tiny.folder() / `output`; SIGTERM reaches the last rank after `stop_after` steps.
  RecordingObserver train(const std::string& output, int64_t stop_after = kNumSteps + 1) {
    tiny.spec.output_dir = tiny.folder() / output;
    tiny.spec.placement.offload_dir = tiny.folder() / "offload";
    std::atomic<int64_t> num_done = 0;
    const int last = machine.ranks.world_size() - 1;
    return train_ranks(
        tiny.spec, machine.ranks, machine.threads_per_rank,
        [&](int rank) { return rank == last && num_done >= stop_after ? SIGTERM : 0; },
        [&](const StepMetrics&) { ++num_done; })[0];
  }

  Draw draw;
  ModelConfig config;
  TinyRun tiny;
  Machine machine;
};

void expect_same_bytes(const fs::path& found, const fs::path& expected) {
  EXPECT_TRUE(tensor_files(found) == tensor_files(expected)) << "weights and state differ";
  EXPECT_EQ(metrics_of(found), metrics_of(expected));
  EXPECT_EQ(history_of(found), history_of(expected));
}

// Allows for a different order of sums: rounding in float32 or bfloat16 activations, and the resulting
// weights. is_first_alone: the runs take other steps from the same weights.
void expect_same_losses(const RecordingObserver& found, const RecordingObserver& expected, double relative,
                        bool is_first_alone) {
  ASSERT_LE(found.steps.size(), expected.steps.size());
  for (const StepMetrics& step : found.steps) {
    const StepMetrics& same = expected.steps.at(static_cast<size_t>(step.step) - 1);
    EXPECT_EQ(step.num_tokens, same.num_tokens) << "step " << step.step;
    EXPECT_EQ(step.num_target_tokens, same.num_target_tokens) << "step " << step.step;
    EXPECT_EQ(step.learning_rate, same.learning_rate) << "step " << step.step;
    if (is_first_alone && &step != &found.steps.front()) continue;
    EXPECT_NEAR(step.loss, same.loss, relative * same.loss) << "step " << step.step;
  }
}

// Relative tolerance for another division of the work. The ranks decide which weights and sums are sent or
// kept rounded; with Lion a last bit decides the direction of a change, with an int8 base how a value is
// rounded to 1/127 of the largest of its row.
double loss_tolerance(const RunSpec& spec, const RunSpec& before) {
  for (const RunSpec& of : {spec, before}) {
    if (of.sharding.quantized_gradients == GradientCode::kInt4) return 3e-2;
  }
  for (const RunSpec& of : {spec, before}) {
    if (of.sharding.quantized_weights || of.sharding.quantized_gradients == GradientCode::kInt8) return 1e-2;
  }
  if (spec.precision.dtype == DType::kBF16 || optimizer_kind(spec.optimizer.form) == OptimizerKind::kLion)
    return 2e-3;
  return spec.base.bits == 8 ? 1e-3 : 1e-5;
}

void compare_runs(RandomRun& run) {
  const RecordingObserver whole = run.train("whole");
  ASSERT_EQ(std::ssize(whole.steps), kNumSteps);
  const fs::path output = run.tiny.spec.output_dir;

  // Ranks agree on a signal at the end of the step in which it arrives, so this must not be the last step.
  const int64_t stop_after = run.draw.number(1, kNumSteps - 2);
  const RecordingObserver stopped = run.train("resumed", stop_after);
  run.tiny.spec.resume = parse_resume("auto");
  const RecordingObserver resumed = run.train("resumed");
  EXPECT_EQ(resumed.resumed_step, std::ssize(stopped.steps));
  EXPECT_EQ(resumed.differences, "");
  expect_same_bytes(run.tiny.spec.output_dir, output);

  const int64_t step = run.draw.number(1, kNumSteps - 1);
  const RunSpec before = run.tiny.spec;
  run.machine = draw_machine(run.draw);
  draw_division(run.draw, run.machine, run.config, &run.tiny.spec);
  SCOPED_TRACE(fmt::format("resumed after step {} with: {}", step, run.text()));
  run.tiny.spec.resume = parse_resume(output / fmt::format("checkpoint-{}", step));
  const RecordingObserver other = run.train("other");
  EXPECT_EQ(std::ssize(other.steps), kNumSteps - step);
  // Nodes that train on their own see other rows than the same nodes together.
  const bool trains_otherwise = run.tiny.spec.outer.sync_every > 0 || before.outer.sync_every > 0;
  expect_same_losses(other, whole, loss_tolerance(run.tiny.spec, before), trains_otherwise);
}

void run_seed(uint64_t seed) {
  RandomRun run(seed);
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, run.text()));
  try {
    compare_runs(run);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what() << "\nwith: " << run.text();
  }
}

TEST(RandomRuns, ResumeWithTheSameBytesAndWithTheSameLosses) {
  const int64_t first = environment_number("TESSERA_RANDOM_FIRST_SEED", 1);
  const int64_t num_runs = environment_number("TESSERA_RANDOM_RUNS", 3);
  for (int64_t seed = first; seed < first + num_runs; ++seed) {
    run_seed(static_cast<uint64_t>(seed));
    ASSERT_FALSE(testing::Test::HasFailure()) << "TESSERA_RANDOM_FIRST_SEED=" << seed;
  }
  std::printf("%ld random runs from seed %ld\n", num_runs, first);
}

}  // namespace
}  // namespace tessera
