// Verified first, then measured in turn with the peak and with other implementations.
#pragma once

#include "bench/bench_line.h"
#include "devices/measure/measure_in_turn.h"
#include "platform/peak.h"
#include "platform/thread_pool.h"
#include "tensor/dtype.h"

namespace tessera {

// The common final part of every kernel benchmark: verifies each implementation with verify(name, kernels) ->
// Verification, then measures ours, the peak and the others in turn with run(kernels), and fills the line's
// implementation, verification and statistics. `line` must already have operation, shape, unit, amount and
// peak_name.
template <typename Kernels, typename Run, typename Verify>
void measure_against_peak(const std::string& what, const Implementation<Kernels>& ours,
                          const std::vector<Implementation<Kernels>>& others, const MeasureOptions& options,
                          const Run& run, const Verify& verify, const Participant& peak, BenchLine* line) {
  const auto turn = [&](const Kernels& kernels) {
    return speed_of([&] { run(kernels); }, line->amount, options.turn_seconds);
  };
  line->implementation = implementation_text(ours);
  line->verification = verify(fmt::format("{}, {}", what, line->implementation), ours.kernels);
  std::vector<Participant> participants = {[&] { return turn(ours.kernels); }, peak};
  for (const Implementation<Kernels>& other : others) {
    line->others.push_back({implementation_text(other), {}, {}});
    verify(fmt::format("{}, {}", what, line->others.back().implementation), other.kernels);
    participants.push_back([&] { return turn(other.kernels); });
  }
  fill_statistics(measure_in_turn(participants, options), line);
}

// The meter for the best instruction set that TESSERA_ISA allows, or else for the weakest one: bf16 products
// for BF16, otherwise float32. Error(kBadConfig) if the processor has none.
ComputePeakMeter make_peak_meter(ThreadPool& pool, DType dtype);

// measure_against_peak() with make_peak_meter()'s peak: also fills in dtype, unit and peak_name.
template <typename Kernels, typename Run, typename Verify>
void measure_arithmetic(const std::string& what, const Implementation<Kernels>& ours,
                        const std::vector<Implementation<Kernels>>& others, const MeasureOptions& options,
                        DType dtype, const Run& run, const Verify& verify, ThreadPool& pool,
                        BenchLine* line) {
  line->dtype = dtype_name(dtype);
  line->unit = "TFLOPS";
  ComputePeakMeter peak = make_peak_meter(pool, dtype);
  line->peak_name = peak.instruction_set();
  measure_against_peak(
      what, ours, others, options, run, verify, [&] { return peak.measure(options.turn_seconds); }, line);
}

}  // namespace tessera
