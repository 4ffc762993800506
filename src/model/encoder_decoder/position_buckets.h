// T5's relative positions.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// The bucket of every distance, key's position minus query's, from -max_distance to max_distance, as
// T5Attention._relative_position_bucket of transformers computes it in float32; distances beyond have those
// of the ends. In both directions half of the buckets are for keys after the query; otherwise these share
// bucket 0.
std::vector<int32_t> position_buckets(int64_t num_buckets, int64_t max_distance, bool both_directions);

}  // namespace tessera
