#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/surroundings.h"
#include "bench/tokenizer_bench.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "io/absolute_path.h"
#include "io/file.h"
#include "tokenizer/training/bpe_trainer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Trains a tokenizer of 8192 tokens on the text and returns its tokenizer.json.
std::string trained_tokenizer(const std::string& text, ThreadPool& pool) {
  const ScratchFolder folder;
  const fs::path file = folder.path() / "text.txt";
  write_text_file(file, text);
  BpeTrainingOptions options;
  options.files = {file.string()};
  train_bpe(options, folder.path(), pool);
  return read_text_file(folder.path() / "tokenizer.json");
}

// The name of a folder in the lines; the folder may be given with a slash at the end.
std::string name_of_folder(const fs::path& folder) {
  const fs::path path = absolute_path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::string read_bench_text(const fs::path& path) {
  std::string text = read_text_file(path);
  if (text.empty()) fail(ExitCode::kBadData, "{}: expected text, found an empty file", path.string());
  if (const int64_t invalid = find_invalid_utf8(text); invalid >= 0)
    fail(ExitCode::kBadData, "{}: not UTF-8 at byte {}", path.string(), invalid);
  return text;
}

class BenchTokenizerCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench tokenizer"; }
  std::string summary() const override { return "Measure encoding and decoding of text"; }
  std::string description() const override {
    return "MiB of text per second on one thread: encoding words seen before, encoding with a fresh "
           "tokenizer, decoding, and reading tokenizer.json. The ids are first compared with those of the "
           "plain path (PCRE2 for every pattern, no caches); the last column is the median ratio to its "
           "speed, measured in turn. Without flags, a generated text and a tokenizer trained on it are used.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench tokenizer --tokenizer models/llama3 --text book.txt"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("tokenizer", &tokenizers_, "Folders with tokenizer.json.").value_name = "DIR...";
    table->add("text", &texts_, "Text files (UTF-8).").value_name = "FILE...";
    limit_flag(table->add("text_bytes", &text_bytes_, "Size of the generated text."), 1, 1e9);
    declare_common_flags(table, /*seconds=*/0.5);
  }

  void run(FlagTable*) override {
    std::vector<std::pair<std::string, std::string>> texts;  // name and content
    for (const std::string& path : texts_)
      texts.emplace_back(fs::path(path).filename().string(), read_bench_text(path));
    if (texts_.empty()) texts.emplace_back("generated", generate_text(text_bytes_, /*seed=*/1));
    std::vector<std::pair<std::string, std::string>> tokenizers;
    for (const std::string& path : tokenizers_) {
      tokenizers.emplace_back(name_of_folder(path), read_text_file(fs::path(path) / "tokenizer.json"));
    }
    if (tokenizers_.empty()) {
      ThreadPool pool(threads_for_pool(num_threads()));
      tokenizers.emplace_back("trained", trained_tokenizer(texts[0].second, pool));
    }
    if (!json()) write_output("tokenizer, 1 thread\n" + tokenizer_table_header());
    for (const auto& [tokenizer_name, tokenizer_json] : tokenizers) {
      for (const auto& [text_name, text] : texts) {
        for (const TokenizerLine& line :
             run_tokenizer_bench(tokenizer_json, tokenizer_name, text, text_name, measure_options())) {
          write_output(json() ? tokenizer_json_line(line) : tokenizer_table_row(line));
          flush_output();
        }
      }
    }
  }

 private:
  std::vector<std::string> tokenizers_;
  std::vector<std::string> texts_;
  int64_t text_bytes_ = 1 << 20;
};

}  // namespace

std::unique_ptr<Command> make_bench_tokenizer_command() { return std::make_unique<BenchTokenizerCommand>(); }

}  // namespace tessera
