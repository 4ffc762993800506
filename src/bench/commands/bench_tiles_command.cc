#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/kernels/tiles_bench.h"
#include "cli/run/threads.h"

namespace tessera {
namespace {

class BenchTilesCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench tiles"; }
  std::string summary() const override { return "Measure what feeds the tile unit"; }
  std::string description() const override {
    return "The inner loop of a matrix product c = a b on AMX tiles, with its operands in L1, L2, L3 or "
           "memory: what limits matrix products on this machine. peak is the tile unit on operands in "
           "registers, measured in turn. a is reused at once, b is streamed, c is read and written once per "
           "512 products.";
  }

  void declare_flags(FlagTable* table) override { declare_common_flags(table, /*seconds=*/0.5); }

  void run(FlagTable*) override {
    ThreadPool pool(threads_for_products(num_threads()));
    TileFeedMeter meter(pool);
    ComputePeakMeter peak(pool, "amx_bf16");
    show_header(fmt::format("tiles, {}", count_of(pool.num_threads(), "thread")), "TFLOPS", "");
    for (const TileFeed feed : kTileFeeds) show(run_tiles_case(feed, meter, measure_options(), peak), pool);
  }
};

}  // namespace

std::unique_ptr<Command> make_bench_tiles_command() { return std::make_unique<BenchTilesCommand>(); }

}  // namespace tessera
