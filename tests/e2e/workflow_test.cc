// A user's workflow, from text to text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/tiny_model.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

std::vector<json> read_metrics(const fs::path& folder) {
  std::vector<json> lines;
  std::istringstream in(read_file(folder / "metrics.jsonl"));
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Workflow, FromTextToATrainedModelThatWrites) {
  const TinyModel tiny;
  const ProcessResult train =
      run_well(tiny.train_arguments("out", {"--max_steps", "30", "--eval_dataset", tiny.text_file,
                                            "--eval_strategy", "steps", "--eval_steps", "15"}));
  EXPECT_THAT(train.out, HasSubstr("{'loss': "));
  EXPECT_THAT(train.out, HasSubstr("{'eval_loss': "));
  EXPECT_THAT(train.out, HasSubstr("'eval_perplexity': "));
  EXPECT_THAT(train.out, HasSubstr("memory"));
  EXPECT_THAT(train.out, HasSubstr("training loss"));

  const fs::path out = tiny.folder / "out";
  for (const char* file : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                           "tokenizer_config.json", "trainer_state.json", "training_args.json",
                           "events.jsonl", "memory.json", "metrics.jsonl"}) {
    EXPECT_TRUE(fs::exists(out / file)) << file;
  }
  const std::vector<json> metrics = read_metrics(out);
  ASSERT_EQ(metrics.size(), 30u);
  EXPECT_GT(metrics.front()["loss"].get<double>(), 5.5);  // random: ln 320 = 5.8
  EXPECT_LT(metrics.back()["loss"].get<double>(), 4.0);   // sixteen words are quickly learned
  for (const char* key : {"step", "epoch", "loss", "grad_norm", "learning_rate", "num_tokens",
                          "num_target_tokens", "tokens_per_second", "step_time_s", "tflops"}) {
    EXPECT_TRUE(metrics.back().contains(key)) << key;
  }

  const ProcessResult eval =
      run_well({"eval", "--model", out, "--dataset", tiny.text_file, "--text_per_line", "--packing",
                "--max_length", "64", "--cache_dir", tiny.folder / "cache", "--json"});
  const json report = json::parse(eval.out);
  EXPECT_LT(report["loss"].get<double>(), 4.0);
  EXPECT_NEAR(report["perplexity"].get<double>(), std::exp(report["loss"].get<double>()), 1e-3);

  const std::vector<std::string> generate = {"generate",  "--model",          out,  "--prompt",
                                             "the model", "--max_new_tokens", "20", "--seed",
                                             "7",         "--ignore_eos"};
  const ProcessResult first = run_well(generate);
  EXPECT_TRUE(first.out.starts_with("the model")) << first.out;
  EXPECT_GT(first.out.size(), std::string("the model\n").size() + 10);
  EXPECT_EQ(run_well(generate).out, first.out) << "the same seed must give the same text";

  const ProcessResult inspect = run_well({"inspect", out});
  EXPECT_THAT(inspect.out, HasSubstr("model.layers.1.mlp.down_proj.weight"));
  EXPECT_THAT(inspect.out, HasSubstr("BF16"));
}

TEST(Workflow, PromptsMayBeLinesOfAWindowsEditor) {
  const TinyModel tiny;
  const auto continued = [&](const char* name, const std::string& prompts) {
    return run_well({"generate", "--model", tiny.model, "--prompts", tiny.folder.write(name, prompts),
                     "--max_new_tokens", "3", "--temperature", "0"})
        .out;
  };
  const std::string expected = continued("prompts.txt", "the model\n\na word\n");
  EXPECT_EQ(continued("prompts.txt", "\xEF\xBB\xBFthe model\r\n\r\na word\r\n"), expected);
  EXPECT_EQ(continued("prompts.jsonl",
                      "\xEF\xBB\xBF{\"prompt\": \"the model\"}\r\n\r\n{\"prompt\": \"a word\"}\r\n"),
            expected);
}

TEST(Workflow, PromptsThatAreTooLongForTheModelAreNamed) {
  const TinyModel tiny;  // 128 positions
  std::vector<std::string> generate = {"generate",      "--model", tiny.model,     "--prompts",        "",
                                       "--echo",        "false",   "--ignore_eos", "--max_new_tokens", "200",
                                       "--temperature", "0"};
  generate[4] = tiny.folder.write("cut.txt", "the model\na word\n");
  EXPECT_THAT(run_well(generate).err, HasSubstr("2 of 2 continuations stopped: the model has 128 positions"));
  std::string words;
  for (int i = 0; i < 150; ++i) words += "word ";
  generate[4] = tiny.folder.write("long.txt", "the model\n" + words + "\n");
  const ProcessResult refused = run_tessera(generate);
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.err, HasSubstr("long.txt: prompt 2 ('word word"));
}

TEST(Workflow, TwoRunsAreIdenticalAndMicroBatchesDoNotMatter) {
  const TinyModel tiny;
  run_well(tiny.train_arguments("a", {"--save_dtype", "float32"}));
  run_well(tiny.train_arguments("b", {"--save_dtype", "float32", "--num_threads", "1"}));
  EXPECT_EQ(read_file(tiny.folder / "a/model.safetensors"), read_file(tiny.folder / "b/model.safetensors"));
  run_well(tiny.train_arguments("c", {"--dtype", "float32"}));
  run_well(tiny.train_arguments("d", {"--dtype", "float32", "--per_device_train_batch_size", "1",
                                      "--gradient_accumulation_steps", "4"}));
  const std::vector<json> c = read_metrics(tiny.folder / "c");
  const std::vector<json> d = read_metrics(tiny.folder / "d");
  ASSERT_EQ(c.size(), d.size());
  for (size_t i = 0; i < c.size(); ++i) {
    EXPECT_EQ(c[i]["num_target_tokens"], d[i]["num_target_tokens"]);
    EXPECT_NEAR(c[i]["loss"].get<double>(), d[i]["loss"].get<double>(), 1e-4) << "step " << i + 1;
  }
}

TEST(Workflow, ConfigFileGivesSettingsAndFlagsWin) {
  const TinyModel tiny;
  const std::string yaml = tiny.folder.write(
      "run.yaml",
      "model_name_or_path: " + tiny.model + "\ntrain_file: [" + tiny.text_file +
          "]\ntext_per_line: true\nmax_seq_length: 64\npacking: true\nmax_steps: 3\nlearning_rate: 1e-4\n"
          "cache_dir: " +
          (tiny.folder / "cache") + "\noutput_dir: " + (tiny.folder / "wrong") + "\n");
  run_well({"train", "--config", yaml, "--output-dir", tiny.folder / "out"});
  EXPECT_FALSE(fs::exists(tiny.folder / "wrong"));
  EXPECT_EQ(read_metrics(tiny.folder / "out").size(), 3u);
  const json args = json::parse(read_file(tiny.folder / "out/training_args.json"));
  EXPECT_EQ(args["learning_rate"], 1e-4);
}

TEST(Workflow, TokenizeAndDetokenizeGiveTheTextBack) {
  const TinyModel tiny;
  const std::string text = sample_text(20, 2) + "\t odd: \xE2\x82\xAC \xF0\x9F\x98\x80 0123456789\r\n\n  x";
  const ProcessResult whole = run_well({"tokenize", "--tokenizer", tiny.tokenizer}, {.input = text});
  EXPECT_EQ(std::count(whole.out.begin(), whole.out.end(), '\n'), 1);
  EXPECT_EQ(run_well({"detokenize", "--tokenizer", tiny.tokenizer}, {.input = whole.out}).out, text);

  const std::string file = tiny.folder.write("lines.txt", "one\n\ntwo words\nlast");
  const ProcessResult lines = run_well({"tokenize", "--tokenizer", tiny.tokenizer, "--input", file,
                                        "--per_line", "--add_special_tokens", "false"});
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 4);
  EXPECT_EQ(run_well({"detokenize", "--tokenizer", tiny.tokenizer, "--per_line"}, {.input = lines.out}).out,
            "one\n\ntwo words\nlast\n");
}

TEST(Workflow, TokenizerTrainingIsRepeatable) {
  const TinyModel tiny;
  run_well({"tokenizer", "train", "--input", tiny.text_file, "--vocab-size=320", "--output",
            tiny.folder / "again"});
  EXPECT_EQ(read_file(tiny.folder / "again/tokenizer.json"), read_file(tiny.tokenizer + "/tokenizer.json"));
}

TEST(Workflow, InitDependsOnTheSeedOnly) {
  const TinyModel tiny;
  const auto init = [&](const std::string& output, const std::string& seed) {
    run_well({"init", "--config", tiny.folder / "config.json", "--tokenizer", tiny.tokenizer, "--output",
              tiny.folder / output, "--seed", seed, "--dtype", "fp32"});
    return read_file(tiny.folder / (output + "/model.safetensors"));
  };
  EXPECT_EQ(init("same", "42"), read_file(tiny.model + "/model.safetensors"));
  EXPECT_NE(init("other", "43"), read_file(tiny.model + "/model.safetensors"));
}

TEST(Workflow, DoctorReportsAsTextAndAsJson) {
  EXPECT_THAT(run_well({"doctor"}).out, HasSubstr("Measured now"));
  const json report = json::parse(run_well({"doctor", "--json"}).out);
  EXPECT_FALSE(report["kernels"].empty());
  EXPECT_GT(report["memory_bandwidth"]["copy_gb_per_s"].get<double>(), 0);
  const json pinned =
      json::parse(run_well({"doctor", "--json"}, {.environment = {"TESSERA_ISA=baseline"}}).out);
  EXPECT_EQ(pinned["isa_limit"], "baseline");
}

// An instruction set of this machine is made to fail: the next one replaces it everywhere.
TEST(Workflow, AnInstructionSetThatFailsWhenTriedIsNamedAndNotUsed) {
  const TinyModel tiny;
  const ProcessOptions broken = {.environment = {"TESSERA_CPU_FAULTS=avx512_bf16"}};
  const json report = json::parse(run_well({"doctor", "--json"}, broken).out);
  const std::string fault = report["cpu_fault"];
  if (fault.empty()) GTEST_SKIP() << "this machine has no AVX-512 BF16";
  EXPECT_EQ(fault,
            "AVX-512 BF16 is announced but fails when tried: SIGILL (illegal instruction), as "
            "TESSERA_CPU_FAULTS asks for");
  EXPECT_EQ(report["onednn"], json({{"isa", "avx512"}, {"reason", fault}}));
  const auto expect_refused = [&](const json& row) {
    if (row["isa"] != "avx512_bf16" && row["isa"] != "amx_bf16") return;
    if (row["isa"] == "amx_bf16") {
      EXPECT_NE(row["refusal"], "") << row.dump();
    } else {
      EXPECT_EQ(row["refusal"], fault) << row.dump();
    }
  };
  for (const json& kernel : report["kernels"]) {
    for (const json& row : kernel["implementations"]) expect_refused(row);
  }
  run_well(tiny.train_arguments("out", {"--max_steps", "2"}), broken);
  EXPECT_TRUE(std::isfinite(read_metrics(tiny.folder / "out").back()["loss"].get<double>()));
  const ProcessResult pinned =
      run_tessera({"doctor"}, {.environment = {"TESSERA_ISA=avx512_bf16", broken.environment[0]}});
  EXPECT_EQ(pinned.exit_code, 78);
  EXPECT_THAT(pinned.err, HasSubstr(fault));
  const std::string other = "echo \"ready $ONEDNN_MAX_CPU_ISA\"; while read -r what; do echo 1; done";
  const json step = json::parse(
      run_well({"bench", "train-step", "--preset", "15m", "--layers", "1", "--max_length", "8", "--seconds",
                "0", "--rounds", "1", "--gradient_checkpointing", "false", "--json", "--against", other},
               broken)
          .out);
  EXPECT_EQ(step["against"]["name"], "AVX512_CORE");
}

// The folder of the fake library comes first in LD_LIBRARY_PATH.
TEST(Workflow, DoctorShowsNvidiaCardsWhereThereAreSome) {
  const std::string folder = std::filesystem::path(fake_nvml_library()).parent_path();
  ProcessOptions options = {.environment = {"LD_LIBRARY_PATH=" + folder}};
  const std::string text = run_well({"doctor"}, options).out;
  EXPECT_THAT(text, HasSubstr("\nNVIDIA cards\n  driver              580.65.06\n"));
  EXPECT_THAT(text, HasSubstr("  card 0              NVIDIA H100 80GB HBM3, 80.0 GiB, 20.0 GiB free\n"));
  EXPECT_THAT(text,
              HasSubstr("  warning             slowed down: card 1 (NVIDIA \"L4\"): hardware slowdown"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  const json report = json::parse(run_well({"doctor", "--json"}, options).out);
  EXPECT_EQ(report["nvidia"]["cards"].size(), 2u);
  EXPECT_EQ(report["nvidia"]["cards"][0]["sm_clock_hertz"], 1'755'000'000);
  EXPECT_EQ(report["nvidia"]["warnings"][0]["name"], "gpu_throttling");
  options.environment.emplace_back("FAKE_NVML=no_driver");
  EXPECT_THAT(run_well({"doctor"}, options).out, testing::Not(HasSubstr("NVIDIA")));
  EXPECT_FALSE(json::parse(run_well({"doctor", "--json"}, options).out).contains("nvidia"));
}

TEST(Workflow, DoctorFitsIn80Columns) {
  std::istringstream lines(run_well({"doctor"}).out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

// A limit applies to every kernel; an instruction set that the machine lacks is refused.
TEST(Workflow, TesseraIsaLimitsEveryKernelOrIsRefused) {
  const TinyModel tiny;
  const json machine = json::parse(run_well({"doctor", "--json"}, {.environment = {"TESSERA_ISA="}}).out);
  std::map<std::string, std::string> refusals = {{"ref", ""}};
  for (const json& isa : machine["instruction_sets"]) refusals[isa["name"]] = isa["refusal"];
  const std::vector<std::string> weakest_first = {"ref",    "baseline",    "avx2",
                                                  "avx512", "avx512_bf16", "amx_bf16"};
  const auto strength = [&](const std::string& name) {
    return std::find(weakest_first.begin(), weakest_first.end(), name) - weakest_first.begin();
  };
  for (const auto& [value, name] : std::map<std::string, std::string>{
           {"ref", "ref"}, {"avx2", "avx2"}, {"avx512", "avx512"}, {"amx", "amx_bf16"}}) {
    const ProcessOptions limited = {.environment = {"TESSERA_ISA=" + value}};
    const std::vector<std::string> train = tiny.train_arguments("out-" + value, {"--max_steps", "2"});
    if (!refusals.at(name).empty()) {
      for (const auto& arguments : {std::vector<std::string>{"doctor"}, train}) {
        const ProcessResult refused = run_tessera(arguments, limited);
        EXPECT_EQ(refused.exit_code, 78) << value;
        EXPECT_THAT(refused.err, HasSubstr("TESSERA_ISA=" + value)) << value;
      }
      continue;
    }
    const json report = json::parse(run_well({"doctor", "--json"}, limited).out);
    EXPECT_EQ(report["isa_limit"], name);
    for (const json& kernel : report["kernels"]) {
      for (const json& row : kernel["implementations"]) {
        if (!row["used"]) continue;
        EXPECT_LE(strength(row["isa"]), strength(name)) << value << ": " << kernel.dump();
      }
    }
    run_well(train, limited);
    EXPECT_EQ(read_metrics(tiny.folder / ("out-" + value)).size(), 2u) << value;
    EXPECT_EQ(read_metrics(tiny.folder / ("out-" + value)).back().contains("mfu"), value != "ref") << value;
  }
}

TEST(Workflow, LogLevelDropsMessagesBelowIt) {
  const TinyModel tiny;
  EXPECT_THAT(run_well(tiny.train_arguments("out")).err, HasSubstr("info:"));
  const ProcessResult quiet = run_well(tiny.train_arguments("out2", {"--log_level", "warning"}));
  EXPECT_THAT(quiet.err, testing::Not(HasSubstr("info:")));
  EXPECT_THAT(quiet.out, HasSubstr("{'loss': "));
}

int64_t threads_of_doctor(const ProcessOptions& options) {
  const ProcessResult result = run_tessera({"doctor", "--json"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out)["cpus"]["threads"].get<int64_t>();
}

TEST(Threads, AreThoseOfTheAffinityMaskUnlessTheEnvironmentSaysOtherwise) {
  EXPECT_EQ(threads_of_doctor({.one_processor = true}), 1);
  EXPECT_EQ(threads_of_doctor({.environment = {"OMP_NUM_THREADS=3"}, .one_processor = true}), 3);
  EXPECT_EQ(threads_of_doctor({.environment = {"OMP_NUM_THREADS=1"}}), 1);
}

TEST(Threads, MoreThanProcessorsTrainAlikeAfterAWarning) {
  const TinyModel tiny;
  const auto weights_of = [&](const std::string& out, const std::vector<std::string>& more,
                              const ProcessOptions& options, const std::string& warning) {
    const ProcessResult result = run_tessera(tiny.train_arguments(out, more), options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> warnings;
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("THREADS ") != std::string::npos || line.find("num_threads ") != std::string::npos)
        warnings.push_back(line);
    }
    if (warning.empty()) {
      EXPECT_THAT(warnings, testing::IsEmpty());
    } else {
      EXPECT_THAT(warnings, testing::ElementsAre(HasSubstr(warning))) << result.err;
    }
    return read_file(tiny.folder / (out + "/model.safetensors"));
  };
  const std::string one = weights_of("one", {}, {.one_processor = true}, "");
  EXPECT_EQ(weights_of("five", {"--num_threads", "5"}, {.one_processor = true},
                       "num_threads 5 is more than this process can run at once: 1 processor allowed by the "
                       "affinity mask"),
            one);
  EXPECT_EQ(weights_of("three", {}, {.environment = {"OMP_NUM_THREADS=3"}, .one_processor = true},
                       "OMP_NUM_THREADS 3 is more than"),
            one);
}

// An endless training run that is sent `signal` once it has logged a step.
ProcessResult run_until_signal(const TinyModel& tiny, int signal, const std::vector<std::string>& more = {},
                               const std::vector<std::string>& launch = {}) {
  bool sent = false;
  ProcessOptions options;
  options.on_output = [&](pid_t pid, const std::string& out, const std::string&) {
    if (!sent && out.find("{'loss'") != std::string::npos) {
      kill(pid, signal);
      sent = true;
    }
  };
  std::vector<std::string> arguments =
      tiny.train_arguments("out", {"--max_steps", "1000000", "--logging_steps", "1"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.insert(arguments.begin(), launch.begin(), launch.end());
  return run_tessera(arguments, options);
}

TEST(Interruption, FirstSignalSavesACheckpointAndEndsByTheSignal) {
  struct Case {
    int signal;
    std::string name;
    std::vector<std::string> launch = {};
  };
  for (const Case& of : {Case{SIGINT, "SIGINT"}, Case{SIGTERM, "SIGTERM"}, Case{SIGHUP, "SIGHUP"},
                         Case{SIGHUP, "SIGHUP", {"launch", "--nproc_per_node", "2"}}}) {
    SCOPED_TRACE(of.name);
    const TinyModel tiny;
    const ProcessResult result = run_until_signal(tiny, of.signal, {}, of.launch);
    EXPECT_EQ(result.signal, of.signal) << result.err;
    EXPECT_TRUE(result.errors().empty()) << result.err;
    EXPECT_THAT(result.err, HasSubstr("info: " + of.name + ": the run ends with a checkpoint"));
    int64_t checkpoints = 0;
    for (const auto& entry : fs::directory_iterator(tiny.folder / "out")) {
      if (!entry.path().filename().string().starts_with("checkpoint-")) continue;
      ++checkpoints;
      run_well({"inspect", entry.path()});
    }
    EXPECT_EQ(checkpoints, 1);
  }
}

TEST(Interruption, TellsOnceHowToResume) {
  for (const std::vector<std::string>& launch :
       {std::vector<std::string>{}, std::vector<std::string>{"launch", "--nproc_per_node", "2"}}) {
    const TinyModel tiny;
    const ProcessResult result = run_until_signal(tiny, SIGINT, {"--use_ipex", "--run_name", "a b"}, launch);
    const size_t begin = result.out.find("to resume: tessera ");
    ASSERT_NE(begin, std::string::npos) << result.out << result.err;
    EXPECT_EQ(result.out.find("to resume:", begin + 1), std::string::npos) << result.out;
    const std::string command = result.out.substr(begin, result.out.find('\n', begin) - begin);
    EXPECT_THAT(command, HasSubstr(launch.empty() ? "tessera train --model "
                                                  : "tessera launch --nproc_per_node 2 train "));
    EXPECT_TRUE(command.ends_with(" --run_name 'a b' --resume_from_checkpoint auto")) << command;
    // So are warnings about flags.
    const std::string warning = "--use_ipex has no effect";
    EXPECT_THAT(result.err, HasSubstr(warning));
    EXPECT_EQ(result.err.find(warning), result.err.rfind(warning)) << result.err;
  }
}

// NO_COLOR turns off colours only; a dumb terminal gets no progress line either.
TEST(Output, EscapeSequencesAreThoseThatTheTerminalTakes) {
  const TinyModel tiny;
  const auto error_with = [&](const std::string& type, const std::string& no_color) {
    return run_tessera(tiny.train_arguments("out", {"--use_ipex"}),
                       {.environment = {"COLORTERM=", "TERM=" + type, "NO_COLOR=" + no_color},
                        .error_is_terminal = true})
        .err;
  };
  const std::string reset_colour = "\x1b[m", clear_line = "\x1b[K";
  EXPECT_THAT(error_with("xterm", ""),
              testing::AllOf(HasSubstr(reset_colour), HasSubstr(clear_line), HasSubstr("\x1b[2mloss")));
  EXPECT_THAT(error_with("xterm", "1"),
              testing::AllOf(HasSubstr("warning: "), HasSubstr(clear_line),
                             testing::Not(HasSubstr(reset_colour)), testing::Not(HasSubstr("\x1b[2m"))));
  EXPECT_THAT(error_with("dumb", ""),
              testing::AllOf(HasSubstr("warning: "), HasSubstr("step 1/"), testing::Not(HasSubstr("\x1b"))));
}

TEST(Interruption, WithoutACheckpointSaysSo) {
  const TinyModel tiny;
  const ProcessResult result = run_until_signal(tiny, SIGTERM, {"--save_on_sigterm", "false"});
  EXPECT_EQ(result.signal, SIGTERM) << result.err;
  EXPECT_THAT(result.err, HasSubstr("SIGTERM: the run ends without a checkpoint"));
  EXPECT_THAT(result.out, HasSubstr("stopped by a signal; no checkpoint was written\n"));
  EXPECT_FALSE(fs::exists(tiny.folder / "out/latest"));
}

}  // namespace
}  // namespace tessera
