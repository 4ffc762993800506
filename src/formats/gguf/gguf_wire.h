// The numbers that reader and writer of GGUF share.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr uint32_t kGgufVersion = 3;
inline constexpr uint32_t kGgufArrayType = 9;
inline constexpr int64_t kGgufAlignment =
    32;  // of tensors, unless the field general.alignment says otherwise

inline int64_t gguf_aligned(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace tessera
