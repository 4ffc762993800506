// The forms in which matrices that do not change are kept (kernels/quantized_weight/quantized_form.h).
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

enum class Quantization : uint8_t { kNone, kInt8, kNf4, kNf4Double };

constexpr std::string_view quantization_name(Quantization kind) {
  switch (kind) {
    case Quantization::kNone:
      return "none";
    case Quantization::kInt8:
      return "int8";
    case Quantization::kNf4:
      return "nf4";
    case Quantization::kNf4Double:
      return "nf4, scales in 8 bits";
  }
  return "";
}

}  // namespace tessera
