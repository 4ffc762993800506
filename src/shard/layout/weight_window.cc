#include "shard/layout/weight_window.h"

#include <algorithm>
#include <utility>

#include "base/memory.h"
#include "io/async_file.h"

namespace tessera {

LayerPlaces layer_places(std::vector<int64_t> sizes, bool layers_in_file) {
  LayerPlaces places;
  places.sizes = std::move(sizes);
  const size_t num_groups = places.sizes.size();
  places.file_begin.assign(num_groups, -1);
  if (!layers_in_file) {
    for (const int64_t size : places.sizes) {
      places.begin.push_back(places.memory_bytes);
      places.memory_bytes += size;
    }
    return places;
  }
  const auto place = [](int64_t size) { return round_up(size, kDirectAlignment); };
  int64_t largest_layer = 0;
  for (size_t g = 1; g + 1 < num_groups; ++g) {
    largest_layer = std::max(largest_layer, place(places.sizes[g]));
    places.file_begin[g] = places.file_bytes;
    places.file_bytes += place(places.sizes[g]);
  }
  const int64_t num_slots = std::min(kLayerSlots, static_cast<int64_t>(num_groups) - 2);
  const int64_t first_slot = place(places.sizes.front());
  places.begin.push_back(0);
  for (size_t g = 1; g + 1 < num_groups; ++g) {
    places.begin.push_back(first_slot + layer_slot(static_cast<int64_t>(g)) * largest_layer);
  }
  places.begin.push_back(first_slot + num_slots * largest_layer);
  places.memory_bytes = places.begin.back() + place(places.sizes.back());
  return places;
}

WeightWindow weight_window(const ZeroLayout& layout, DType dtype, bool layers_in_file) {
  const int64_t size_of_element = dtype_bytes(dtype);
  std::vector<int64_t> sizes;
  for (const Part& group : layout.groups) sizes.push_back(group.size() * size_of_element);
  LayerPlaces places = layer_places(std::move(sizes), layers_in_file);
  WeightWindow window;
  for (const int64_t begin : places.begin) window.begin.push_back(begin / size_of_element);
  window.num_elements = places.memory_bytes / size_of_element;
  window.file_begin = std::move(places.file_begin);
  window.file_bytes = places.file_bytes;
  if (layers_in_file) {
    window.staging_begin = window.num_elements;
    window.num_elements += kStagedElements;
  }
  return window;
}

}  // namespace tessera
