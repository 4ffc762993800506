// Whether a kernel replaces what its output holds or adds to it.
#pragma once

namespace tessera {

enum class Update { kOverwrite, kAdd };

}  // namespace tessera
