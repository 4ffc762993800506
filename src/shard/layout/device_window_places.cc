#include "shard/layout/device_window_places.h"

#include <algorithm>

#include "base/memory.h"
#include "io/async_file.h"

namespace tessera {

bool takes_layer_place(const ZeroLayout& layout, int64_t group) {
  const std::vector<Part>& groups = layout.groups;
  const int64_t last = std::ssize(groups) - 1;
  return group > 0 &&
         (group < last || layout.tied_embeddings || groups.back().size() < groups.front().size() / 2);
}

DeviceWindowPlaces device_window_places(std::vector<int64_t> weight_bytes, const ZeroLayout* trained) {
  DeviceWindowPlaces places;
  places.weights = layer_places(std::move(weight_bytes), /*layers_in_file=*/true);
  if (trained == nullptr) return places;
  const std::vector<Part>& groups = trained->groups;
  const int64_t alignment = kDirectAlignment;
  int64_t largest_layer = 0, largest_end = 0;
  for (int64_t g = 0; g < std::ssize(groups); ++g) {
    const int64_t size = groups[static_cast<size_t>(g)].size() * dtype_bytes(DType::kF32);
    places.gradients.sizes.push_back(size);
    int64_t& largest = takes_layer_place(*trained, g) ? largest_layer : largest_end;
    largest = std::max(largest, round_up(size, alignment));
  }
  for (int64_t g = 0; g < std::ssize(groups); ++g) {
    places.gradients.begin.push_back(takes_layer_place(*trained, g) ? largest_end + g % 2 * largest_layer
                                                                    : 0);
  }
  places.gradients.memory_bytes = largest_end + 2 * largest_layer;
  return places;
}

}  // namespace tessera
