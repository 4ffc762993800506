// The length of a run in steps and tokens, whatever it runs on.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

struct JobSize {
  int64_t num_steps = 1;
  double num_tokens = 0;
  int64_t max_row_tokens = 1024;   // of the longest row: decides the memory
  int64_t mean_row_tokens = 1024;  // decides the time
  std::string origin;              // "3 epochs of 12,345 rows"
};

}  // namespace tessera
