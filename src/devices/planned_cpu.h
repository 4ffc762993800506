// Operations of a processor that this machine need not have, for plans of a run on it: only their sizes are
// used.
#pragma once

#include "devices/make_ops.h"

namespace tessera {

// has_amx: products take weights in packed forms. Workspaces are those of this processor.
OpsFactory planned_cpu_ops(bool has_amx);

}  // namespace tessera
