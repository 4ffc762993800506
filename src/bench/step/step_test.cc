// The benchmarks of whole steps and of operations that run through Ops, on tiny shapes.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "bench/kernels/elementwise_bench.h"
#include "bench/step/other_program.h"
#include "bench/step/train_step_bench.h"
#include "bench/tokenizer_bench.h"
#include "expect_error.h"
#include "kernels/expected.h"
#include "ops/cpu_ops.h"
#include "ops/forwarding_ops.h"
#include "platform/cpu.h"
#include "platform/topology.h"
#include "support/bench_test_support.h"
#include "test_folder.h"
#include "tokenizer/training/bpe_trainer.h"

namespace tessera {
namespace {

// 6 per matrix parameter and token, 12 per pair, head size and head.
double expected_tflop(const TrainStepOptions& options) {
  const ModelConfig& c = options.config;
  const int64_t q = c.num_attention_heads * c.head_dim;
  const int64_t qkv = q + 2 * c.num_key_value_heads * c.head_dim;
  const int64_t matrices =
      c.num_hidden_layers * (c.hidden_size * (qkv + q) + 3 * c.hidden_size * c.intermediate_size);
  const int64_t pairs = options.step_rows() * options.max_length * (options.max_length + 1) / 2;
  double flop = 6.0 * static_cast<double>(matrices * options.step_tokens()) +
                12.0 * static_cast<double>(c.num_hidden_layers * q * pairs);
  if (options.with_head) {
    flop += 6.0 * static_cast<double>(c.vocab_size * c.hidden_size * options.step_rows() *
                                      (options.max_length - 1));
  }
  return flop * 1e-12;
}

TEST(TrainStepBench, MeasuresEveryKindOfStep) {
  ThreadPool pool(2);
  for (const bool with_head : {false, true}) {
    for (const bool checkpointing : {false, true}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        for (const AutoChoice merge : {AutoChoice::kAuto, AutoChoice::kAlways, AutoChoice::kNever}) {
          TrainStepOptions options = tiny_step();
          options.with_head = with_head;
          options.gradient_checkpointing = checkpointing;
          options.dtype = dtype;
          options.merge_micro_batches = merge;
          const TrainStepLine line = run_train_step(options, shortest(), nullptr, pool);
          SCOPED_TRACE(fmt::format("head {} checkpointing {} {} merge {}", with_head, checkpointing,
                                   dtype_name(dtype), merge));
          EXPECT_EQ(line.rounds, 1);  // so that the figures below are from a single step
          EXPECT_NEAR(line.mfu.median * line.peak.median * line.step_seconds.median / line.step_tflop, 1,
                      1e-9);
          const double forward_backward_seconds =
              line.forward_seconds.median + line.head_seconds.median + line.backward_seconds.median;
          EXPECT_NEAR(line.mfu_forward_backward.median * line.peak.median * forward_backward_seconds /
                          line.step_tflop,
                      1, 1e-9);
          EXPECT_NEAR(line.tokens_per_second_forward_backward.median * forward_backward_seconds,
                      static_cast<double>(options.step_tokens()), 1e-6);
          EXPECT_EQ(line.head_seconds.median > 0, with_head);
          EXPECT_NEAR(line.step_tflop / expected_tflop(options), 1, 1e-12);
          EXPECT_NEAR(line.tokens_per_second.median * line.step_seconds.median,
                      static_cast<double>(options.step_tokens()), 1e-6);
          EXPECT_GT(line.verification.num_checked, 200);
          EXPECT_LE(line.verification.worst_error, 1);
          EXPECT_EQ(line.pass_tokens, merge == AutoChoice::kNever ? 18 : 54);
          double sum = 0;
          for (const auto& [name, share] : line.operation_shares) sum += share;
          EXPECT_NEAR(sum, 1, 1e-9);
        }
      }
    }
  }
}

TEST(TrainStepBench, TrainsOnlyWhatItRuns) {
  ThreadPool pool(1);
  TrainStepOptions options = tiny_step();
  const int64_t layers = run_train_step(options, shortest(), nullptr, pool).num_parameters;
  options.with_head = true;
  const int64_t all = run_train_step(options, shortest(), nullptr, pool).num_parameters;
  // The tied embedding and the final norm.
  EXPECT_EQ(all - layers,
            options.config.vocab_size * options.config.hidden_size + options.config.hidden_size);
}

TEST(TrainStepBench, TakesTurnsWithTrainingAllWeightsWhereItTrainsAdapters) {
  ThreadPool pool(2);
  for (const Quantization form : {Quantization::kNone, Quantization::kInt8, Quantization::kNf4Double}) {
    SCOPED_TRACE(quantization_name(form));
    TrainStepOptions options = tiny_step();
    LoraConfig& lora = options.config.lora.emplace();
    lora.r = 4;
    lora.target_modules = lora_module_names();
    options.config.base_quantization = form;
    const TrainStepLine line = run_train_step(options, shortest(), nullptr, pool);
    EXPECT_GT(line.verification.num_checked, 400);
    ASSERT_TRUE(line.ratio_full_step.has_value());
    EXPECT_GT(line.ratio_full_forward_backward->median, 0);
    const nlohmann::json object = nlohmann::json::parse(train_step_json(line, 2));
    EXPECT_EQ(object.at("weights"), quantization_name(form));
    EXPECT_EQ(object.at("lora_rank"), 4);
  }
}

TEST(TrainStepBench, RefusesWhatDoesNotFitWithNumbers) {
  ThreadPool pool(1);
  TrainStepOptions options = tiny_step();
  options.config.hidden_size = 1 << 15;
  options.config.intermediate_size = 1 << 20;
  options.config.num_hidden_layers = 100;
  options.config.sliding_window.assign(100, 0);
  expect_error(ExitCode::kBadConfig,
               {"does not fit in memory: it takes", "TiB", "parameters", "are free", "--layers"},
               [&] { run_train_step(options, shortest(), nullptr, pool); });
}

constexpr const char* kHelpfulProgram = R"(echo "ready Other 1.0"
  while read -r what; do case "$what" in forward_backward) echo 1.5;; optimizer) echo 0.25;; esac; done)";

TEST(OtherProgram, IsAskedForItsTurnsAndCompared) {
  OtherProgram other(kHelpfulProgram);
  EXPECT_EQ(other.name(), "Other 1.0");
  EXPECT_EQ(other.run("forward_backward"), 1.5);
  EXPECT_EQ(other.run("optimizer"), 0.25);
  ThreadPool pool(1);
  const TrainStepLine line = run_train_step(tiny_step(), shortest(3), &other, pool);
  ASSERT_TRUE(line.against.has_value());
  EXPECT_EQ(line.against->name, "Other 1.0");
  EXPECT_EQ(line.against->forward_backward_seconds.median, 1.5);
  EXPECT_NEAR(line.against->ratio_optimizer.median * line.optimizer_seconds.median, 0.25, 1e-9);
  EXPECT_GT(line.against->ratio_step.median, 0);
}

TEST(OtherProgram, GetsTheVariableUnlessItHasOne) {
  const std::string command = "echo \"ready [$TESSERA_OTHER]\"; read -r what";
  EXPECT_EQ(OtherProgram(command).name(), "[]");
  EXPECT_EQ(OtherProgram(command, "TESSERA_OTHER=a b").name(), "[a b]");
  setenv("TESSERA_OTHER", "c", 1);
  EXPECT_EQ(OtherProgram(command, "TESSERA_OTHER=a b").name(), "[c]");
  unsetenv("TESSERA_OTHER");
}

TEST(OtherProgram, HasAllProcessorsWhileThisProgramIsPinned) {
  pin_this_thread(usable_cpus()[0]);
  const std::string cpus =
      OtherProgram("printf 'ready '; sed -n 's/Cpus_allowed_list:[^0-9]*//p' /proc/self/status; read -r what")
          .name();
  unpin_this_thread();
  EXPECT_EQ(cpus, format_cpu_list(usable_cpus()));
}

TEST(OtherProgram, ThatFailsIsNamed) {
  expect_error(ExitCode::kUsage, {"'exit 3' ended without an answer"}, [] { OtherProgram other("exit 3"); });
  expect_error(ExitCode::kUsage, {"expected a first line 'ready NAME', found 'hello'"},
               [] { OtherProgram other("echo hello"); });
  expect_error(ExitCode::kBadData, {"expected the seconds of optimizer, found 'soon'"}, [] {
    OtherProgram other("echo 'ready X'; read -r what; echo soon");
    other.run("optimizer");
  });
  expect_error(ExitCode::kUsage, {"ended without an answer"}, [] {
    OtherProgram other("echo 'ready X'; read -r what");
    other.run("optimizer");
  });
}

ElementwiseCase small_case() {
  ElementwiseCase c;
  c.config = preset_config("15m");
  c.config.vocab_size = 300;
  c.num_tokens = 21;
  return c;
}

TEST(ElementwiseBench, EveryOperationPasses) {
  ThreadPool pool(2);
  const auto ops = make_cpu_ops(pool);
  BandwidthMeter bandwidth(pool, 1 << 20);
  ElementwiseCase c = small_case();
  for (const std::string& operation : elementwise_operations()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      c.operation = operation;
      c.dtype = dtype;
      const BenchLine line = run_elementwise_case(c, *ops, shortest(), bandwidth, pool);
      EXPECT_EQ(line.operation, operation);
      EXPECT_GT(line.speed.median, 0) << operation;
      EXPECT_GT(line.amount, 0) << operation;
      EXPECT_GE(line.verification.num_checked, 128) << operation;
      EXPECT_LE(line.verification.worst_error, 1) << operation;
    }
  }
}

// Computes everything correctly, then changes an output by five percent.
class FaultyOps final : public ForwardingOps {
 public:
  FaultyOps(Ops& ops, size_t output) : ForwardingOps(ops), output_(output) {}

 private:
  void around(const OpCall& call, FunctionRef<void()> run) override {
    run();
    const TensorView wrong = *call.outputs[output_];
    for (int64_t i = 0; i < wrong.num_elements(); ++i)
      set_element(wrong, i, 1.05f * static_cast<float>(element(wrong, i)));
  }

  size_t output_;
};

TEST(ElementwiseBench, AFaultInAnyOperationIsAnInternalErrorThatNamesIt) {
  ThreadPool pool(1);
  const auto ops = make_cpu_ops(pool);
  BandwidthMeter bandwidth(pool, 1 << 20);
  ElementwiseCase c = small_case();
  const std::set<std::string> with_second_output = {"rmsnorm", "rmsnorm_backward", "add_rmsnorm",
                                                    "swiglu_backward"};
  for (const std::string& operation : elementwise_operations()) {
    for (const size_t output : {size_t{0}, size_t{1}}) {
      if (output == 1 && !with_second_output.contains(operation)) continue;
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        c.operation = operation;
        c.dtype = dtype;
        FaultyOps faulty(*ops, output);
        expect_error(ExitCode::kInternal,
                     {operation + " " + std::string(dtype_name(dtype)), "expected", "within"},
                     [&] { run_elementwise_case(c, faulty, shortest(), bandwidth, pool); });
      }
    }
  }
}

TEST(GeneratedText, IsTheSameForASeedAndLooksLikeText) {
  const std::string text = generate_text(100'000, 1);
  EXPECT_EQ(text, generate_text(100'000, 1));
  EXPECT_NE(text, generate_text(100'000, 2));
  EXPECT_GE(text.size(), 100'000u);
  EXPECT_LT(text.size(), 100'100u);
  const auto count = [&](char c) { return std::count(text.begin(), text.end(), c); };
  EXPECT_GT(count(' '), 10'000);
  EXPECT_GT(count('e'), count('z'));
  EXPECT_GT(count('.'), 100);
  EXPECT_GT(count('\n'), 10);
}

TEST(TokenizerBench, ComparesWithTheReferencePathFirst) {
  const TestFolder folder;
  const std::string text = generate_text(20'000, 1);
  BpeTrainingOptions options;
  options.files = {folder.write("text.txt", text).string()};
  options.vocab_size = 500;
  ThreadPool pool(1);
  train_bpe(options, folder.path(), pool);
  const std::string tokenizer = read_text_file(folder / "tokenizer.json");
  const std::vector<TokenizerLine> lines =
      run_tokenizer_bench(tokenizer, "trained", text, "generated", shortest(2));
  std::vector<std::string> operations;
  for (const TokenizerLine& line : lines) {
    operations.push_back(line.operation);
    EXPECT_EQ(line.rounds, 2);
    EXPECT_EQ(line.text_bytes, static_cast<int64_t>(text.size()));
    EXPECT_GT(line.num_tokens, 1000);
    EXPECT_GT(line.mib_per_second.median, 0);
    EXPECT_EQ(line.ratio_to_reference.has_value(), line.operation.starts_with("encode"));
  }
  EXPECT_EQ(operations, (std::vector<std::string>{"encode", "encode_first_time", "decode", "load"}));
}

}  // namespace
}  // namespace tessera
