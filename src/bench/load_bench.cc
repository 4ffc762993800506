#include "bench/load_bench.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/float_types.h"
#include "base/memory.h"
#include "base/text.h"
#include "bench/shell.h"
#include "comm/node/node_group.h"
#include "formats/safetensors/safetensors.h"
#include "io/page_cache.h"
#include "model/families/families.h"
#include "platform/prefault.h"
#include "shard/layout/shard_plan.h"
#include "weights/model_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// What a rank reports to the parent, in memory that both map.
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

class AnswerBoard {
 public:
  explicit AnswerBoard(int num_ranks) : size_bytes_(sizeof(LoadAnswer) * static_cast<size_t>(num_ranks)) {
    void* const mapped =
        mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail_errno(ExitCode::kBadConfig, errno, "cannot map memory for ranks' answers");
    answers_ = {static_cast<LoadAnswer*>(mapped), static_cast<size_t>(num_ranks)};
    std::uninitialized_default_construct(answers_.begin(), answers_.end());
  }
  ~AnswerBoard() { munmap(answers_.data(), size_bytes_); }
  AnswerBoard(const AnswerBoard&) = delete;
  AnswerBoard& operator=(const AnswerBoard&) = delete;

  std::span<LoadAnswer> answers() const { return answers_; }

 private:
  size_t size_bytes_;
  std::span<LoadAnswer> answers_;
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
  const AnswerBoard board(c.num_ranks);
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
      LoadAnswer* const answer = &board.answers()[static_cast<size_t>(rank)];
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
  const LoadAnswer& first = board.answers()[0];
  double begin = first.begin, memory_ready = first.memory_ready, end = 0;
  LoadResult result;
  for (const LoadAnswer& answer : board.answers()) {
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
  std::string quoted;
  for (const char c : file.native()) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  const std::string command = fmt::format("LC_ALL=C dd bs=8M if='{}' of=/dev/null", quoted);
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

}  // namespace

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

}  // namespace tessera
