#include <filesystem>

#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/load_bench.h"
#include "bench/scratch_folder.h"
#include "cli/run/threads.h"
#include "cli/terminal/terminal.h"
#include "formats/safetensors/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxLoadingRanks = 64;

class BenchLoadCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench load"; }
  std::string summary() const override { return "Measure loading a model's files"; }
  std::string description() const override {
    return "Reads the weights of a model folder as training does, with one rank or with several that share "
           "the work and the memory, in turn with `dd bs=8M if=FILE of=/dev/null` on the same files: share "
           "is the median of the paired ratios, followed by its quartiles. The second line of each case "
           "includes the time the system takes to provide the memory. Warm files are in the page cache; cold "
           "ones are dropped from it before each turn (a virtual machine's host may still hold them). All "
           "weights are first compared with the files. Without --model, a model folder is created and "
           "removed at the end.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench load", "tessera-bench load --model models/llama3 --ranks 2 --cache cold"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("model", &model_, "Model folder with BF16 weights.").value_name = "DIR";
    table
        ->add("folder", &folder_,
              "Where to create a model if there is no --model: on the file system to be measured. Defaults "
              "to the folder for temporary files.")
        .value_name = "DIR";
    limit_flag(table->add("size_mb", &size_mb_, "Approximate size of that model, in MB."), 1, 1e6);
    table->add("ranks", &ranks_, "Numbers of ranks.").value_name = "N...";
    table->add("cache", &cache_, "State of the page cache: warm, it holds all of the files; cold, none.")
        .value_name = "NAME...";
    declare_common_flags(table, /*seconds=*/0.5);
  }

  void run(FlagTable*) override {
    const std::vector<int64_t> all_ranks = parse_sizes("ranks", ranks_, kMaxLoadingRanks);
    for (const std::string& cache : cache_) {
      if (cache != "warm" && cache != "cold") {
        fail(ExitCode::kUsage, "--cache: expected warm or cold, found '{}'", printable(cache));
      }
    }
    if (!model_.empty() && !folder_.empty()) {
      fail(ExitCode::kUsage, "give --model, or --folder for a model to be made, not both");
    }
    if (!model_.empty()) return measure(model_, all_ranks);
    const ScratchFolder temporary(folder_.empty() ? fs::temp_directory_path() : fs::path(folder_));
    write_load_bench_model(temporary.path(), size_mb_ * 1'000'000);
    measure(temporary.path(), all_ranks);
  }

 private:
  void measure(const fs::path& model, const std::vector<int64_t>& all_ranks) {
    SafetensorsModel::open(model);  // fails on missing files before anything is shown
    const int64_t all_threads = threads_for_pool(num_threads());
    if (!json()) {
      write_output("load, shape is ranks x threads of each x MB; peak is dd\n" + table_header("GB/s", ""));
      flush_output();
    }
    for (const int64_t ranks : all_ranks) {
      for (const std::string& cache : cache_) {
        // As under `tessera launch`, the ranks divide the processors.
        const LoadCase c = {static_cast<int>(ranks), std::max<int64_t>(1, all_threads / ranks),
                            cache == "cold"};
        for (const BenchLine& line : run_load_case(model, c, measure_options())) {
          write_output(json() ? json_line(line, c.num_threads) : table_row(line));
        }
        flush_output();
      }
    }
  }

  std::string model_;
  std::string folder_;
  int64_t size_mb_ = 1000;
  std::vector<std::string> ranks_ = {"1", "2", "4"};
  std::vector<std::string> cache_ = {"warm", "cold"};
};

}  // namespace

std::unique_ptr<Command> make_bench_load_command() { return std::make_unique<BenchLoadCommand>(); }

}  // namespace tessera
