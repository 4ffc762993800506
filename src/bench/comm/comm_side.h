// One side of `tessera-bench comm`: ranks, as processes, that sum their float32 buffers so that every rank
// can read the whole sum. Each side is a separate program, driven by OtherProgram:
//
//   it starts      -> ready NAME
//   verify COUNT   -> the number of elements that all ranks compared, each exactly
//   run COUNT      -> seconds from the common start until the last rank has finished
//
// Includes no other header of Tessera: the MPI side is built separately.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>

namespace tessera {

// Small integers: every sum is exact in any order.
inline float comm_input(int rank, int64_t i) { return static_cast<float>((7 * i + 13 * rank) % 31 - 15); }
inline float comm_sum(int num_ranks, int64_t i) {
  float sum = 0;
  for (int rank = 0; rank < num_ranks; ++rank) sum += comm_input(rank, i);
  return sum;
}

// Number of wrong elements in `output`, the sum as this rank reads it.
inline int64_t count_comm_errors(const float* output, int64_t count, int num_ranks) {
  int64_t errors = 0;
  for (int64_t i = 0; i < count; ++i) errors += output[i] == comm_sum(num_ranks, i) ? 0 : 1;
  return errors;
}

// Rank 0 of a side: answers commands until its input ends. do_verify(count) returns the number of wrong
// elements over all ranks, do_run(count) the seconds.
inline void serve_comm_side(const std::string& name, int num_ranks,
                            const std::function<int64_t(int64_t count)>& do_verify,
                            const std::function<double(int64_t count)>& do_run) {
  std::cout << "ready " << name << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int64_t count = 0;
    words >> command >> count;
    if (command == "verify" && count > 0) {
      const int64_t errors = do_verify(count);
      if (errors == 0) {
        std::cout << num_ranks * count << std::endl;
      } else {
        std::cout << errors << " wrong elements" << std::endl;
      }
    } else if (command == "run" && count > 0) {
      std::cout << do_run(count) << std::endl;
    } else {
      std::cout << "expected 'verify COUNT' or 'run COUNT'" << std::endl;
    }
  }
}

}  // namespace tessera
