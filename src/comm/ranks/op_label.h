// The purpose of a collective operation: used in messages and to detect ranks in different operations.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

// Allocates nothing: `what` is a string literal.
struct OpLabel {
  const char* what;    // "gradients"
  int64_t layer = -1;  // parameter group; -1 = none
};

// "gradients of group 12".
std::string to_string(const OpLabel& label);

}  // namespace tessera
