// The values of a page, decoded one at a time, so that memory does not grow with what a page claims to hold.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/parquet/metadata.h"

namespace tessera::parquet {

// A value of a physical type: the bits of a number (INT32 with its sign extended) or the bytes of an array.
struct RawValue {
  uint64_t bits = 0;
  std::string_view bytes;
};

struct PhysicalColumn {
  PhysicalType type = PhysicalType::kBoolean;
  int64_t type_length = 0;  // of FIXED_LEN_BYTE_ARRAY
};

class ValueDecoder {
 public:
  virtual ~ValueDecoder() = default;
  // The next value; its bytes are valid until the next call. Throws Problem.
  virtual RawValue next() = 0;
};

// For the values section of a page, which must outlive the decoder, like the dictionary. Throws Problem if
// the encoding is unknown or not meant for this type, or if there must be a dictionary.
std::unique_ptr<ValueDecoder> make_decoder(Encoding encoding, const PhysicalColumn& column,
                                           std::string_view values, const std::vector<RawValue>* dictionary);

// The entries of a dictionary page, which must outlive them.
std::vector<RawValue> read_dictionary(const PhysicalColumn& column, std::string_view values, int64_t count);

}  // namespace tessera::parquet
