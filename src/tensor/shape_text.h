// Shapes as messages show them.
#pragma once

#include <fmt/ranges.h>

#include <cstdint>
#include <span>
#include <string>

namespace tessera {

// "[2, 3]"; "[]" for a scalar.
inline std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace tessera
