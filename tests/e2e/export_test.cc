// Ways out of the program: GGUF, clean folders, merged models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "e2e/tiny_model.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

void expect_refusal(const std::vector<std::string>& arguments, int exit_code, const std::string& fragment) {
  const ProcessResult result = run_tessera(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  ASSERT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_THAT(result.errors()[0], HasSubstr(fragment));
}

TEST(Export, ACheckpointBecomesAGgufFileAndAFolder) {
  const TinyModel tiny;
  run_well(tiny.train_arguments("out", {"--max_steps", "4", "--save_steps", "2"}));
  const std::string checkpoint = tiny.folder / "out/checkpoint-2";
  tiny.folder.write("out/checkpoint-2/README.md", "---\ntags: [x]\nlicense: \"apache-2.0\"\n---\n# text\n");

  const std::string gguf = tiny.folder / "tiny.gguf";
  EXPECT_THAT(
      run_well({"export", "--model", checkpoint, "--format", "gguf", "--type", "q8_0", "--output", gguf}).out,
      HasSubstr("as q8_0"));
  EXPECT_THAT(run_well({"inspect", gguf}).out,
              AllOf(HasSubstr("general.license: apache-2.0\n"), HasSubstr("general.name: Checkpoint 2\n"),
                    HasSubstr("tokenizer.ggml.pre: smaug-bpe\n"), HasSubstr("blk.1.ffn_down.weight")));

  const std::string clean = tiny.folder / "clean";
  run_well(
      {"export", "--model", checkpoint, "--format", "hf", "--output", clean, "--max_shard_size", "20KB"});
  EXPECT_FALSE(fs::exists(clean + "/tessera"));
  EXPECT_FALSE(fs::exists(clean + "/trainer_state.json"));
  const auto answer = [](const std::string& model) {
    return run_well({"generate", "--model", model, "--prompt", "the", "--max_new_tokens", "5",
                     "--temperature", "0"})
        .out;
  };
  EXPECT_EQ(answer(clean), answer(checkpoint));

  expect_refusal({"export", "--model", checkpoint, "--format", "gguf", "--output", gguf}, 64, "--overwrite");
  run_well({"export", "--model", checkpoint, "--format", "gguf", "--output", gguf, "--overwrite"});
  expect_refusal(
      {"export", "--model", clean, "--format", "gguf", "--output", tiny.folder / "out", "--overwrite"}, 64,
      "is a folder; name the file");
  expect_refusal({"export", "--model", clean, "--format", "hf", "--output", clean, "--overwrite"}, 64,
                 "is read; choose another");
  expect_refusal(
      {"export", "--model", clean, "--format", "hf", "--type", "f16", "--output", tiny.folder / "x"}, 64,
      "--type: not for --format hf");
  expect_refusal({"export", "--model", gguf, "--format", "hf", "--output", tiny.folder / "x"}, 65,
                 "a GGUF file");
}

// In float32, because merging rounds weights.
TEST(Export, AnAdapterFolderIsItsModelWithTheAdapter) {
  const TinyModel tiny;
  run_well(tiny.train_arguments("out", {"--max_steps", "3", "--peft", "lora", "--learning_rate", "0.1"}));
  const std::string adapter = tiny.folder / "out", merged = tiny.folder / "merged";
  run_well({"export", "--model", adapter, "--format", "hf", "--dtype", "float32", "--output", merged});
  const auto perplexity = [&](const std::string& model, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"eval",      "--model",      model, "--dataset", tiny.text_file,
                                          "--packing", "--max_length", "32",  "--dtype",   "float32"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string out = run_well(arguments).out, name = "perplexity";
    return std::stod(out.substr(out.find(name) + name.size()));
  };
  const double expected = perplexity(merged);
  EXPECT_NEAR(perplexity(adapter), expected, 1e-4 * expected);
  EXPECT_NEAR(perplexity(tiny.model, {"--adapter", adapter}), expected, 1e-4 * expected);
  EXPECT_GT(std::abs(perplexity(tiny.model) - expected), 1e-2 * expected);
  expect_refusal({"merge", "--adapter", adapter, "--output", adapter, "--overwrite"}, 64,
                 "is read; choose another");
  expect_refusal({"eval", "--model", adapter, "--adapter", adapter, "--dataset", tiny.text_file}, 66,
                 "a LoRA adapter: name its base model here");
}

TEST(Merge, CheckpointsOfARunAreAveraged) {
  const TinyModel tiny;
  run_well(tiny.train_arguments("out", {"--max_steps", "4", "--save_steps", "2"}));
  const std::string a = tiny.folder / "out/checkpoint-2", b = tiny.folder / "out/checkpoint-4";
  const std::string mean = tiny.folder / "mean";
  run_well({"merge", "--models", a, b, "--weights", "3", "1", "--output", mean});
  run_well({"generate", "--model", mean, "--prompt", "the", "--max_new_tokens", "5"});
  run_well(
      {"merge", "--models", a, b, "--method", "slerp", "--t", "0.3", "--output_dir", tiny.folder / "arc"});

  const std::string other = tiny.folder / "x";
  expect_refusal({"merge", "--models", a, "--output", other}, 64, "at least two");
  expect_refusal({"merge", "--models", a, b, "--weights", "1", "--output", other}, 64,
                 "one per model, 2, found 1");
  expect_refusal({"merge", "--models", a, b, "--weights", "1", "x", "--output", other}, 64, "found 'x'");
  expect_refusal({"merge", "--models", a, b, "--weights", "0", "0", "--output", other}, 64, "sum above 0");
  expect_refusal({"merge", "--models", a, b, "--t", "0.5", "--output", other}, 64,
                 "--t: not for --method linear");
  expect_refusal({"merge", "--models", a, b, "--output", mean}, 64, "--overwrite");
  std::string tokens = read_file(mean + "/tokenizer.json");
  tokens.replace(tokens.find("<|end_of_text|>"), 15, "<|END_OF_TEXT|>");
  tiny.folder.write("mean/tokenizer.json", tokens);
  tiny.folder.write("mean/tokenizer_config.json", "{}");
  expect_refusal({"merge", "--models", a, mean, "--output", other}, 78, "same tokenizer");
  EXPECT_FALSE(fs::exists(other));
}

}  // namespace
}  // namespace tessera
