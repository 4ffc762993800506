#include "devices/measure/measure_in_turn.h"

#include "base/clock.h"

namespace tessera {

std::vector<std::vector<double>> measure_in_turn(std::span<const Participant> participants,
                                                 const MeasureOptions& options) {
  for (const Participant& participant : participants) participant();
  std::vector<std::vector<double>> speeds(participants.size());
  const Stopwatch stopwatch;
  for (int64_t round = 0; round < options.min_rounds || stopwatch.seconds() < options.seconds; ++round) {
    for (size_t i = 0; i < participants.size(); ++i) speeds[i].push_back(participants[i]());
  }
  return speeds;
}

double seconds_of(FunctionRef<void()> body) {
  const Stopwatch stopwatch;
  body();
  return stopwatch.seconds();
}

double speed_of(FunctionRef<void()> body, double amount, double turn_seconds) {
  const Stopwatch stopwatch;
  double elapsed = 0;
  double calls = 0;
  do {
    body();
    ++calls;
    elapsed = stopwatch.seconds();
  } while (elapsed < turn_seconds);
  return calls * amount / elapsed;
}

}  // namespace tessera
