// For tests and fuzz targets: the bytes of small Parquet files, written page by page, so that a test chooses
// every encoding and every level itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parquet/metadata.h"

namespace tessera {

// Thrift's compact protocol.
class ThriftWriter {
 public:
  void integer(int id, int64_t value);  // an i64, which readers also take for an i32
  void boolean(int id, bool value);
  void text(int id, std::string_view value);
  void begin_struct(int id);
  void begin_list_of_structs(int id, size_t count);  // then begin_element() and end_struct() for each
  void begin_element() { last_ids_.push_back(0); }
  void end_struct();
  std::string finish();  // ends the outermost struct

 private:
  void header(int id, int type);

  std::string bytes_;
  std::vector<int> last_ids_ = {0};
};

// Encodings, as in https://github.com/apache/parquet-format/blob/master/Encodings.md.
std::string encode_fixed(uint64_t bits, int num_bytes);
std::string encode_byte_array(std::string_view value);  // PLAIN
// Alternates runs and bit-packed groups where values repeat.
std::string encode_rle(const std::vector<uint32_t>& values, int bit_width);
std::string encode_bit_packed_levels(const std::vector<uint32_t>& levels, int bit_width);
std::string encode_delta(const std::vector<int64_t>& values, int block_size = 128, int miniblocks = 4);
std::string encode_delta_lengths(const std::vector<std::string>& values);
std::string encode_delta_bytes(const std::vector<std::string>& values);
std::string encode_byte_stream_split(const std::vector<uint64_t>& values, int num_bytes);

struct ParquetPage {
  parquet::PageType type = parquet::PageType::kData;
  parquet::Encoding encoding = parquet::Encoding::kPlain;
  int64_t num_values = 0;
  std::string repetition_levels;  // without the length that kData puts before RLE; may be empty
  std::string definition_levels;
  std::string values;
  bool has_crc = false;
  parquet::Encoding level_encoding = parquet::Encoding::kRle;
};

class ParquetBytes {
 public:
  // Values of parquet.thrift's ConvertedType.
  static constexpr int kNoAnnotation = -1;
  static constexpr int kUtf8 = 0;
  static constexpr int kList = 3;
  static constexpr int kDecimal = 5;
  static constexpr int kDate = 6;
  static constexpr int kTimeMillis = 7;
  static constexpr int kTimestampMillis = 9;
  static constexpr int kTimestampMicros = 10;
  static constexpr int kUint32 = 13;
  static constexpr int kUint64 = 14;
  static constexpr int kJson = 19;
  static constexpr int kBson = 20;

  // The schema, depth first, without the root.
  void add_group(std::string_view name, parquet::Repetition repetition, int num_children,
                 int converted_type = kNoAnnotation);
  void add_leaf(std::string_view name, parquet::Repetition repetition, parquet::PhysicalType type,
                int converted_type = kNoAnnotation, int type_length = 0, int scale = 0);

  void start_row_group(int64_t num_rows);
  // Columns in the order of the leaves. `codec` is only stated, unless it is snappy.
  void start_column(parquet::PhysicalType type, int64_t num_values, int codec = 0);
  void add_page(const ParquetPage& page);
  // Any bytes in place of a page.
  void add_bytes(std::string_view bytes);

  std::string finish(int num_columns);  // fields of a row

 private:
  struct Chunk {
    parquet::PhysicalType type;
    int codec;
    int64_t num_values;
    int64_t offset;
    int64_t size_bytes;
  };
  struct Group {
    int64_t num_rows;
    std::vector<Chunk> chunks;
  };

  void write_element(ThriftWriter* writer, const parquet::SchemaElement& element, int converted_type) const;

  std::string bytes_ = "PAR1";
  std::vector<std::pair<parquet::SchemaElement, int>> schema_;
  std::vector<Group> groups_;
};

}  // namespace tessera
