// The training cases computed by PyTorch (test_paths.h), as runs of the program with their expected results.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// The `tessera train` arguments of the case, without --dtype and distribution flags; `rows_per_rank` x
// `accumulation` x number of ranks must equal the rows of a step.
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

// Reads metrics.jsonl in a run's output folder.
Losses read_losses(const std::filesystem::path& output);

// Losses, gradient norms, learning rates and final weights of a float32 run match PyTorch's.
void expect_float32_reference(const std::filesystem::path& folder, const std::filesystem::path& output);
// The losses of a bfloat16 run stay close to PyTorch's.
void expect_bfloat16_reference(const std::filesystem::path& folder, const std::filesystem::path& output);

}  // namespace tessera
