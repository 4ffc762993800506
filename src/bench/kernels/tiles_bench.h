// Speed of the tile unit depending on where its operands come from, against the peak with operands in
// registers.
#pragma once

#include "bench/bench_line.h"
#include "bench/measure.h"
#include "kernels/amx/tile_feed.h"

namespace tessera {

// Compares the loop's sums with float64, then measures feed and peak in turn.
BenchLine run_tiles_case(TileFeed feed, TileFeedMeter& meter, const MeasureOptions& options,
                         ComputePeakMeter& peak);

}  // namespace tessera
