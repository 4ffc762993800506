// Incorrect usage: one line on standard error, the right exit code, nothing on standard output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/sanitizers.h"
#include "e2e/tiny_model.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void expect_error(const std::vector<std::string>& arguments, int exit_code, const std::string& message,
                  const ProcessOptions& options = {}) {
  SCOPED_TRACE("tessera " + testing::PrintToString(arguments));
  const ProcessResult result = run_tessera(arguments, options);
  EXPECT_EQ(result.exit_code, exit_code) << "signal " << result.signal << "\n" << result.err;
  EXPECT_EQ(result.errors().size(), 1u) << result.err;
  EXPECT_TRUE(result.err.ends_with("\n"));
  EXPECT_THAT(result.err, HasSubstr(message));
}

TEST(Usage, WrongCommandLinesAreExitCode64) {
  expect_error({}, 64, "no command given");
  expect_error({"trian"}, 64, "did you mean 'train'?");
  expect_error({"tokenizer"}, 64, "did you mean 'tessera tokenizer train'?");
  expect_error({"train", "--lr_scheduler_type", "cosinus"}, 64, "cosine");
  expect_error({"train"}, 64, "missing --model");
  expect_error({"train", "--model", "m"}, 64, "missing --dataset");
  expect_error({"train", "--lerning_rate", "1"}, 64, "did you mean --learning_rate?");
  expect_error({"train", "--learning_rate", "fast"}, 64, "--learning_rate");
  expect_error({"train", "--max_steps", "1.5"}, 64, "--max_steps");
  expect_error({"train", "--packing=maybe"}, 64, "expected true or false, found 'maybe'");
  expect_error({"train", "--dtype", "int8"}, 64, "--dtype");
  expect_error({"train", "--fp16"}, 64, "--fp16");
  expect_error({"train", "--seed"}, 64, "--seed: expected");
  expect_error({"train", "x", "y"}, 64, "unexpected argument 'x'");
  expect_error({"init", "--tokenizer", "t", "--output", "o"}, 64, "--preset NAME or --config");
  expect_error({"init", "--preset", "15m", "--output", "o"}, 64, "missing --tokenizer");
  expect_error({"generate", "--model", "m"}, 64, "missing --prompt");
  expect_error({"generate", "--model", "m", "--prompt", "p", "--top_p", "0"}, 64, "--top_p");
  expect_error({"generate", "--model", "m", "--prompt", "p", "--temperature", "nan"}, 64, "--temperature");
  expect_error({"eval", "--model", "m"}, 64, "missing --dataset");
  expect_error({"inspect"}, 64, "missing argument");
  expect_error({"help", "trian"}, 64, "did you mean 'train'?");
}

TEST(Usage, NamesOfOtherProgramsLeadToWhatThereIs) {
  expect_error({"generate", "--model", "m", "--prompt", "p", "--chat_template", "x"}, 64, "`tessera chat`");
  expect_error({"generate", "--model", "m", "--prompt", "p", "--quantize", "x"}, 64, "not supported");
  expect_error({"chat", "--model", "m", "--sys", "x"}, 64, "did you mean --system?");
  expect_error({"export", "--model", "m", "--quantize", "q8_0"}, 64, "did you mean --type?");
}

TEST(Usage, UnknownPresetNamesTheKnownOnes) {
  const TinyModel tiny;
  expect_error({"init", "--preset", "16m", "--tokenizer", tiny.tokenizer, "--output", tiny.folder / "x"}, 64,
               "15m");
  EXPECT_FALSE(fs::exists(tiny.folder / "x"));
}

// Reported once and without blaming a rank, although every rank finds it.
TEST(Usage, AMistakeUnderLaunchIsToldAsWithoutIt) {
  const TinyModel tiny;
  const ProcessOptions offline = {.environment = {"HF_HUB_OFFLINE=1"}};
  const std::string nowhere = tiny.folder / "nowhere";
  const std::string bad = tiny.folder.write("bad.txt", "good\n\xFF\xFE\n");
  const std::string yaml = tiny.folder.write("run.yaml", "lerning_rate: 1\n");
  const std::vector<std::string> launch = {"launch", "--nproc_per_node", "3"};
  for (std::vector<std::string> arguments :
       {std::vector<std::string>{"train", "--lora_rank", "8"}, std::vector<std::string>{"train", yaml},
        tiny.train_arguments("out", {"--model", nowhere}),
        tiny.train_arguments("out", {"--dataset", nowhere}), tiny.train_arguments("out", {"--dataset", bad}),
        tiny.train_arguments("out", {"--output_dir", tiny.model}),
        std::vector<std::string>{"eval", "--model", "org/name", "--dataset", tiny.text_file}}) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const ProcessResult alone = run_tessera(arguments, offline);
    arguments.insert(arguments.begin(), launch.begin(), launch.end());
    const ProcessResult launched = run_tessera(arguments, offline);
    EXPECT_GT(alone.exit_code, 63);
    EXPECT_EQ(launched.exit_code, alone.exit_code);
    EXPECT_EQ(launched.errors(), alone.errors());
    EXPECT_THAT(launched.err, testing::Not(HasSubstr("[rank")));
  }
}

TEST(Usage, AMistakeIsToldBeforeTheNodesMeet) {
  const TinyModel tiny;
  const std::string yaml = tiny.folder.write("run.yaml", "lerning_rate: 1\n");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"train", "--lerning_rate", "1"}, std::vector<std::string>{"train", yaml}}) {
    std::vector<std::string> arguments = {"launch", "--nnodes",        "2",          "--node_rank",
                                          "1",      "--rdzv_endpoint", "127.0.0.1:1"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    expect_error(arguments, run_tessera(command).exit_code, "did you mean",
                 {.environment = {"TESSERA_RDZV_SECRET=of this test alone"}});
  }
}

TEST(Usage, OfTheRanksOfMpirunOnlyTheFirstTellsAMistake) {
  const auto run = [](const std::string& rank) {
    return run_tessera(
        {"train", "--lerning_rate", "1"},
        {.environment = {"OMPI_COMM_WORLD_RANK=" + rank, "OMPI_COMM_WORLD_SIZE=2",
                         "OMPI_COMM_WORLD_LOCAL_RANK=" + rank, "OMPI_COMM_WORLD_LOCAL_SIZE=2"}});
  };
  EXPECT_THAT(run("0").err, HasSubstr("did you mean --learning_rate?"));
  const ProcessResult other = run("1");
  EXPECT_EQ(other.exit_code, 64);
  EXPECT_EQ(other.err, "");
  // In a pod of its own, each rank has its own output.
  EXPECT_THAT(run_tessera({"train", "--lerning_rate", "1"}, {.environment = {"RANK=1", "WORLD_SIZE=2"}}).err,
              HasSubstr("did you mean --learning_rate?"));
}

TEST(Usage, MissingInputsAreExitCode66) {
  const TinyModel tiny;
  const std::string nowhere = tiny.folder / "nowhere";
  expect_error({"inspect", nowhere}, 66, nowhere);
  expect_error({"tokenize", "--tokenizer", nowhere}, 66, nowhere);
  expect_error({"tokenize", "--tokenizer", tiny.tokenizer, "--input", nowhere}, 66, nowhere);
  expect_error({"tokenizer", "train", "--input", nowhere, "--output", tiny.folder / "t"}, 66, nowhere);
  expect_error({"train", "--model", nowhere, "--dataset", tiny.text_file}, 66, nowhere);
  expect_error(tiny.train_arguments("out", {"--dataset", nowhere}), 66, nowhere);
  expect_error({"eval", "--model", nowhere, "--dataset", tiny.text_file}, 66, nowhere);
  expect_error({"generate", "--model", nowhere, "--prompt", "x"}, 66, nowhere);
  expect_error({"train", "--config", nowhere + ".yaml"}, 66, nowhere);
}

TEST(Usage, BadDataIsExitCode65) {
  const TinyModel tiny;
  const std::string bad = tiny.folder.write("bad.txt", "good\n\xFF\xFE\n");
  expect_error({"tokenize", "--tokenizer", tiny.tokenizer, "--input", bad}, 65, bad);
  expect_error({"tokenize", "--tokenizer", tiny.tokenizer, "--input", bad, "--per_line"}, 65, "line 2");
  expect_error({"detokenize", "--tokenizer", tiny.tokenizer}, 65, "line 2", {.input = "1 2\n3 x\n"});
  expect_error({"detokenize", "--tokenizer", tiny.tokenizer}, 65, "320", {.input = "320"});
  expect_error(tiny.train_arguments("out", {"--dataset", bad}), 65, bad);
  const std::string truncated = tiny.folder.write("t.safetensors", std::string("\x08\0\0\0\0\0\0\0{}", 10));
  expect_error({"inspect", truncated}, 65, truncated);
  const std::string jsonl = tiny.folder.write("d.jsonl", "{\"text\": \"fine\"}\n{\"txt\": \"no\"}\n");
  expect_error(tiny.train_arguments("out", {"--dataset", jsonl}), 65, "text");
  EXPECT_FALSE(fs::exists(tiny.folder / "out/model.safetensors"));
}

TEST(Usage, BrokenModelFoldersAreRefused) {
  const TinyModel tiny;
  const std::string weights = read_file(tiny.model + "/model.safetensors");
  tiny.folder.write("start/model.safetensors", weights.substr(0, weights.size() - 4));
  expect_error(tiny.train_arguments("out"), 65, "model.safetensors");
  tiny.folder.write("start/model.safetensors",
                    "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  expect_error({"generate", "--model", tiny.model, "--prompt", "x"}, 65, "Git LFS pointer");
  tiny.folder.write("start/model.safetensors", weights);
  tiny.folder.write("start/config.json", tiny_config(319));
  expect_error({"eval", "--model", tiny.model, "--dataset", tiny.text_file}, 65, "model.embed_tokens.weight");
  tiny.folder.write("start/config.json", "{\"model_type\": \"gpt2\"}");
  expect_error({"eval", "--model", tiny.model, "--dataset", tiny.text_file}, 78, "gpt2");
}

TEST(Usage, AFileInPlaceOfAModelFolderIsNamedForWhatItIs) {
  const TinyModel tiny;
  const std::string gguf = tiny.folder.write("model.gguf", "GGUF" + std::string(2'000'000, '\0'));
  const std::string found = gguf + ": expected a Hugging Face model folder, found a GGUF file";
  expect_error({"train", "--model", gguf, "--dataset", tiny.text_file, "--output_dir", tiny.folder / "x"}, 65,
               found);
  expect_error({"eval", "--model", gguf, "--dataset", tiny.text_file}, 65, found);
  expect_error({"generate", "--model", gguf, "--prompt", "x"}, 65, found);
  expect_error({"plan", "--model", gguf}, 65, found);
  expect_error({"inspect", gguf}, 65, "expected GGUF version 2 or 3, found 0");
  expect_error({"tokenize", "--tokenizer", gguf}, 65, "expected a tokenizer.json");
  const std::string weights = tiny.model + "/model.safetensors";
  expect_error({"generate", "--model", weights, "--prompt", "x"}, 65,
               "found a safetensors file; give the folder");
}

TEST(Usage, ContradictionsAreExitCode78) {
  const TinyModel tiny;
  expect_error(tiny.train_arguments("out", {"--lr_scheduler_type", "cosine_with_min_lr"}), 78, "min_lr");
  expect_error(tiny.train_arguments("out", {"--eval_strategy", "steps"}), 78, "eval_dataset");
  const std::string yaml = tiny.folder.write("run.yaml", "lerning_rate: 1\n");
  expect_error({"train", "--config", yaml}, 78, "learning_rate");
  expect_error({"doctor"}, 78, "TESSERA_ISA", {.environment = {"TESSERA_ISA=vax"}});
  const std::string config = tiny.folder.write("small.json", tiny_config(100));
  expect_error({"init", "--config", config, "--tokenizer", tiny.tokenizer, "--output", tiny.folder / "x"}, 78,
               "vocab_size 100");
  expect_error({"doctor"}, 78, "OMP_NUM_THREADS: expected a number from 1 to 4096, found 'all'",
               {.environment = {"OMP_NUM_THREADS=all"}});
}

TEST(Usage, LossThatIsNotFiniteIsExitCode79AndNothingIsSaved) {
  const TinyModel tiny;
  expect_error(
      tiny.train_arguments("out", {"--learning_rate", "1e30", "--max_grad_norm", "0", "--max_steps", "50"}),
      79, "not finite");
  EXPECT_FALSE(fs::exists(tiny.folder / "out/model.safetensors"));
}

TEST(Usage, ExistingFilesAreNotOverwritten) {
  const TinyModel tiny;
  const std::string before = read_file(tiny.model + "/model.safetensors");
  expect_error({"init", "--config", tiny.folder / "config.json", "--tokenizer", tiny.tokenizer, "--output",
                tiny.model, "--seed", "1"},
               64, "--overwrite");
  EXPECT_EQ(read_file(tiny.model + "/model.safetensors"), before);
  expect_error({"tokenizer", "train", "--input", tiny.text_file, "--output", tiny.tokenizer}, 64,
               "--overwrite");
  run_well(tiny.train_arguments("out"));
  const std::string first = read_file(tiny.folder / "out/model.safetensors");
  run_well(tiny.train_arguments("out", {"--max_steps", "2"}));
  int64_t kept = 0;
  for (const auto& entry : fs::recursive_directory_iterator(tiny.folder / "out")) {
    if (entry.path().filename() == "model.safetensors" && read_file(entry.path()) == first) ++kept;
  }
  EXPECT_GE(kept, 1) << "the first run's model is gone";
}

// As in a folder that this user may not enter, the system does not say whether it exists.
TEST(Usage, AnOutputThatCannotBeLookedForIsExitCode74) {
  const TinyModel tiny;
  const std::string output = tiny.folder / std::string(300, 'x');
  expect_error(
      {"init", "--config", tiny.folder / "config.json", "--tokenizer", tiny.tokenizer, "--output", output},
      74, "File name too long");
  expect_error({"tokenizer", "train", "--input", tiny.text_file, "--vocab_size", "300", "--output", output},
               74, "File name too long");
}

TEST(Usage, FullDiskIsExitCode74AndLeavesNoHalfFile) {
  const TinyModel tiny;
  expect_error({"help", "--markdown"}, 74, "standard output", {.output_file = "/dev/full"});
  expect_error({"tokenize", "--tokenizer", tiny.tokenizer, "--input", tiny.text_file}, 74, "standard output",
               {.output_file = "/dev/full"});
  expect_error({"init", "--config", tiny.folder / "config.json", "--tokenizer", tiny.tokenizer, "--output",
                tiny.folder / "full"},
               74, "model.safetensors", {.max_file_bytes = 20000});
  EXPECT_FALSE(fs::exists(tiny.folder / "full/model.safetensors"));
  fs::create_directory(tiny.folder / "gguf");
  expect_error(
      {"export", "--model", tiny.model, "--format", "gguf", "--output", tiny.folder / "gguf/model.gguf"}, 74,
      "File too large", {.max_file_bytes = 20000});
  EXPECT_TRUE(fs::is_empty(tiny.folder / "gguf"));
  const ProcessResult unlogged = run_tessera(tiny.train_arguments("unlogged"), {.output_file = "/dev/full"});
  EXPECT_EQ(unlogged.exit_code, 0) << unlogged.err;
  EXPECT_THAT(unlogged.err, HasSubstr("standard output: No space left on device; the run continues"));
  EXPECT_TRUE(fs::exists(tiny.folder / "unlogged/model.safetensors"));
  expect_error(tiny.train_arguments("out", {"--save_strategy", "no"}), 74, "model.safetensors",
               {.max_file_bytes = 40000});
  EXPECT_FALSE(fs::exists(tiny.folder / "out/model.safetensors"));
}

TEST(Usage, RunThatDoesNotFitIntoMemoryIsRefusedWithNumbers) {
#ifdef TESSERA_ASAN
  GTEST_SKIP() << "AddressSanitizer reserves more address space than the limit of this test";
#endif
  const TinyModel tiny;
  // 8192 rows of 64 tokens at once; the limit allows what such a process maps at start-up plus a few hundred
  // MiB.
  tiny.folder.write("text.txt", sample_text(60000));
  expect_error(tiny.train_arguments("out", {"--per_device_train_batch_size", "8192"}), 78,
               "per_device_train_batch_size", {.max_address_space_bytes = int64_t{500} << 20});
  EXPECT_FALSE(fs::exists(tiny.folder / "out/model.safetensors"));
}

TEST(Usage, OutputThatCannotBeWrittenIsExitCode74) {
  const TinyModel tiny;
  // A file where a folder should be: also fails for root, unlike missing permissions.
  const std::string file = tiny.folder.write("file", "");
  expect_error({"init", "--config", tiny.folder / "config.json", "--tokenizer", tiny.tokenizer, "--output",
                file + "/model"},
               74, file);
  expect_error(tiny.train_arguments("file/out"), 74, file);
}

TEST(Help, OfEveryCommandFitsIn80Columns) {
  const ProcessResult overview = run_well({"--help"});
  const std::vector<std::vector<std::string>> all = {{},           {"init"},       {"tokenizer", "train"},
                                                     {"tokenize"}, {"detokenize"}, {"train"},
                                                     {"eval"},     {"generate"},   {"inspect"},
                                                     {"doctor"},   {"help"}};
  for (std::vector<std::string> command : all) {
    const std::vector<std::string> words = command;
    command.push_back("--help");
    const ProcessResult result = run_well(command);
    EXPECT_TRUE(result.err.empty()) << result.err;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    if (words.empty()) continue;
    std::vector<std::string> other = words;
    other.insert(other.begin(), "help");
    EXPECT_EQ(run_well(other).out, result.out);
    EXPECT_THAT(overview.out, HasSubstr(words[0]));
  }
  EXPECT_THAT(run_well({"--version"}).out, testing::MatchesRegex("tessera [0-9]+\\.[0-9]+\\.[0-9]+\n.+"));
  const auto version = nlohmann::json::parse(run_well({"--version", "--json"}).out);
  EXPECT_THAT(version["version"].get<std::string>(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  expect_error({"--version", "x"}, 64, "--version: expected --json or nothing after it, found 'x'");
}

TEST(Usage, ConfigShowTellsWhereEverySettingComesFrom) {
  const TemporaryFolder folder;
  const std::string file = folder.write("run.yaml", "model: org/name\nlearning_rate: 2e-5\nmax_steps: 7\n");
  const std::string text = run_well({"config", "show", file, "--max_steps", "9"}).out;
  EXPECT_THAT(text, testing::ContainsRegex("learning_rate +2e-05 +[^ ]*/run.yaml:2\n"));
  EXPECT_THAT(text, testing::ContainsRegex("max_steps +9 +command line\n"));
  EXPECT_THAT(text,
              testing::ContainsRegex("model +org/name +[^ ]*/run.yaml:1\n"));  // and nothing is downloaded
  EXPECT_THAT(text,
              testing::ContainsRegex("\n[0-9]+ other settings have their defaults; --all shows them\n"));
  const auto shown =
      nlohmann::json::parse(run_well({"config", "show", file, "--all", "--json", "--world_size", "4"}).out);
  EXPECT_EQ(shown["world_size"], 4);
  EXPECT_EQ(shown["settings"]["zero_stage"], nlohmann::json::parse(R"({"value": 2, "default": null,
      "origin": "derived", "source": "from the number of ranks"})"));
  EXPECT_EQ(shown["settings"]["weight_decay"]["origin"], "default");
  expect_error({"config", "show", file, "--lerning_rate", "1"}, 64, "did you mean --learning_rate?");
  expect_error({"config", "show", file, "--bf16", "--dtype", "float32"}, 78, "bf16 true contradicts dtype");
}

}  // namespace
}  // namespace tessera
