// A Parquet file's metadata, reduced to the fields needed to read rows. Names and numbers as in
// parquet.thrift (https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/file.h"

namespace tessera::parquet {

enum class PhysicalType : int8_t {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedLenByteArray = 7,
};

enum class Repetition : int8_t { kRequired = 0, kOptional = 1, kRepeated = 2 };

// LogicalType and the older ConvertedType in one.
enum class LogicalType : int8_t {
  kNone,
  kString,  // also ENUM
  kMap,
  kList,
  kDecimal,
  kDate,
  kTime,
  kTimestamp,
  kInteger,
  kUnknown,  // always null
  kJson,
  kBson,
  kUuid,
  kFloat16,
  kInterval,
  kVariant,
  kOther,  // newer than this reader
};

struct SchemaElement {
  std::optional<PhysicalType> type;  // of a leaf
  int32_t type_length = 0;           // of FIXED_LEN_BYTE_ARRAY
  std::optional<Repetition> repetition;
  std::string name;
  int32_t num_children = 0;
  LogicalType logical = LogicalType::kNone;
  bool is_unsigned = false;      // of INTEGER
  int64_t units_per_second = 0;  // of TIME and TIMESTAMP
  bool is_utc = false;           // of TIMESTAMP: an instant, not a date and time of some place
  int32_t scale = 0;             // of DECIMAL: digits after the point
};

struct ColumnChunk {
  PhysicalType type = PhysicalType::kBoolean;
  int32_t codec = 0;
  int64_t num_values = 0;
  int64_t total_compressed_size = 0;
  int64_t first_page_offset = 0;
  bool is_encrypted = false;
  bool is_elsewhere = false;  // in another file
};

struct RowGroup {
  int64_t num_rows = 0;
  std::vector<ColumnChunk> columns;  // one for each leaf of the schema
};

using KeyValue = std::pair<std::string, std::string>;

struct FileMetadata {
  std::vector<SchemaElement> schema;  // depth first, the root first
  std::vector<RowGroup> row_groups;
  std::vector<KeyValue> texts;  // the writing program's own: key, value
};

// Reads the footer. Error(kBadData) names the file.
FileMetadata read_metadata(const InputFile& file);

enum class PageType : int8_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };

enum class Encoding : int32_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
  kByteStreamSplit = 9,
};

struct PageHeader {
  int32_t type = 0;  // a PageType, or one that is newer than this reader
  int32_t uncompressed_size = 0;
  int32_t compressed_size = 0;
  std::optional<uint32_t> crc;
  int32_t num_values = 0;
  Encoding encoding = Encoding::kPlain;
  Encoding definition_encoding = Encoding::kRle;
  Encoding repetition_encoding = Encoding::kRle;
  // In kDataV2 only.
  int32_t definition_bytes = 0;
  int32_t repetition_bytes = 0;
  bool is_compressed = true;
};

// Reads the page header at the beginning of `bytes` and sets its size. Throws Problem, ThriftTruncated if
// more bytes are needed.
PageHeader read_page_header(std::string_view bytes, int64_t* size_bytes);

}  // namespace tessera::parquet
