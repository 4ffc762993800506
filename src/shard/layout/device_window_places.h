// Where a model on a device has weights and gradients of parameters on the host while they are in use.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/layout/weight_window.h"
#include "shard/layout/zero_memory.h"

namespace tessera {

// Places in device memory, in bytes. Embedding and head have places of their own, and layers share a few in
// turn: kLayerSlots of their weights, two of their gradients, which are written and copied alternately.
// Gradients of embedding and head share one; with tied embeddings the last group is the final norm, which
// takes a layer's.
struct DeviceWindowPlaces {
  LayerPlaces weights;
  LayerPlaces gradients;  // empty: none are computed

  int64_t memory_bytes() const { return weights.memory_bytes + gradients.memory_bytes; }
};

// `weight_bytes` by group; the gradients are float32 ones of `trained`, null for weights that are not.
DeviceWindowPlaces device_window_places(std::vector<int64_t> weight_bytes, const ZeroLayout* trained);

// Whether the gradients of this group take a layer's place rather than that of embedding and head: with tied
// embeddings the last group, the final norm or an encoder's head, is open together with the embedding.
bool takes_layer_place(const ZeroLayout& layout, int64_t group);

}  // namespace tessera
