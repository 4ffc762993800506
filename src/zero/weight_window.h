// Where a rank that trains alone has its weights when the decoder layers are in a file.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/dtype.h"
#include "zero/zero_memory.h"

namespace tessera {

// Layers in memory at once: the one in use, the next, which is being read, and the last, which is being
// written.
inline constexpr int64_t kLayerSlots = 3;
// Elements of layers in the file that are read or written outside of a pass at a time.
inline constexpr int64_t kStagedElements = int64_t{1} << 18;

// Without layers in a file, the flat array. Otherwise embedding and head have places of their own, layers
// share kLayerSlots, in turn, and there is a place for staged elements. All places, in memory and in the
// file, are multiples of kDirectAlignment bytes.
struct WeightWindow {
  std::vector<int64_t> begin;  // by group, in elements
  int64_t staging_begin = 0;
  int64_t num_elements = 0;
  std::vector<int64_t> file_begin;  // by group, in bytes; -1: not in the file
  int64_t file_bytes = 0;
};
WeightWindow weight_window(const ZeroLayout& layout, DType dtype, bool layers_in_file);

inline constexpr int64_t layer_slot(int64_t group) { return (group - 1) % kLayerSlots; }

}  // namespace tessera
