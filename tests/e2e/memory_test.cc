// The memory of a run with several processes: they take what the plan predicts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sanitizers.h"
#include "e2e/tiny_model.h"

namespace tessera {
namespace {

using nlohmann::json;

// 25 million parameters.
constexpr const char* kConfig =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 512,
"intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_act": "silu",
"max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true,
"initializer_range": 0.02})";

constexpr double kTolerance = 0.05;

bool has_sanitizer() {
#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
  return true;
#else
  return false;
#endif
}

// Four ranks, each with its own rows (1) or all sharing every row (4).
class Memory : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(ContextParallelSize, Memory, testing::Values("1", "4"));

TEST_P(Memory, OfFourRanksIsThePlanned) {
  if (has_sanitizer()) GTEST_SKIP() << "a sanitizer needs additional memory";
  const TinyModel tiny;
  const std::string config = tiny.folder.write("larger.json", kConfig);
  const std::string model = tiny.folder / "larger";
  run_well({"init", "--config", config, "--tokenizer", tiny.tokenizer, "--output", model});
  std::vector<std::string> arguments = {"launch", "--nproc_per_node", "4"};
  const std::vector<std::string> train = {"train",
                                          "--model",
                                          model,
                                          "--dataset",
                                          tiny.text_file,
                                          "--text_per_line",
                                          "--output_dir",
                                          tiny.folder / "out",
                                          "--cache_dir",
                                          tiny.folder / "cache",
                                          "--max_length",
                                          "64",
                                          "--packing",
                                          "--per_device_train_batch_size",
                                          "2",
                                          "--context_parallel_size",
                                          GetParam(),
                                          "--max_steps",
                                          "2",
                                          "--save_strategy",
                                          "no",
                                          "--measure_peak",
                                          "false"};
  arguments.insert(arguments.end(), train.begin(), train.end());
  const ProcessResult result = run_tessera(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("predicted    measured"), std::string::npos) << result.out;

  const json memory = json::parse(read_file(tiny.folder / "out/memory.json"));
  const json& predicted = memory["predicted"];
  const json& measured = memory["measured"];
  for (const char* what : {"node_bytes", "private_bytes", "shared_bytes"}) {
    const double expected = predicted[what];
    EXPECT_NEAR(measured[what], expected, kTolerance * expected) << what << ": " << memory.dump(2);
  }
  EXPECT_LE(measured["loading_peak_bytes"].get<double>(),
            (1 + kTolerance) * measured["node_bytes"].get<double>())
      << memory.dump(2);
}

}  // namespace
}  // namespace tessera
