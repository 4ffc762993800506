// NVIDIA cards as metrics.
#pragma once

#include "monitor/metrics/exposition.h"
#include "platform/nvidia_cards.h"

namespace tessera {

// Families of which no card has a value are left out.
void write_nvidia_metrics(const NvidiaCards& found, Exposition* out);

}  // namespace tessera
