// Division of counts that rounds up.
#pragma once

#include <cstdint>

namespace tessera {

// The smallest number of parts of at most `by` that hold `value`; value >= 0, by > 0.
constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace tessera
