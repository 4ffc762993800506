// NVIDIA cards as metrics.
#pragma once

#include "platform/nvidia_cards.h"
#include "serve/metrics/exposition.h"

namespace tessera {

// Families of which no card has a value are left out.
void write_nvidia_metrics(const NvidiaCards& found, Exposition* out);

}  // namespace tessera
