#include <filesystem>

#include "base/text.h"
#include "bench/checkpoint_bench.h"
#include "bench/commands/bench_command.h"
#include "cli/model/loaded_model.h"
#include "cli/run/threads.h"

namespace tessera {
namespace {

// Vocabulary of shapes that leave it to the tokenizer.
constexpr int64_t kDefaultVocabulary = 32000;

class BenchCheckpointCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench checkpoint"; }
  std::string summary() const override { return "Measure writing and loading checkpoints"; }
  std::string description() const override {
    return "Writes a checkpoint of random state, loads it and compares every bit, then measures in turn with "
           "what dd would do. write: from the first byte until the commit; peak is one file of the same "
           "size, written and synced (conv=fsync), other is direct writes (oflag=direct). load_from_disk: "
           "files that are not in the page cache; peak is direct reads (iflag=direct), other is plain reads. "
           "load_from_cache: files that are in the page cache; peak is plain reads.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench checkpoint --folder /data/tmp"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("preset", &preset_, "Named shape of the model; a checkpoint has 12 bytes per parameter.")
        .value_name = preset_value_name();
    table->add("folder", &folder_, "Where to write; a temporary subfolder is created there and removed.")
        .value_name = "DIR";
    limit_flag(table->add("ranks", &ranks_, "Ranks that write concurrently, as threads."), 1, 1024);
    declare_dtype_flag(table, &dtype_, {"bfloat16", "float16", "float32"}, "Type of the model's files.");
    declare_common_flags(table, /*seconds=*/1);
  }

  void run(FlagTable*) override {
    ThreadPool pool(threads_for_pool(num_threads()));
    CheckpointCase c;
    c.config = preset_config(preset_);
    if (c.config.vocab_size == 0) c.config.vocab_size = kDefaultVocabulary;
    c.model_dtype = dtype_of_flag(dtype_);
    c.num_ranks = static_cast<int>(ranks_);
    c.folder = std::filesystem::path(folder_) / "tessera-bench-checkpoint";
    show_header(fmt::format("checkpoint {}, {}", preset_, count_of(pool.num_threads(), "thread")), "GB/s",
                "other");
    const std::vector<BenchLine> lines = run_checkpoint_case(c, measure_options(), pool);
    for (const BenchLine& line : lines) show(line, pool);
    std::error_code ignored;
    std::filesystem::remove(c.folder, ignored);
  }

 private:
  std::string preset_ = "160m";
  std::string folder_ = ".";
  std::string dtype_ = "bfloat16";
  int64_t ranks_ = 1;
};

}  // namespace

std::unique_ptr<Command> make_bench_checkpoint_command() {
  return std::make_unique<BenchCheckpointCommand>();
}

}  // namespace tessera
