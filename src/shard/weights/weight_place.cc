#include "shard/weights/weight_place.h"

#include "base/error.h"

namespace tessera {

void WeightPlace::reserve_packed_forms(std::span<const int64_t> /*bytes_by_group*/, PackShare /*share*/) {
  TESSERA_CHECK(false, "packed forms of weights that are not always in memory");
}

}  // namespace tessera
