#include "e2e/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "base/rng.h"

namespace tessera {

std::string sample_text(int64_t num_lines, uint64_t seed) {
  constexpr std::array<const char*, 16> kWords = {"the",    "model",     "reads", "a",     "weight", "from",
                                                  "every",  "small",     "layer", "and",   "token",  "again",
                                                  "before", "caf\u00e9", "it",    "writes"};
  const CounterRng rng(seed, 0);
  std::string text;
  uint64_t index = 0;
  for (int64_t line = 0; line < num_lines; ++line) {
    const auto num_words = static_cast<int64_t>(4 + 8 * rng.uniform(index++));
    for (int64_t i = 0; i < num_words; ++i) {
      if (i > 0) text += ' ';
      text += kWords[static_cast<size_t>(rng.uniform(index++) * kWords.size())];
    }
    text += ".\n";
  }
  return text;
}

std::string tiny_config(int64_t vocab_size) {
  return fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {}, "hidden_size": 32,
"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
"max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true,
"initializer_range": 0.02}})",
      vocab_size);
}

TinyModel::TinyModel() : tokenizer(folder / "tokenizer"), model(folder / "start") {
  text_file = folder.write("text.txt", sample_text(400));
  run_well({"tokenizer", "train", "--input", text_file, "--vocab_size", "320", "--output", tokenizer});
  const std::string config = folder.write("config.json", tiny_config(320));
  run_well({"init", "--config", config, "--tokenizer", tokenizer, "--output", model, "--dtype", "float32"});
}

std::vector<std::string> TinyModel::train_arguments(const std::string& output_dir,
                                                    const std::vector<std::string>& more) const {
  std::vector<std::string> arguments = {"train",
                                        "--model",
                                        model,
                                        "--dataset",
                                        text_file,
                                        "--text_per_line",
                                        "--output_dir",
                                        folder / output_dir,
                                        "--cache_dir",
                                        folder / "cache",
                                        "--max_length",
                                        "64",
                                        "--packing",
                                        "--per_device_train_batch_size",
                                        "4",
                                        "--max_steps",
                                        "6",
                                        "--learning_rate",
                                        "1e-2",
                                        "--logging_steps",
                                        "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

ProcessResult run_well(const std::vector<std::string>& arguments, const StartOptions& options) {
  ProcessResult result = run_tessera(arguments, options);
  EXPECT_EQ(result.exit_code, 0) << "tessera " << fmt::format("{}", fmt::join(arguments, " ")) << "\n"
                                 << result.err;
  return result;
}

}  // namespace tessera
