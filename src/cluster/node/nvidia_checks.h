// Checks of NVIDIA cards; none where there is none and none has to be.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/check.h"
#include "platform/nvidia_cards.h"

namespace tessera {

// gpu: the driver and every card answer, at least `num_wanted` of them. gpu_throttling: heat or the power
// supply held a card's clocks down `before` and `after` a moment in which something else was done, since a
// single reading may catch a change of clocks. gpu_memory_errors: uncorrected ones. gpu_link: advice if a
// card has fewer PCIe lanes than it could, or, while it is busy, a lower generation.
std::vector<Check> check_nvidia_cards(const NvidiaCards& before, const NvidiaCards& after,
                                      int64_t num_wanted = 0);

}  // namespace tessera
