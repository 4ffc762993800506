#include "bench/kernels/tiles_bench.h"

#include <cmath>

#include "bench/kernels/verify.h"

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

}  // namespace

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

}  // namespace tessera
