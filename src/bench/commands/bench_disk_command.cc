#include <filesystem>

#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/disk_bench.h"
#include "bench/scratch_folder.h"
#include "cli/run/threads.h"

namespace tessera {
namespace {

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
