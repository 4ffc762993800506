#include "support/parquet_bytes.h"

#include <snappy.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace tessera {
namespace {

constexpr int kSnappy = 1;

std::string encode_varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes += static_cast<char>(value);
}

uint64_t zigzag(int64_t value) {
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}

// From the least significant bit on.
std::string pack_bits(const std::vector<uint64_t>& values, int bit_width) {
  std::string bytes((values.size() * static_cast<size_t>(bit_width) + 7) / 8, '\0');
  size_t at = 0;
  for (const uint64_t value : values) {
    for (int bit = 0; bit < bit_width; ++bit, ++at) {
      if ((value >> bit & 1) != 0) bytes[at / 8] = static_cast<char>(bytes[at / 8] | 1 << at % 8);
    }
  }
  return bytes;
}

}  // namespace

void ThriftWriter::header(int id, int type) {
  int& last = last_ids_.back();
  if (id > last && id - last < 16) {
    bytes_ += static_cast<char>((id - last) << 4 | type);
  } else {
    bytes_ += static_cast<char>(type);
    bytes_ += encode_varint(zigzag(id));
  }
  last = id;
}

void ThriftWriter::integer(int id, int64_t value) {
  header(id, 6);
  bytes_ += encode_varint(zigzag(value));
}

void ThriftWriter::boolean(int id, bool value) { header(id, value ? 1 : 2); }

void ThriftWriter::text(int id, std::string_view value) {
  header(id, 8);
  bytes_ += encode_varint(value.size());
  bytes_ += value;
}

void ThriftWriter::begin_struct(int id) {
  header(id, 12);
  last_ids_.push_back(0);
}

void ThriftWriter::begin_list_of_structs(int id, size_t count) {
  header(id, 9);
  if (count < 15) {
    bytes_ += static_cast<char>(count << 4 | 12);
  } else {
    bytes_ += static_cast<char>(0xfc);
    bytes_ += encode_varint(count);
  }
}

void ThriftWriter::end_struct() {
  bytes_ += '\0';
  last_ids_.pop_back();
}

std::string ThriftWriter::finish() {
  end_struct();
  return bytes_;
}

std::string encode_fixed(uint64_t bits, int num_bytes) {
  std::string bytes;
  for (int i = 0; i < num_bytes; ++i) bytes += static_cast<char>(bits >> (8 * i));
  return bytes;
}

std::string encode_byte_array(std::string_view value) { return encode_fixed(value.size(), 4).append(value); }

std::string encode_rle(const std::vector<uint32_t>& values, int bit_width) {
  std::string bytes;
  for (size_t at = 0; at < values.size();) {
    size_t end = at;
    while (end < values.size() && values[end] == values[at]) ++end;
    if (end - at >= 8) {
      bytes += encode_varint((end - at) << 1);
      bytes += encode_fixed(values[at], (bit_width + 7) / 8);
    } else {
      // A group of 8, padded at the end of the values.
      end = std::min(at + 8, values.size());
      std::vector<uint64_t> group(values.begin() + static_cast<ptrdiff_t>(at),
                                  values.begin() + static_cast<ptrdiff_t>(end));
      group.resize(8);
      bytes += encode_varint(1 << 1 | 1);
      bytes += pack_bits(group, bit_width);
    }
    at = end;
  }
  return bytes;
}

std::string encode_bit_packed_levels(const std::vector<uint32_t>& levels, int bit_width) {
  std::string bytes((levels.size() * static_cast<size_t>(bit_width) + 7) / 8, '\0');
  size_t at = 0;
  for (const uint32_t level : levels) {
    for (int bit = bit_width - 1; bit >= 0; --bit, ++at) {
      if ((level >> bit & 1) != 0) bytes[at / 8] = static_cast<char>(bytes[at / 8] | 0x80 >> at % 8);
    }
  }
  return bytes;
}

std::string encode_delta(const std::vector<int64_t>& values, int block_size, int miniblocks) {
  std::string bytes = encode_varint(static_cast<uint64_t>(block_size)) +
                      encode_varint(static_cast<uint64_t>(miniblocks)) + encode_varint(values.size()) +
                      encode_varint(zigzag(values.empty() ? 0 : values[0]));
  const auto per_miniblock = static_cast<size_t>(block_size / miniblocks);
  for (size_t block = 1; block < values.size(); block += static_cast<size_t>(block_size)) {
    const size_t block_end = std::min(values.size(), block + static_cast<size_t>(block_size));
    std::vector<uint64_t> deltas;
    for (size_t i = block; i < block_end; ++i)
      deltas.push_back(static_cast<uint64_t>(values[i]) - static_cast<uint64_t>(values[i - 1]));
    const uint64_t least = *std::min_element(deltas.begin(), deltas.end(), [](uint64_t a, uint64_t b) {
      return static_cast<int64_t>(a) < static_cast<int64_t>(b);
    });
    bytes += encode_varint(zigzag(static_cast<int64_t>(least)));
    std::string widths;
    std::string packed;
    for (int mini = 0; mini < miniblocks; ++mini) {
      std::vector<uint64_t> group;
      for (size_t i = static_cast<size_t>(mini) * per_miniblock;
           i < std::min(deltas.size(), static_cast<size_t>(mini + 1) * per_miniblock); ++i)
        group.push_back(deltas[i] - least);
      int width = 0;
      for (const uint64_t delta : group) width = std::max(width, static_cast<int>(std::bit_width(delta)));
      widths += static_cast<char>(width);
      if (group.empty()) continue;
      group.resize(per_miniblock);
      packed += pack_bits(group, width);
    }
    bytes += widths + packed;
  }
  return bytes;
}

std::string encode_delta_lengths(const std::vector<std::string>& values) {
  std::vector<int64_t> lengths;
  std::string all;
  for (const std::string& value : values) {
    lengths.push_back(std::ssize(value));
    all += value;
  }
  return encode_delta(lengths) + all;
}

std::string encode_delta_bytes(const std::vector<std::string>& values) {
  std::vector<int64_t> prefixes;
  std::vector<std::string> suffixes;
  std::string_view last;
  for (const std::string& value : values) {
    const auto shared = static_cast<size_t>(
        std::mismatch(value.begin(), value.end(), last.begin(), last.end()).first - value.begin());
    prefixes.push_back(static_cast<int64_t>(shared));
    suffixes.push_back(value.substr(shared));
    last = value;
  }
  return encode_delta(prefixes) + encode_delta_lengths(suffixes);
}

std::string encode_byte_stream_split(const std::vector<uint64_t>& values, int num_bytes) {
  std::string bytes;
  for (int byte = 0; byte < num_bytes; ++byte) {
    for (const uint64_t value : values) bytes += static_cast<char>(value >> (8 * byte));
  }
  return bytes;
}

void ParquetBytes::add_group(std::string_view name, parquet::Repetition repetition, int num_children,
                             int converted_type) {
  parquet::SchemaElement element;
  element.name = name;
  element.repetition = repetition;
  element.num_children = num_children;
  schema_.emplace_back(std::move(element), converted_type);
}

void ParquetBytes::add_leaf(std::string_view name, parquet::Repetition repetition, parquet::PhysicalType type,
                            int converted_type, int type_length, int scale) {
  parquet::SchemaElement element;
  element.name = name;
  element.repetition = repetition;
  element.type = type;
  element.type_length = type_length;
  element.scale = scale;
  schema_.emplace_back(std::move(element), converted_type);
}

void ParquetBytes::start_row_group(int64_t num_rows) { groups_.push_back({num_rows, {}}); }

void ParquetBytes::start_column(parquet::PhysicalType type, int64_t num_values, int codec) {
  groups_.back().chunks.push_back({type, codec, num_values, std::ssize(bytes_), 0});
}

void ParquetBytes::add_bytes(std::string_view bytes) {
  bytes_ += bytes;
  groups_.back().chunks.back().size_bytes += std::ssize(bytes);
}

void ParquetBytes::add_page(const ParquetPage& page) {
  const bool is_v2 = page.type == parquet::PageType::kDataV2;
  const auto compressed = [&](const std::string& bytes) {
    std::string out = bytes;
    if (groups_.back().chunks.back().codec == kSnappy) snappy::Compress(bytes.data(), bytes.size(), &out);
    return out;
  };
  const auto with_length = [&](const std::string& levels) {
    const bool has_none = is_v2 || levels.empty() || page.level_encoding == parquet::Encoding::kBitPacked;
    return has_none ? levels : encode_byte_array(levels);
  };
  const std::string levels = with_length(page.repetition_levels) + with_length(page.definition_levels);
  const std::string body = is_v2 ? levels + compressed(page.values) : compressed(levels + page.values);

  ThriftWriter header;
  header.integer(1, static_cast<int64_t>(page.type));
  header.integer(2, std::ssize(levels) + std::ssize(page.values));
  header.integer(3, std::ssize(body));
  if (page.has_crc)
    header.integer(4, static_cast<int32_t>(crc32(0, reinterpret_cast<const Bytef*>(body.data()),
                                                 static_cast<uInt>(body.size()))));
  header.begin_struct(is_v2 ? 8 : page.type == parquet::PageType::kDictionary ? 7 : 5);
  header.integer(1, page.num_values);
  if (is_v2) {
    header.integer(2, 0);
    header.integer(3, 0);
    header.integer(4, static_cast<int64_t>(page.encoding));
    header.integer(5, std::ssize(page.definition_levels));
    header.integer(6, std::ssize(page.repetition_levels));
    header.boolean(7, true);
  } else {
    header.integer(2, static_cast<int64_t>(page.encoding));
    header.integer(3, static_cast<int64_t>(page.level_encoding));
    header.integer(4, static_cast<int64_t>(page.level_encoding));
  }
  header.end_struct();
  add_bytes(header.finish() + body);
}

void ParquetBytes::write_element(ThriftWriter* writer, const parquet::SchemaElement& element,
                                 int converted_type) const {
  writer->begin_element();
  if (element.type) writer->integer(1, static_cast<int64_t>(*element.type));
  if (element.type_length != 0) writer->integer(2, element.type_length);
  if (element.repetition) writer->integer(3, static_cast<int64_t>(*element.repetition));
  writer->text(4, element.name);
  if (!element.type) writer->integer(5, element.num_children);
  if (converted_type != kNoAnnotation) writer->integer(6, converted_type);
  if (element.scale != 0) writer->integer(7, element.scale);
  writer->end_struct();
}

std::string ParquetBytes::finish(int num_columns) {
  ThriftWriter footer;
  footer.integer(1, 2);
  footer.begin_list_of_structs(2, schema_.size() + 1);
  parquet::SchemaElement root;
  root.name = "schema";
  root.num_children = num_columns;
  write_element(&footer, root, kNoAnnotation);
  for (const auto& [element, converted_type] : schema_) write_element(&footer, element, converted_type);
  int64_t num_rows = 0;
  for (const Group& group : groups_) num_rows += group.num_rows;
  footer.integer(3, num_rows);
  footer.begin_list_of_structs(4, groups_.size());
  for (const Group& group : groups_) {
    footer.begin_element();
    footer.begin_list_of_structs(1, group.chunks.size());
    for (const Chunk& chunk : group.chunks) {
      footer.begin_element();
      footer.integer(2, 0);
      footer.begin_struct(3);
      footer.integer(1, static_cast<int64_t>(chunk.type));
      footer.integer(4, chunk.codec);
      footer.integer(5, chunk.num_values);
      footer.integer(7, chunk.size_bytes);
      footer.integer(9, chunk.offset);
      footer.end_struct();
      footer.end_struct();
    }
    footer.integer(2, 0);
    footer.integer(3, group.num_rows);
    footer.end_struct();
  }
  const std::string metadata = footer.finish();
  return bytes_ + metadata + encode_fixed(metadata.size(), 4) + "PAR1";
}

}  // namespace tessera
