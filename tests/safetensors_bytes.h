// For tests: valid and invalid safetensors files made from bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tessera {

// Header length, header as given, data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes.append(header).append(data);
}

}  // namespace tessera
