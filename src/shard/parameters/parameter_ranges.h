// What the forms of parameters have in common: which elements the optimizer updates, how the weights are
// read, and where state on a disk is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "formats/safetensors/safetensors.h"
#include "model/trainable_model.h"
#include "optim/optimizer_state.h"
#include "platform/thread_pool.h"
#include "shard/zero_memory.h"
#include "weights/model_folder.h"

namespace tessera {

// One range for every parameter.
std::vector<ParameterRange> parameter_ranges(const ParameterLayout& layout, bool decay_all);

// Index of the first of these ranges in every group, plus the end.
std::vector<int64_t> first_ranges(const ParameterLayout& layout, const std::vector<ParameterRange>& ranges);
// The same if there is one for every parameter.
std::vector<int64_t> first_ranges(const ParameterLayout& layout);

inline std::span<const std::byte> bytes_of(const ConstTensorView& tensor) {
  return {tensor.bytes(), static_cast<size_t>(tensor.size_bytes())};
}

// The file of a rank's state; none if it is in memory.
std::optional<StateFileSettings> state_file(const ZeroSettings& settings, int rank);

// Reads a model into the host's `weights` and the masters that `state` keeps beside them. Float32 values go
// through the optimizer and so reach the masters bit for bit; bfloat16 values are exact masters already.
void load_masters(const SafetensorsModel& file, const TrainableModel& model, TensorView weights,
                  OptimizerState& state, ThreadPool& pool,
                  const std::function<void(const LoadProgress&)>& progress);

}  // namespace tessera
