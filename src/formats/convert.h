// Element-wise conversion between the types a file holds and the types the program computes with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tensor/dtype.h"

namespace tessera {

// BF16, F16, F32 and F64 convert to each other; integers and BOOL convert to each other; every type to
// itself.
bool can_convert(DType from, DType to);

// Converts `count` elements. Floats are rounded once, to nearest, ties to even; what is too large becomes
// infinity. Integers keep their value: returns the index of the first one that `to` cannot hold (nothing is
// said about the elements behind it), nullopt when all fit. Both buffers are aligned for their type and do
// not overlap.
std::optional<int64_t> convert_elements(DType from, const std::byte* source, DType to, std::byte* destination,
                                        int64_t count);

// The value of an integer element as text, to be shown in a message.
std::string integer_element(DType dtype, const std::byte* source, int64_t index);

}  // namespace tessera
