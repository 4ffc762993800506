// Amounts as Kubernetes writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/value.h"

namespace tessera {

// In the largest unit of which it is a whole number, as the types of Kubernetes write it: "62", "3k" for
// 3000. A controller that updates an object rewrites its amounts in this form; any other would then differ
// from the manifest, and applying that again would be a change.
std::string count_quantity(int64_t count);
// Writes a number of bytes likewise: "474419Mi", "480Gi".
std::string bytes_quantity(int64_t bytes);

// "500m", "62", "485Gi" as a number; nullopt for anything else.
std::optional<double> quantity(const Value* value);

}  // namespace tessera
