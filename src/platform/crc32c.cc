#include "platform/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace tessera {

uint32_t crc32c(uint32_t crc, std::span<const std::byte> data) {
  constexpr size_t kMaxBlockBytes = size_t{1} << 30;  // ISA-L takes an int
  // ISA-L leaves the complements before and after to its caller.
  uint32_t state = ~crc;
  while (!data.empty()) {
    const auto block = data.first(std::min(data.size(), kMaxBlockBytes));
    // It only reads, though its parameter is not const.
    auto* bytes = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(block.data()));
    state = crc32_iscsi(bytes, static_cast<int>(block.size()), state);
    data = data.subspan(block.size());
  }
  return ~state;
}

}  // namespace tessera
