// Where a rank that trains alone has weights when the decoder layers are in a file.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/layout/zero_memory.h"
#include "tensor/dtype.h"

namespace tessera {

// Layers in memory at once: the one in use, the next, which is being read, and the last, which is being
// written.
inline constexpr int64_t kLayerSlots = 3;
// Elements of layers in the file that are read or written outside of a pass at a time.
inline constexpr int64_t kStagedElements = int64_t{1} << 18;

// The places of parameter groups, in bytes.
struct LayerPlaces {
  std::vector<int64_t> sizes;       // by group, as are the next two
  std::vector<int64_t> begin;       // in memory
  std::vector<int64_t> file_begin;  // -1: not in the file
  int64_t memory_bytes = 0;
  int64_t file_bytes = 0;
};
// Without layers in a file, groups of these sizes lie back to back. Otherwise embedding and head have places
// of their own, and layers share kLayerSlots, in turn. All places, in memory and in the file, are then
// multiples of kDirectAlignment.
LayerPlaces layer_places(std::vector<int64_t> sizes, bool layers_in_file);

// The places of trained weights, in elements. Without layers in a file, the flat array; otherwise there is
// also a place for staged elements.
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
