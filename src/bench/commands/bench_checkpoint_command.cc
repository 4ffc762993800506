// Speed of writing and loading checkpoints against what `dd` would reach with the same bytes on the same
// disk: one file, written or read from front to back in blocks of 4 MiB by one thread.
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/bench_line.h"
#include "bench/commands/bench_command.h"
#include "bench/measure.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_writer.h"
#include "cli/model/model_output.h"
#include "cli/threads.h"
#include "formats/huggingface/model_config.h"
#include "io/file.h"
#include "io/output_file.h"
#include "io/page_cache.h"
#include "model/families/families.h"
#include "optim/elementwise.h"
#include "platform/thread_pool.h"
#include "settings/choices.h"
#include "tensor/dtype.h"

namespace tessera {
namespace {

struct CheckpointCase {
  ModelConfig config;
  DType model_dtype = DType::kBF16;
  int num_ranks = 1;             // ranks that write concurrently
  std::filesystem::path folder;  // for the files; empty again afterwards
};

namespace fs = std::filesystem;

constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr uint64_t kSeed = 1;

constexpr StateTensors kTensors = AdamW::kStateTensors;

// Masters and optimizer state, in memory as in training.
class State {
 public:
  explicit State(int64_t num_elements)
      : arrays_{PageBuffer(num_elements * 4), PageBuffer(num_elements * 4), PageBuffer(num_elements * 4)} {}

  std::span<float> of(StateKind kind) const { return arrays_[static_cast<size_t>(kind)].as<float>(); }
  StateSource source() const {
    return [this](StateKind kind, int64_t begin, std::span<float> values) {
      std::copy_n(of(kind).begin() + begin, values.size(), values.begin());
    };
  }
  StateSink sink() const {
    return [this](StateKind kind, int64_t begin, std::span<const float> values) {
      std::copy(values.begin(), values.end(), of(kind).begin() + begin);
    };
  }

 private:
  std::array<PageBuffer, 1 + kTensors.size()> arrays_;
};

void fill(const ParameterLayout& layout, const State& state, ThreadPool& pool) {
  for_each_state_kind(kTensors.size(), [&](StateKind kind) {
    const std::span<float> values = state.of(kind);
    const CounterRng rng(kSeed, static_cast<uint64_t>(kind));
    for (const Parameter& parameter : layout.parameters()) {
      pool.parallel_blocks(parameter.num_elements, 1 << 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = parameter.offset + begin; i < parameter.offset + end; ++i) {
          values[static_cast<size_t>(i)] = rng.uniform(static_cast<uint64_t>(i));
        }
      });
    }
  });
}

// Equal shares of every parameter group.
std::vector<ElementRange> share_of(const ParameterLayout& layout, int rank, int num_ranks) {
  std::vector<ElementRange> ranges;
  for (const ParameterLayout::Group& group : layout.groups()) {
    const int64_t size = group.end - group.begin;
    ranges.push_back({group.begin + size * rank / num_ranks, group.begin + size * (rank + 1) / num_ranks});
  }
  return ranges;
}

// The files of a benchmark and the operations on them.
class CheckpointFiles {
 public:
  CheckpointFiles(const CheckpointCase& c, ThreadPool& pool)
      : case_(c),
        layout_(parameter_layout(c.config)),
        state_(layout_.num_elements()),
        loaded_(layout_.num_elements()),
        pool_(pool) {
    fill(layout_, state_, pool_);
  }
  ~CheckpointFiles() {
    remove_checkpoint();
    std::error_code ignored;
    fs::remove(plain_file(), ignored);
    fs::remove(case_.folder / "latest", ignored);
  }
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;

  int64_t bytes() const { return CheckpointReader::open(plan(0).folder).bytes(); }

  void remove_checkpoint() const {
    std::error_code ignored;
    fs::remove_all(plan(0).folder, ignored);
  }

  void write() {
    create_checkpoint(plan(0));
    std::vector<std::unique_ptr<CheckpointWriter>> writers;
    for (int rank = 0; rank < case_.num_ranks; ++rank) {
      writers.push_back(std::make_unique<CheckpointWriter>(
          plan(rank), share_of(layout_, rank, case_.num_ranks), state_.source(), WriteOptions(), pool_));
    }
    for (const auto& writer : writers) writer->wait();
    commit_checkpoint(plan(0), {1, "{}", "{}\n", "{}\n"});
  }

  void load() const {
    CheckpointReader::open(plan(0).folder)
        .load(layout_, kTensors, {{0, layout_.num_elements()}}, loaded_.sink(), pool_);
  }

  Verification verify() const {
    load();
    Verification result;
    for_each_state_kind(kTensors.size(), [&](StateKind kind) {
      const std::span<float> expected = state_.of(kind);
      TESSERA_CHECK(std::memcmp(expected.data(), loaded_.of(kind).data(), expected.size_bytes()) == 0,
                    "a checkpoint was loaded with different values than were written");
      result.num_checked += std::ssize(expected);
    });
    return result;
  }

  // One file with as many bytes as a checkpoint.
  fs::path plain_file() const { return case_.folder / "plain"; }
  void write_plain(bool direct, int64_t size_bytes) const {
    std::error_code ignored;
    fs::remove(plain_file(), ignored);
    const OutputFile file = direct ? OutputFile() : OutputFile::create(plain_file(), 0);
    const int fd =
        direct ? ::open(plain_file().c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0666) : -1;
    const std::byte* memory = reinterpret_cast<const std::byte*>(state_.of(StateKind::kMaster).data());
    const int64_t available = state_.of(StateKind::kMaster).size_bytes() / kBlockBytes * kBlockBytes;
    for (int64_t at = 0; at < size_bytes; at += kBlockBytes) {
      const std::span<const std::byte> block(memory + at % available, static_cast<size_t>(kBlockBytes));
      if (!direct) {
        file.write_at(at, block);
      } else if (::pwrite(fd, block.data(), block.size(), at) != kBlockBytes) {
        fail_write(plain_file(), "direct write", errno);
      }
    }
    if (direct) {
      if (::fsync(fd) != 0 || ::close(fd) != 0) fail_write(plain_file(), "fsync", errno);
    } else {
      file.sync();
    }
  }
  void read_plain(bool direct) const { read_file(plain_file(), direct); }
  static void read_file(const fs::path& path, bool direct) {
    const PageBuffer block(kBlockBytes);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    if (fd < 0) fail_write(path, "opening", errno);
    ssize_t got = 0;
    do got = ::read(fd, block.data(), static_cast<size_t>(kBlockBytes));
    while (got > 0);
    const int error = errno;
    ::close(fd);
    if (got < 0) fail_write(path, "read", error);
  }

  void read_into_cache() const {
    for (const auto& entry : fs::recursive_directory_iterator(plan(0).folder)) {
      if (entry.is_regular_file()) read_file(entry.path(), /*direct=*/false);
    }
  }

  // Drops the files, already on disk, from the page cache.
  void drop_from_cache() const {
    for (const auto& entry : fs::recursive_directory_iterator(case_.folder)) {
      if (entry.is_regular_file()) drop_from_page_cache(entry.path());
    }
  }

 private:
  CheckpointPlan plan(int rank) const {
    CheckpointPlan plan;
    plan.folder = case_.folder / "checkpoint-1";
    plan.config = &case_.config;
    plan.layout = &layout_;
    plan.state_tensors = kTensors;
    plan.export_options.save_dtype = case_.model_dtype;
    plan.rank = rank;
    plan.world_size = case_.num_ranks;
    return plan;
  }

  const CheckpointCase& case_;
  const ParameterLayout layout_;
  const State state_;
  const State loaded_;
  ThreadPool& pool_;
};

// Writes and loads one checkpoint and compares every bit, then measures. Three lines: write, from the first
// byte until the commit, against pwrite and fsync (dd conv=fsync), compared with direct writes (dd
// oflag=direct); load of files not in the page cache, against direct reads (dd iflag=direct), compared with
// reads through the cache (dd); load of files in the page cache, against reads of them (dd). Takes 24 bytes
// of memory per parameter.
std::vector<BenchLine> run_checkpoint_case(const CheckpointCase& c, const MeasureOptions& options,
                                           ThreadPool& pool) {
  create_folder(c.folder);
  CheckpointFiles files(c, pool);
  files.write();
  const int64_t bytes = files.bytes();
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  BenchLine common;
  common.benchmark = "checkpoint";
  common.shape = {{"mebibytes", bytes >> 20}, {"ranks", c.num_ranks}};
  common.dtype = dtype_name(c.model_dtype);
  common.implementation = "tessera";
  common.unit = "GB/s";
  common.amount = gigabytes;
  common.verification = files.verify();
  std::vector<BenchLine> lines;
  const auto measure = [&](const char* operation, const char* peak_name, const char* other_name,
                           std::vector<Participant> participants) {
    BenchLine line = common;
    line.operation = operation;
    line.peak_name = peak_name;
    if (participants.size() > 2) line.others.push_back({other_name, {}, {}});
    fill_statistics(measure_in_turn(participants, options), &line);
    lines.push_back(std::move(line));
  };
  const auto timed = [&](const std::function<void()>& before,
                         const std::function<void()>& body) -> Participant {
    return [=] {
      before();
      return gigabytes / seconds_of([&] { body(); });
    };
  };
  measure("write", "write and fsync", "direct writes",
          {timed([&] { files.remove_checkpoint(); }, [&] { files.write(); }),
           timed([] {}, [&] { files.write_plain(/*direct=*/false, bytes); }),
           timed([] {}, [&] { files.write_plain(/*direct=*/true, bytes); })});
  measure("load_from_disk", "direct reads", "reads through the cache",
          {timed([&] { files.drop_from_cache(); }, [&] { files.load(); }),
           timed([] {}, [&] { files.read_plain(/*direct=*/true); }),
           timed([&] { files.drop_from_cache(); }, [&] { files.read_plain(/*direct=*/false); })});
  measure("load_from_cache", "reads", "",
          {timed([&] { files.read_into_cache(); }, [&] { files.load(); }),
           timed([] {}, [&] { files.read_plain(/*direct=*/false); })});
  return lines;
}

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
    table->add_choice("dtype", &dtype_, kFileDTypeWords, "Type of the model's files.");
    declare_common_flags(table, /*seconds=*/1);
  }

  void run(FlagTable*) override {
    ThreadPool pool(threads_for_pool(num_threads()));
    CheckpointCase c;
    c.config = preset_config(preset_);
    if (c.config.vocab_size == 0) c.config.vocab_size = kDefaultVocabulary;
    c.model_dtype = dtype_;
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
  DType dtype_ = DType::kBF16;
  int64_t ranks_ = 1;
};

}  // namespace

std::unique_ptr<Command> make_bench_checkpoint_command() {
  return std::make_unique<BenchCheckpointCommand>();
}

}  // namespace tessera
