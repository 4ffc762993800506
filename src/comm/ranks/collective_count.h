// Time and bytes of a rank's collective operations so far, for metrics.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// Calls of one kind of operation.
struct CollectiveCount {
  std::string_view operation;  // "all_gather"
  int64_t num_calls = 0;
  int64_t bytes = 0;  // of the whole buffer that the operation is about, summed over the calls
  double time_s = 0;
};

}  // namespace tessera
