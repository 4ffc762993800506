#include "comm/ranks/op_label.h"

#include <fmt/format.h>

namespace tessera {

std::string to_string(const OpLabel& label) {
  return label.layer < 0 ? label.what : fmt::format("{} of group {}", label.what, label.layer);
}

}  // namespace tessera
