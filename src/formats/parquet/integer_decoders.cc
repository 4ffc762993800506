#include "formats/parquet/integer_decoders.h"

#include <algorithm>

#include "formats/parquet/problem.h"

namespace tessera::parquet {

uint64_t take_varint(std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (bytes->empty()) reject("the page ends early");
    const auto next = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    value |= uint64_t{next & 0x7fu} << shift;
    if ((next & 0x80) == 0) return value;
  }
  reject("an integer has more than 64 bits");
}

void RleDecoder::next_run() {
  if (bytes_.empty() && bit_width_ == 0) {
    repeated_left_ = INT32_MAX;
    return;
  }
  if (bytes_.empty()) reject("the page ends early: a run of values is missing");
  const uint64_t header = take_varint(&bytes_);
  const uint64_t count = header >> 1;
  if (count > INT32_MAX) reject("a run has {} values", count);
  if ((header & 1) == 0) {
    const size_t size = static_cast<size_t>(bit_width_ + 7) / 8;
    if (bytes_.size() < size) reject("the page ends early: a run has no value");
    repeated_value_ = 0;
    std::memcpy(&repeated_value_, bytes_.data(), size);
    bytes_.remove_prefix(size);
    repeated_left_ = static_cast<int64_t>(count);
    return;
  }
  // Writers may leave out the unused end of the last run.
  const size_t size = std::min(static_cast<size_t>(count) * static_cast<size_t>(bit_width_), bytes_.size());
  packed_ = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  packed_bit_ = 0;
  packed_left_ =
      bit_width_ == 0 ? static_cast<int64_t>(count) * 8 : static_cast<int64_t>(size) * 8 / bit_width_;
}

template <typename Out>
int64_t RleDecoder::read_some(Out* values, int64_t count) {
  while (repeated_left_ == 0 && packed_left_ == 0) next_run();
  if (repeated_left_ > 0) {
    count = std::min(count, repeated_left_);
    std::fill_n(values, count, static_cast<Out>(repeated_value_));
    repeated_left_ -= count;
    return count;
  }
  count = std::min(count, packed_left_);
  for (int64_t i = 0; i < count; ++i, packed_bit_ += static_cast<uint64_t>(bit_width_))
    values[i] = static_cast<Out>(read_bits(packed_, packed_bit_, bit_width_));
  packed_left_ -= count;
  return count;
}

template int64_t RleDecoder::read_some(uint8_t*, int64_t);
template int64_t RleDecoder::read_some(uint32_t*, int64_t);

void BitPackedDecoder::read(uint8_t* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t value = 0;
    for (int b = 0; b < bit_width_; ++b, ++bit_) {
      const size_t at = static_cast<size_t>(bit_ / 8);
      if (at >= bytes_.size()) reject("the page ends early: levels are missing");
      value = value << 1 | (static_cast<uint8_t>(bytes_[at]) >> (7 - bit_ % 8) & 1u);
    }
    values[i] = static_cast<uint8_t>(value);
  }
}

DeltaDecoder::DeltaDecoder(std::string_view bytes) : bytes_(bytes) {
  const uint64_t block_size = take_varint(&bytes_);
  const uint64_t miniblocks = take_varint(&bytes_);
  const uint64_t count = take_varint(&bytes_);
  const uint64_t first = take_varint(&bytes_);
  if (block_size == 0 || block_size > (1u << 24) || miniblocks == 0 || block_size % miniblocks != 0 ||
      block_size / miniblocks % 8 != 0 || count > INT32_MAX)
    reject("a DELTA_BINARY_PACKED header claims {} values in blocks of {} with {} miniblocks", count,
           block_size, miniblocks);
  num_values_ = left_ = static_cast<int64_t>(count);
  miniblocks_per_block_ = static_cast<int64_t>(miniblocks);
  values_per_miniblock_ = static_cast<int64_t>(block_size / miniblocks);
  value_ = (first >> 1) ^ (~(first & 1) + 1);
}

void DeltaDecoder::next_block() {
  const uint64_t min_delta = take_varint(&bytes_);
  min_delta_ = (min_delta >> 1) ^ (~(min_delta & 1) + 1);
  if (static_cast<int64_t>(bytes_.size()) < miniblocks_per_block_)
    reject("the page ends early: a block is cut");
  widths_ = bytes_.substr(0, static_cast<size_t>(miniblocks_per_block_));
  bytes_.remove_prefix(widths_.size());
}

void DeltaDecoder::next_miniblock() {
  if (widths_.empty()) next_block();
  width_ = static_cast<uint8_t>(widths_.front());
  widths_.remove_prefix(1);
  if (width_ > 64) reject("a miniblock has values of {} bits", width_);
  const size_t size = static_cast<size_t>(values_per_miniblock_) / 8 * static_cast<size_t>(width_);
  if (size > bytes_.size()) reject("the page ends early: a miniblock is cut");
  packed_ = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  packed_at_ = 0;
  packed_left_ = values_per_miniblock_;
}

int64_t DeltaDecoder::next() {
  if (left_ == 0) reject("the page ends early: expected more than {} values", num_values_);
  --left_;
  if (is_first_) {
    is_first_ = false;
    return static_cast<int64_t>(value_);
  }
  if (packed_left_ == 0) next_miniblock();
  value_ += min_delta_ +
            read_bits(packed_, static_cast<uint64_t>(packed_at_) * static_cast<uint64_t>(width_), width_);
  ++packed_at_;
  --packed_left_;
  return static_cast<int64_t>(value_);
}

std::string_view DeltaDecoder::rest() {
  while (left_ > 0) next();
  return bytes_;
}

}  // namespace tessera::parquet
