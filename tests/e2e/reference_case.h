// The training cases that PyTorch computed (test_paths.h), as runs of the program and what must come out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// `tessera train` of the case, without --dtype and what it is spread over; `rows_per_rank` and `accumulation`
// multiply with the number of ranks to the rows of a step.
std::vector<std::string> reference_arguments(const std::filesystem::path& folder, const std::string& output,
                                             int rows_per_rank, int accumulation);

struct ReferenceShape {
  int batch;
  int accumulation;
};
ReferenceShape reference_shape(const std::filesystem::path& folder);

struct Losses {
  std::vector<double> loss, grad_norm, learning_rate;
};

// From metrics.jsonl of a run's output folder.
Losses read_losses(const std::filesystem::path& output);

// Losses, gradient norms, learning rates and final weights of a float32 run are PyTorch's.
void expect_float32_reference(const std::filesystem::path& folder, const std::filesystem::path& output);
// The losses of a bfloat16 run stay close to it.
void expect_bfloat16_reference(const std::filesystem::path& folder, const std::filesystem::path& output);

}  // namespace tessera
