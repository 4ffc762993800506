// Speed of what `offload_dir` is used for, against fio on the same disk.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/bench_line.h"
#include "bench/commands/bench_command.h"
#include "bench/measure.h"
#include "bench/surroundings.h"
#include "cli/threads.h"
#include "io/async_file.h"
#include "optim/elementwise.h"
#include "optim/optimizer_state.h"
#include "platform/thread_pool.h"

namespace tessera {
namespace {

struct DiskCase {
  std::filesystem::path folder;  // for two scratch files of size_bytes at a time
  int64_t size_bytes = 0;
  AsyncFileSettings transfers;
};

constexpr int64_t kMemoryBytes = int64_t{64} << 20;  // through which files are read and written
constexpr int64_t kPlainBlockBytes = int64_t{4} << 20;
constexpr int64_t kNumVerified = int64_t{1} << 22;
constexpr StateTensors kStateOnDisk = AdamW::kStateTensors;

// Parameters whose state is in a file, or in memory.
class StateUpdate {
 public:
  StateUpdate(int64_t num_elements, const std::optional<StateFileSettings>& file, ThreadPool& pool)
      : weights_(num_elements * dtype_bytes(DType::kBF16)),
        gradients_(num_elements * dtype_bytes(DType::kF32)),
        state_(std::make_unique<AdamW>(OptimizerSpec()), {{0, num_elements, true}},
               TensorView(weights_.data(), DType::kBF16, {num_elements}),
               ConstTensorView(gradients_.data(), DType::kF32, {num_elements}), pool, {}, file) {
    const CounterRng rng(1, 0);
    pool.parallel_blocks(num_elements, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        gradients_.as<float>()[static_cast<size_t>(i)] = rng.normal(static_cast<uint64_t>(i));
    });
  }

  void take_step() { state_.update({++step_, 1e-3}); }
  const PageBuffer& weights() const { return weights_; }
  AsyncFileStatistics statistics() const { return state_.file_statistics(); }

 private:
  PageBuffer weights_, gradients_;
  OptimizerState state_;
  int64_t step_ = 0;
};

int64_t bytes_moved(const AsyncFileStatistics& statistics) {
  return statistics.bytes_read + statistics.bytes_written;
}

Verification verify(const StateFileSettings& settings, int64_t num_elements, ThreadPool& pool) {
  StateUpdate on_disk(num_elements, settings, pool), in_memory(num_elements, {}, pool);
  for (int step = 0; step < 3; ++step) {
    on_disk.take_step();
    in_memory.take_step();
  }
  const PageBuffer &found = on_disk.weights(), &expected = in_memory.weights();
  TESSERA_CHECK(std::memcmp(found.data(), expected.data(), static_cast<size_t>(expected.size_bytes())) == 0,
                "an update on the disk differs from one in memory");
  return {num_elements, 0};
}

// Moves a whole file, block by block, with as many in flight as kMemoryBytes has.
class WholeFile {
 public:
  WholeFile(const std::filesystem::path& path, int64_t size_bytes, const AsyncFileSettings& settings)
      : block_bytes_(settings.block_bytes),
        memory_(round_up(kMemoryBytes, settings.block_bytes)),
        tickets_(static_cast<size_t>(memory_.size_bytes() / block_bytes_)),
        file_(path, size_bytes, settings) {
    // Disks may treat zeros in a way of their own.
    const CounterRng rng(2, 0);
    uint64_t i = 0;
    for (float& value : memory_.as<float>()) value = rng.uniform(i++);
    move(/*reads=*/false);  // blocks that have never been written are read without the disk
  }

  void move(bool reads) {
    size_t slot = 0;
    std::ranges::fill(tickets_, std::nullopt);
    for (int64_t at = 0; at < file_.size_bytes(); at += block_bytes_, slot = (slot + 1) % tickets_.size()) {
      if (tickets_[slot]) file_.wait(*tickets_[slot]);
      const std::span<std::byte> block(memory_.data() + static_cast<int64_t>(slot) * block_bytes_,
                                       static_cast<size_t>(std::min(block_bytes_, file_.size_bytes() - at)));
      tickets_[slot] = reads ? file_.read(at, block) : file_.write(at, block);
    }
    file_.wait_all();
  }

  std::string description() const {
    return fmt::format("{}{}", file_.uses_io_uring() ? "io_uring" : "threads",
                       file_.is_direct() ? "" : ", page cache");
  }

 private:
  int64_t block_bytes_;
  PageBuffer memory_;
  std::vector<std::optional<AsyncFile::Ticket>> tickets_;
  AsyncFile file_;
};

// The rate in GB/s of fio, or of one thread with direct reads and writes.
class Peak {
 public:
  explicit Peak(const DiskCase& c) : case_(c) {
    try {
      run_shell("fio --version");
    } catch (const Error&) {
      plain_.emplace(
          c.folder / "plain", c.size_bytes,
          AsyncFileSettings{.queue_depth = 1, .block_bytes = kPlainBlockBytes, .use_io_uring = false});
    }
  }
  ~Peak() {
    std::error_code ignored;
    std::filesystem::remove(fio_file(), ignored);
  }
  Peak(const Peak&) = delete;
  Peak& operator=(const Peak&) = delete;

  const char* name() const { return plain_ ? "one thread" : "fio"; }

  double read() { return plain_ ? plain_speed(true, false) : fio("read"); }
  double write() { return plain_ ? plain_speed(false, true) : fio("write"); }
  double both() { return plain_ ? plain_speed(true, true) : fio("rw"); }

 private:
  std::filesystem::path fio_file() const { return case_.folder / "fio"; }

  double plain_speed(bool reads, bool writes) {
    const double gigabytes = static_cast<double>(case_.size_bytes) * 1e-9 * (reads && writes ? 2 : 1);
    return gigabytes / seconds_of([&] {
             if (reads) plain_->move(true);
             if (writes) plain_->move(false);
           });
  }

  double fio(const char* kind) const {
    const std::string output = run_shell(fmt::format(
        "fio --name=disk --filename={} --size={} --rw={} --bs={} --iodepth={} --ioengine=io_uring --direct=1 "
        "--output-format=json",
        shell_quoted(fio_file().native()), case_.size_bytes, kind, case_.transfers.block_bytes,
        case_.transfers.queue_depth));
    const size_t begin = output.find('{');  // after warnings
    const nlohmann::json report = nlohmann::json::parse(output.substr(std::min(begin, output.size())),
                                                        nullptr, /*allow_exceptions=*/false);
    try {
      const nlohmann::json& job = report.at("jobs").at(0);
      return 1e-9 *
             (job.at("read").at("bw_bytes").get<double>() + job.at("write").at("bw_bytes").get<double>());
    } catch (const nlohmann::json::exception&) {
      fail(ExitCode::kIoError, "bench disk: fio's report has no bandwidth: {}",
           printable(output.substr(0, 300)));
    }
  }

  const DiskCase& case_;
  std::optional<WholeFile> plain_;
};

// Three lines, in GB/s of all bytes moved: read and write of a whole file front to back, and update: AdamW
// with BF16 weights whose state fills the file, against half reads, half writes. Peak is fio with direct I/O,
// the same block size and queue depth or, where it is not installed, direct reads and writes of one thread.
// First an update on the disk is compared bit by bit with one in memory, which takes 1.6 times size_bytes of
// memory for at most 2^22 elements.
std::vector<BenchLine> run_disk_case(const DiskCase& c, const MeasureOptions& options, ThreadPool& pool) {
  const StateFileSettings settings = {c.folder / "state", c.transfers};
  const int64_t element_bytes =
      state_on_disk(kStateOnDisk, DType::kBF16, ValueCounts(1 << 20), kMinChunksAhead).file_bytes >> 20;
  const int64_t num_elements = std::max<int64_t>(c.size_bytes / element_bytes, 1);
  Peak peak(c);
  BenchLine common;
  common.benchmark = "disk";
  common.shape = {{"mebibytes", c.size_bytes >> 20}};
  common.dtype = "U8";
  common.unit = "GB/s";
  common.peak_name = peak.name();
  common.verification = verify(settings, std::min(num_elements, kNumVerified), pool);
  std::vector<BenchLine> lines;
  const auto measure = [&](const char* operation, double gigabytes, const std::function<void()>& body,
                           const Participant& other) {
    BenchLine line = common;
    line.operation = operation;
    line.amount = gigabytes;
    const Participant ours = [&] { return gigabytes / seconds_of([&] { body(); }); };
    fill_statistics(measure_in_turn(std::vector<Participant>{ours, other}, options), &line);
    lines.push_back(std::move(line));
  };
  {
    WholeFile file(settings.path, c.size_bytes, c.transfers);
    common.implementation = file.description();
    const double gigabytes = static_cast<double>(c.size_bytes) * 1e-9;
    measure(
        "read", gigabytes, [&] { file.move(true); }, [&] { return peak.read(); });
    measure(
        "write", gigabytes, [&] { file.move(false); }, [&] { return peak.write(); });
  }
  StateUpdate update(num_elements, settings, pool);
  update.take_step();
  const int64_t before = bytes_moved(update.statistics());
  update.take_step();
  const double gigabytes = static_cast<double>(bytes_moved(update.statistics()) - before) * 1e-9;
  measure(
      "update", gigabytes, [&] { update.take_step(); }, [&] { return peak.both(); });
  return lines;
}

class BenchDiskCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench disk"; }
  std::string summary() const override { return "Measure a disk as offload_dir"; }
  std::string description() const override {
    return "Measures what offload_optimizer_device nvme does with a folder's disk. read and write: a file "
           "from "
           "front to back, through io_uring and direct I/O as far as the system allows; update: AdamW with "
           "its "
           "state on the disk, all bytes read and written; first compared bit by bit with one in memory. "
           "Peak is "
           "fio with the same block size and queue depth, in turn, or, where fio is not installed, one "
           "thread "
           "with direct reads and writes.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench disk --folder /data/offload --size_mb 4000"};
  }

  void declare_flags(FlagTable* table) override {
    table->add("folder", &folder_, "Folder on the disk; a temporary subfolder is created there and removed.")
        .value_name = "DIR";
    limit_flag(table->add("size_mb", &size_mb_,
                          "Size of a file in MB; twice that is needed on the disk, 0.6 of it in memory."),
               16, 1e7);
    limit_flag(table->add("aio_block_size", &block_bytes_, "Bytes of a transfer, a multiple of 4096."),
               kDirectAlignment, 1 << 30);
    limit_flag(table->add("aio_queue_depth", &queue_depth_, "Transfers in flight."), 1, 4096);
    declare_common_flags(table, /*seconds=*/1);
  }

  void run(FlagTable*) override {
    if (block_bytes_ % kDirectAlignment != 0) {
      fail(ExitCode::kUsage, "--aio_block_size: expected a multiple of {}, found {}", kDirectAlignment,
           block_bytes_);
    }
    ThreadPool pool(threads_for_pool(num_threads()));
    const ScratchFolder scratch(folder_);
    DiskCase c;
    c.folder = scratch.path();
    c.size_bytes = size_mb_ * 1'000'000 / kDirectAlignment * kDirectAlignment;
    c.transfers = {.queue_depth = queue_depth_, .block_bytes = block_bytes_};
    show_header(fmt::format("disk {}, {}", folder_, count_of(pool.num_threads(), "thread")), "GB/s", "");
    for (const BenchLine& line : run_disk_case(c, measure_options(), pool)) show(line, pool);
  }

 private:
  std::string folder_ = ".";
  int64_t size_mb_ = 1000;
  int64_t block_bytes_ = int64_t{1} << 20;
  int64_t queue_depth_ = 32;
};

}  // namespace

std::unique_ptr<Command> make_bench_disk_command() { return std::make_unique<BenchDiskCommand>(); }

}  // namespace tessera
