// All kernels of the program, for `tessera doctor` and the start-up log.
#pragma once

#include <vector>

#include "kernels/dispatch.h"

namespace tessera {

// One report per kernel, in the order in which a training step first uses them. Throws Error(kBadConfig) if
// TESSERA_ISA cannot be honoured.
std::vector<KernelReport> kernel_reports();

}  // namespace tessera
