#include "tensor/arena.h"

#include <algorithm>

#include "base/memory.h"

namespace tessera {

std::byte* Arena::allocate_bytes(int64_t size_bytes) {
  TESSERA_CHECK(size_bytes >= 0, "size_bytes={}", size_bytes);
  const int64_t begin = used_bytes_;
  used_bytes_ += round_up(size_bytes, kCacheLineBytes);
  high_water_bytes_ = std::max(high_water_bytes_, used_bytes_);
  if (measuring_) return nullptr;
  TESSERA_CHECK(used_bytes_ <= size_bytes_, "arena of {} bytes, {} asked on top of {}", size_bytes_,
                size_bytes, begin);
  return address_ + begin;
}

}  // namespace tessera
