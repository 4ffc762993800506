// The part of a buffer that belongs to a member.
#pragma once

#include <cstdint>

namespace tessera {

// Elements [begin, end).
struct Part {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};

}  // namespace tessera
