// Measuring in turn: peak, kernel, other kernel, peak, kernel, other kernel, ... in one process. Neighbours,
// power and heat change every speed on a shared machine by tens of percent within a second; the ratio of two
// speeds from the same round varies little.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/function_ref.h"

namespace tessera {

// The length of a measurement.
struct MeasureOptions {
  double seconds = 0.5;    // rounds continue until this has passed ...
  int64_t min_rounds = 7;  // ... and this many are done
  // Short compared with how fast a shared machine changes, long compared with reading the clock.
  double turn_seconds = 0.01;
  // Operands that a step finds in memory rather than in a cache (weights, long arrays) rotate through copies
  // of at least this total size: far beyond L2, and a step touches more before it reuses any.
  int64_t cold_bytes = int64_t{256} << 20;
};

// Takes one turn and returns its speed.
using Participant = std::function<double()>;

// speeds[participant][round]. A first round, in which kernels are compiled and pages are touched, is not
// counted.
std::vector<std::vector<double>> measure_in_turn(std::span<const Participant> participants,
                                                 const MeasureOptions& options);

// Wall-clock time of one call.
double seconds_of(FunctionRef<void()> body);

// A turn of at least one call of `body` and about turn_seconds: `amount` per call, per second.
double speed_of(FunctionRef<void()> body, double amount, double turn_seconds);

}  // namespace tessera
