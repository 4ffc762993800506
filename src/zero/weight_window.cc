#include "zero/weight_window.h"

#include <algorithm>

#include "base/memory.h"
#include "io/async_file.h"

namespace tessera {

WeightWindow weight_window(const ZeroLayout& layout, DType dtype, bool layers_in_file) {
  WeightWindow window;
  const auto num_groups = layout.groups.size();
  window.file_begin.assign(num_groups, -1);
  if (!layers_in_file) {
    for (const Part& group : layout.groups) window.begin.push_back(group.begin);
    window.num_elements = layout.num_elements();
    return window;
  }
  const int64_t alignment = kDirectAlignment / dtype_bytes(dtype);
  const auto place = [&](const Part& group) { return round_up(group.size(), alignment); };
  int64_t largest_layer = 0;
  for (size_t g = 1; g + 1 < num_groups; ++g) {
    largest_layer = std::max(largest_layer, place(layout.groups[g]));
    window.file_begin[g] = window.file_bytes;
    window.file_bytes += place(layout.groups[g]) * dtype_bytes(dtype);
  }
  const int64_t num_slots = std::min(kLayerSlots, static_cast<int64_t>(num_groups) - 2);
  const int64_t first_slot = place(layout.groups.front());
  window.begin.push_back(0);
  for (size_t g = 1; g + 1 < num_groups; ++g) {
    window.begin.push_back(first_slot + layer_slot(static_cast<int64_t>(g)) * largest_layer);
  }
  window.begin.push_back(first_slot + num_slots * largest_layer);
  window.staging_begin = window.begin.back() + place(layout.groups.back());
  window.num_elements = window.staging_begin + kStagedElements;
  return window;
}

}  // namespace tessera
