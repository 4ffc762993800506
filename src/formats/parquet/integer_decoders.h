// Runs of integers as Parquet packs them
// (https://github.com/apache/parquet-format/blob/master/Encodings.md). Decoders keep a view of the page and
// throw Problem when it ends early.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tessera::parquet {

// Bits [bit, bit + width) of little-endian `bytes`, width <= 64; bits after the end are 0.
inline uint64_t read_bits(std::string_view bytes, uint64_t bit, int width) {
  if (width == 0) return 0;
  const size_t at = static_cast<size_t>(bit / 8);
  const int shift = static_cast<int>(bit % 8);
  uint64_t low = 0;
  uint64_t high = 0;
  if (at + 9 <= bytes.size()) [[likely]] {
    std::memcpy(&low, bytes.data() + at, 8);
    high = static_cast<uint8_t>(bytes[at + 8]);
  } else if (at < bytes.size()) {
    const size_t left = bytes.size() - at;
    std::memcpy(&low, bytes.data() + at, left < 8 ? left : 8);
  }
  uint64_t value = low >> shift;
  if (shift + width > 64) value |= high << (64 - shift);
  return width == 64 ? value : value & ((uint64_t{1} << width) - 1);
}

// Unsigned LEB128; removes it from `bytes`.
uint64_t take_varint(std::string_view* bytes);

// RLE / bit-packed hybrid: levels, dictionary indices, booleans.
class RleDecoder {
 public:
  RleDecoder() = default;
  // bit_width <= 32. Values of 0 bits need no runs.
  RleDecoder(std::string_view bytes, int bit_width) : bytes_(bytes), bit_width_(bit_width) {}

  // Fills values[0, count); Out holds bit_width bits.
  template <typename Out>
  void read(Out* values, int64_t count) {
    while (count > 0) {
      const int64_t part = read_some(values, count);
      values += part;
      count -= part;
    }
  }
  // Reads at least one value, and up to count of the current run; returns how many.
  template <typename Out>
  int64_t read_some(Out* values, int64_t count);

 private:
  void next_run();

  std::string_view bytes_;
  int bit_width_ = 0;
  int64_t repeated_left_ = 0;
  uint32_t repeated_value_ = 0;
  std::string_view packed_;
  uint64_t packed_bit_ = 0;
  int64_t packed_left_ = 0;
};

extern template int64_t RleDecoder::read_some(uint8_t*, int64_t);
extern template int64_t RleDecoder::read_some(uint32_t*, int64_t);

// The deprecated BIT_PACKED encoding of levels: from the most significant bit, without a header.
class BitPackedDecoder {
 public:
  BitPackedDecoder() = default;
  BitPackedDecoder(std::string_view bytes, int bit_width) : bytes_(bytes), bit_width_(bit_width) {}
  void read(uint8_t* values, int64_t count);

 private:
  std::string_view bytes_;
  int bit_width_ = 0;
  uint64_t bit_ = 0;
};

// DELTA_BINARY_PACKED: blocks of miniblocks of differences.
class DeltaDecoder {
 public:
  DeltaDecoder() = default;
  explicit DeltaDecoder(std::string_view bytes);

  int64_t num_values() const { return num_values_; }
  // Modulo 2^64.
  int64_t next();
  // Skips the values that are left and returns what follows them.
  std::string_view rest();

 private:
  void next_block();
  void next_miniblock();

  std::string_view bytes_;  // after the current miniblock
  int64_t num_values_ = 0;
  int64_t left_ = 0;
  int64_t miniblocks_per_block_ = 0;
  int64_t values_per_miniblock_ = 0;
  uint64_t value_ = 0;  // the next one, unless a miniblock must be opened for it
  bool is_first_ = true;
  uint64_t min_delta_ = 0;
  std::string_view widths_;  // of the miniblocks of this block that are left
  int width_ = 0;
  std::string_view packed_;
  int64_t packed_at_ = 0;
  int64_t packed_left_ = 0;
};

}  // namespace tessera::parquet
