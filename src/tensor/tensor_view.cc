#include "tensor/tensor_view.h"

#include <fmt/ranges.h>

namespace tessera {

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

}  // namespace tessera
