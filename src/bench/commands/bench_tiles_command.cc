// Speed of the tile unit depending on where its operands come from, against the peak with operands in
// registers.
#include <cmath>

#include "base/text.h"
#include "bench/bench_line.h"
#include "bench/commands/bench_command.h"
#include "bench/kernels/verify.h"
#include "bench/measure.h"
#include "cli/threads.h"
#include "kernels/amx/tile_feed.h"

namespace tessera {
namespace {

Verification verify_sample(const TileFeedMeter::Sample& sample) {
  constexpr size_t kWidth = 32, kDepth = 512;
  Verification result;
  Verifier verifier("tiles 32x32x512", result);
  for (size_t i = 0; i < kWidth; ++i) {
    for (size_t j = 0; j < kWidth; ++j) {
      double expected = 0, magnitude = 0;
      for (size_t k = 0; k < kDepth; ++k) {
        const double term = static_cast<double>(sample.a[i * kDepth + k]) * sample.b[k * kWidth + j];
        expected += term;
        magnitude += std::abs(term);
      }
      verifier.compare("sums", static_cast<int64_t>(i), static_cast<int64_t>(j), sample.sums[i * kWidth + j],
                       expected, (kDepth + 2) * kFloatEps * magnitude);
    }
  }
  return result;
}

// Compares the loop's sums with float64, then measures feed and peak in turn.
BenchLine run_tiles_case(TileFeed feed, TileFeedMeter& meter, const MeasureOptions& options,
                         ComputePeakMeter& peak) {
  BenchLine line;
  line.benchmark = "tiles";
  line.operation = tile_feed_text(feed);
  line.dtype = dtype_name(DType::kBF16);
  line.implementation = "amx (amx_bf16)";
  line.unit = "TFLOPS";
  line.peak_name = peak.instruction_set();
  line.verification = verify_sample(meter.sample());
  const Participant participants[] = {[&] { return meter.measure(feed, options.turn_seconds); },
                                      [&] { return peak.measure(options.turn_seconds); }};
  fill_statistics(measure_in_turn(participants, options), &line);
  return line;
}

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
