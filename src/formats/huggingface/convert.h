// Element-wise conversion between the types a file holds and the types the program computes with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tensor/dtype.h"

namespace tessera {

// BF16, F16, F32 and F64 convert to each other, integers and BOOL convert to each other, and every type
// converts to itself.
bool can_convert(DType from, DType to);

// Converts `count` elements. Floats are rounded once, to nearest, ties to even; values too large for `to`
// become infinity. Integers keep their value: returns the index of the first one that `to` cannot hold (the
// elements after it are unspecified), nullopt if all fit. Both buffers must be aligned for their type and
// must not overlap.
std::optional<int64_t> convert_elements(DType from, const std::byte* source, DType to, std::byte* destination,
                                        int64_t count);

// The value of an integer element as text, for messages.
std::string integer_element(DType dtype, const std::byte* source, int64_t index);

}  // namespace tessera
