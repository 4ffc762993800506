// NVIDIA cards as metrics.
#pragma once

#include "monitor/metrics/exposition.h"
#include "platform/nvidia_cards.h"

namespace tessera {

// Leaves out families for which no card has a value.
void write_nvidia_metrics(const NvidiaCards& found, Exposition* out);

}  // namespace tessera
