// Speed of loading a model's files into memory, against dd reading the same files in turn.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float_types.h"
#include "base/memory.h"
#include "base/text.h"
#include "bench/bench_line.h"
#include "bench/commands/bench_command.h"
#include "bench/measure.h"
#include "bench/surroundings.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "comm/node/node_group.h"
#include "formats/safetensors/safetensors.h"
#include "io/page_cache.h"
#include "model/families/families.h"
#include "platform/prefault.h"
#include "shard/layout/shard_plan.h"
#include "weights/model_folder.h"

namespace tessera {
namespace {

struct LoadCase {
  int num_ranks = 1;
  int64_t num_threads = 1;  // per rank
  bool cold = false;        // the files are dropped from the page cache before each turn
};

namespace fs = std::filesystem;

// A rank's report to the parent, in memory that both map.
struct alignas(kCacheLineBytes) LoadAnswer {
  // Times on a clock that all processes share.
  double begin = 0;
  double memory_ready = 0;
  double end = 0;
  int64_t num_checked = 0;
  bool failed = false;
  ExitCode code = ExitCode::kInternal;
  std::array<char, 1000> error = {};
};

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The parts that a rank reads, as in training.
std::vector<ElementRange> ranges_of(const ParameterLayout& layout, const World& world) {
  constexpr int64_t kAlignment = 256;
  const ShardPlan plan({{0, layout.num_elements()}}, kAlignment, 1, world.local_world_size);
  const Part part = plan.part(0, world.local_rank);
  return {{part.begin, part.end}};
}

// Compares every weight with the files; returns the number of weights.
int64_t verify(const SafetensorsModel& model, const ParameterLayout& layout, const bf16* weights) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<bf16> expected(kPiece);
  int64_t num_checked = 0;
  for (const Parameter& parameter : layout.parameters()) {
    const SafetensorsModel::Location location = model.tensors().at(parameter.name);
    for (int64_t begin = 0; begin < parameter.num_elements; begin += kPiece) {
      const int64_t count = std::min(kPiece, parameter.num_elements - begin);
      location.file->read(*location.entry, begin, TensorView(expected.data(), DType::kBF16, {count}));
      const bf16* const found = weights + parameter.offset + begin;
      if (std::memcmp(found, expected.data(), static_cast<size_t>(count) * sizeof(bf16)) != 0) {
        fail(ExitCode::kInternal, "load: tensor '{}': elements [{}, {}) in memory differ from the file",
             parameter.name, begin, begin + count);
      }
      num_checked += count;
    }
  }
  return num_checked;
}

void run_rank(const fs::path& folder, const ModelConfig& config, const LoadCase& c, const World& world,
              bool verifies, LoadAnswer* answer) {
  FailureDetector failures;
  NodeGroup group(world, {.timeout = std::chrono::minutes(10)}, failures);
  ThreadPool pool(c.num_threads);
  const ParameterLayout layout = parameter_layout(config);
  const std::vector<ElementRange> ranges = ranges_of(layout, world);
  const int64_t size_bytes = layout.num_elements() * dtype_bytes(DType::kBF16);
  group.barrier({"start"});

  answer->begin = now_seconds();
  PageBuffer own;
  PageBuffer shared;
  bf16* weights = nullptr;
  if (group.size() == 1) {
    own = PageBuffer(size_bytes);
    prefault(pool, own.as<std::byte>());
    weights = own.as<bf16>().data();
  } else {
    shared = group.allocate("weights", size_bytes);
    group.prefault(shared, pool);
    weights = shared.as<bf16>().data();
  }
  group.barrier({"memory"});
  answer->memory_ready = now_seconds();
  const SafetensorsModel model = SafetensorsModel::open(folder);
  LoadOptions options;
  options.ranges = ranges;
  options.bf16_destination = [weights](int64_t begin, int64_t count) {
    return std::span(weights + begin, static_cast<size_t>(count));
  };
  const WeightSink sink = [](int64_t, std::span<const float>) {
    fail(ExitCode::kBadConfig, "bench load: expected BF16 weights, found another type");
  };
  load_weights(model, config, layout, sink, pool, options);
  answer->end = now_seconds();

  group.barrier({"end"});
  if (verifies && world.rank == 0) answer->num_checked = verify(model, layout, weights);
  group.barrier({"verified"});
}

[[noreturn]] void run_rank_process(const std::function<void()>& body, LoadAnswer* answer) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    body();
  } catch (const Error& error) {
    answer->failed = true;
    answer->code = error.code();
    std::snprintf(answer->error.data(), answer->error.size(), "%s", error.what());
  } catch (const std::exception& error) {
    answer->failed = true;
    std::snprintf(answer->error.data(), answer->error.size(), "%s", error.what());
  }
  _exit(answer->failed ? 1 : 0);
}

struct LoadResult {
  double memory_s = 0;
  double read_s = 0;
  int64_t num_checked = 0;
};

// Every turn uses new processes: memory is fresh, as at the start of training.
LoadResult load_in_processes(const fs::path& folder, const ModelConfig& config, const LoadCase& c,
                             bool verifies) {
  static int turn = 0;
  ++turn;
  const auto board_bytes = static_cast<int64_t>(sizeof(LoadAnswer)) * c.num_ranks;
  UniqueFd memory = memory_file("tessera bench load", board_bytes);
  if (!memory) fail_errno(ExitCode::kBadConfig, errno, "cannot map memory for ranks' answers");
  const PageBuffer board(std::move(memory), board_bytes);
  const std::span<LoadAnswer> answers = board.as<LoadAnswer>();
  std::uninitialized_default_construct(answers.begin(), answers.end());
  std::vector<pid_t> children;
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) fail_errno(ExitCode::kIoError, errno, "cannot start a rank");
    if (pid == 0) {
      World world;
      world.run_id = fmt::format("bench load {} {}", getppid(), turn);
      world.world_size = world.local_world_size = c.num_ranks;
      world.rank = world.local_rank = rank;
      world.host = "this machine";
      LoadAnswer* const answer = &answers[static_cast<size_t>(rank)];
      run_rank_process([&] { run_rank(folder, config, c, world, verifies, answer); }, answer);
    }
    children.push_back(pid);
  }
  bool is_complete = true;
  for (const pid_t child : children) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    is_complete = is_complete && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  const LoadAnswer& first = answers[0];
  double begin = first.begin, memory_ready = first.memory_ready, end = 0;
  LoadResult result;
  for (const LoadAnswer& answer : answers) {
    if (answer.failed) throw Error(answer.code, answer.error.data());
    begin = std::min(begin, answer.begin);
    memory_ready = std::min(memory_ready, answer.memory_ready);
    end = std::max(end, answer.end);
    result.num_checked += answer.num_checked;
  }
  if (!is_complete) fail(ExitCode::kIoError, "bench load: a rank was killed");
  result.memory_s = memory_ready - begin;
  result.read_s = end - memory_ready;
  return result;
}

// Seconds as reported by dd.
double dd_seconds(const fs::path& file) {
  const std::string command =
      fmt::format("LC_ALL=C dd bs=8M if={} of=/dev/null", shell_quoted(file.native()));
  const std::string output = run_shell(command, ExitCode::kBadConfig);
  // "1048576 bytes (1.0 MB, 1.0 MiB) copied, 0.000152 s, 6.9 GB/s"
  constexpr std::string_view kMark = "copied, ";
  const size_t at = output.find(kMark);
  double seconds = 0;
  if (at != std::string::npos)
    std::from_chars(output.data() + at + kMark.size(), output.data() + output.size(), seconds);
  if (seconds <= 0) fail(ExitCode::kBadConfig, "'{}' failed: {}", command, printable(output));
  return seconds;
}

// Two lines from the same turns: reading alone, into memory already allocated, as in training; and
// "_with_memory", which includes allocating it. Ranks are processes of one node, as under `tessera launch`,
// new ones in each turn. One rank reads into its own memory, several into memory they share. A turn ends when
// the last rank has opened the files, and read and checked its share of the weights. dd reads the files one
// after another with blocks of 8 MiB; its own figures count. Speeds are GB/s of the files. First all weights
// are compared with the files byte by byte.
//
// Call while the process has no other threads. Error(kBadConfig) if the weights are not BF16, if dd is
// missing, or if the page cache does not release the files.
std::vector<BenchLine> run_load_case(const fs::path& folder, const LoadCase& c,
                                     const MeasureOptions& options) {
  const ModelConfig config = read_model_config(folder);
  std::vector<fs::path> files;
  int64_t size_bytes = 0;
  const SafetensorsModel model = SafetensorsModel::open(folder);
  for (const auto& file : model.files()) {
    files.push_back(file->path());
    size_bytes += static_cast<int64_t>(fs::file_size(file->path()));
  }

  BenchLine line;
  line.benchmark = "load";
  line.operation = c.cold ? "cold" : "warm";
  line.shape = {{"ranks", c.num_ranks}, {"threads", c.num_threads}, {"megabytes", size_bytes / 1'000'000}};
  line.dtype = dtype_name(DType::kBF16);
  line.implementation = "load_weights";
  line.unit = "GB/s";
  line.peak_name = "dd";
  line.amount = static_cast<double>(size_bytes) * 1e-9;
  line.verification.num_checked = load_in_processes(folder, config, c, /*verifies=*/true).num_checked;

  const auto drop_if_cold = [&] {
    if (c.cold) std::for_each(files.begin(), files.end(), drop_from_page_cache);
  };
  LoadResult last;
  const std::array<Participant, 3> participants = {
      [&] {
        drop_if_cold();
        last = load_in_processes(folder, config, c, /*verifies=*/false);
        return line.amount / last.read_s;
      },
      [&] {
        drop_if_cold();
        double seconds = 0;
        for (const fs::path& file : files) seconds += dd_seconds(file);
        return line.amount / seconds;
      },
      [&] { return line.amount / (last.memory_s + last.read_s); }};
  std::vector<std::vector<double>> speeds = measure_in_turn(participants, options);
  BenchLine with_memory = line;
  with_memory.operation += "_with_memory";
  fill_statistics({speeds[2], speeds[1]}, &with_memory);
  fill_statistics({speeds[0], speeds[1]}, &line);
  return {line, with_memory};
}

// Creates a BF16 model folder of about `size_bytes`, with layers of Llama 3.2 1B's shape and weights that are
// cheap to generate.
void write_load_bench_model(const fs::path& folder, int64_t size_bytes) {
  ModelConfig config = preset_config("llama3.2-1b");
  config.vocab_size = 32'000;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  config.num_hidden_layers = 1;
  const int64_t wanted = size_bytes / dtype_bytes(DType::kBF16);
  const int64_t with_one = parameter_layout(config).num_parameters();
  config.num_hidden_layers = 2;
  const int64_t of_layer = parameter_layout(config).num_parameters() - with_one;
  config.num_hidden_layers = 1 + std::max<int64_t>(0, (wanted - with_one + of_layer / 2) / of_layer);
  const WeightSource source = [](int64_t begin, std::span<float> values) {
    // Different everywhere, exact in BF16.
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<uint64_t>(begin) + i;
      values[i] = static_cast<float>(static_cast<int64_t>((at * 0x9E3779B97F4A7C15u) >> 57) - 64) / 64;
    }
  };
  export_model_folder(folder, config, parameter_layout(config), source, {});
}

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
        // The ranks divide the processors, as under `tessera launch`.
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
