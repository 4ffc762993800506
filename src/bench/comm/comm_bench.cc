#include "bench/comm/comm_bench.h"

#include "base/error.h"

namespace tessera {

namespace {

// Runs per second in a turn, after one uncounted run that wakes the ranks and refills their caches.
double turn(OtherProgram& side, const std::string& command) {
  constexpr double kTurnSeconds = 0.05;  // a few runs of the slowest side with the smallest buffer
  side.run(command);
  double seconds = 0;
  int64_t runs = 0;
  do {
    seconds += side.run(command);
    ++runs;
  } while (seconds < kTurnSeconds);
  return static_cast<double>(runs) / seconds;
}

}  // namespace

BenchLine run_node_sum_case(int num_ranks, int64_t buffer_bytes, OtherProgram& ours,
                            const std::vector<OtherProgram*>& others, const MeasureOptions& options,
                            BandwidthMeter& bandwidth) {
  const int64_t count = buffer_bytes / static_cast<int64_t>(sizeof(float));
  BenchLine line;
  line.benchmark = "comm";
  line.operation = "reduce_scatter_all_gather";
  line.shape = {{"ranks", num_ranks}, {"bytes", buffer_bytes}};
  line.dtype = "F32";
  line.implementation = ours.name();
  line.unit = "GB/s";
  line.peak_name = "memory bandwidth";
  line.amount = static_cast<double>((num_ranks + 1) * buffer_bytes) / 1e9;

  const std::string verify = fmt::format("verify {}", count), run = fmt::format("run {}", count);
  line.verification.num_checked = static_cast<int64_t>(ours.run(verify));
  std::vector<Participant> participants = {[&] { return line.amount * turn(ours, run); },
                                           [&] { return bandwidth.measure_best(options.turn_seconds); }};
  for (OtherProgram* other : others) {
    other->run(verify);
    line.others.push_back({other->name(), {}, {}});
    participants.push_back([&, other] { return line.amount * turn(*other, run); });
  }
  fill_statistics(measure_in_turn(participants, options), &line);
  return line;
}

}  // namespace tessera
