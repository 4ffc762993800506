// Where and how a command writes a new model.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/choice.h"
#include "platform/thread_pool.h"
#include "tensor/dtype.h"
#include "weights/merge_models.h"

namespace tessera {

// Flags accept these words for the dtype of weights in files.
inline constexpr auto kFileDTypeWords = std::to_array<Word<DType>>({{"bfloat16", DType::kBF16},
                                                                    {"float16", DType::kF16},
                                                                    {"float32", DType::kF32},
                                                                    {"bf16", DType::kBF16},
                                                                    {"fp16", DType::kF16},
                                                                    {"fp32", DType::kF32}});

// The flags set these.
struct ModelOutput {
  std::string folder;  // or file
  bool overwrite = false;
  std::vector<std::string> adapters;  // to be added to the weights
  std::optional<DType> dtype;         // nullopt: that of the first model
  std::optional<int64_t> max_shard_bytes = 5'000'000'000;

  // Error(kUsage) if `output` exists, unless it is an empty folder or `overwrite` is set, and always if it is
  // one of `inputs` or of the adapters.
  void check(const std::vector<std::string>& inputs) const { check(folder, inputs); }
  void check(const std::string& output, const std::vector<std::string>& inputs) const;

  // merge_models(), shown on the terminal. Returns the type of the weights.
  DType write(const std::vector<std::string>& models, MergeOptions options) const;
};

}  // namespace tessera
