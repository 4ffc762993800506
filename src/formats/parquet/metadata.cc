#include "formats/parquet/metadata.h"

#include <array>
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "formats/parquet/thrift_reader.h"

namespace tessera::parquet {
namespace {

constexpr int64_t kMagicBytes = 4;
constexpr int64_t kTailBytes = 8;  // the footer's length, uint32, and the magic

constexpr int64_t kMillis = 1000;  // per second
constexpr int64_t kMicros = 1'000'000;
constexpr int64_t kNanos = 1'000'000'000;

using enum LogicalType;
// By number.
constexpr std::array kConvertedTypes = {kString,  kMap,     kMap,     kList,      kString,    kDecimal,
                                        kDate,    kTime,    kTime,    kTimestamp, kTimestamp, kInteger,
                                        kInteger, kInteger, kInteger, kInteger,   kInteger,   kInteger,
                                        kInteger, kJson,    kBson,    kInterval};
constexpr std::array kLogicalTypes = {kNone, kString, kMap,       kList,    kString,  kDecimal,
                                      kDate, kTime,   kTimestamp, kOther,   kInteger, kUnknown,
                                      kJson, kBson,   kUuid,      kFloat16, kVariant};

template <size_t kSize>
LogicalType type_at(const std::array<LogicalType, kSize>& types, int64_t number) {
  return number >= 0 && number < std::ssize(types) ? types[static_cast<size_t>(number)] : kOther;
}

void apply_converted_type(int64_t number, SchemaElement* element) {
  element->logical = type_at(kConvertedTypes, number);
  element->is_unsigned = number >= 11 && number <= 14;
  // TIME_MILLIS, TIME_MICROS, TIMESTAMP_MILLIS, TIMESTAMP_MICROS.
  element->units_per_second = number % 2 == 1 ? kMillis : kMicros;
  element->is_utc = true;
}

// A union: one field, whose id is the unit.
int64_t read_time_unit(ThriftReader& reader, ThriftType type) {
  int64_t units_per_second = kNanos;
  reader.read_struct(type, [&](int id, ThriftType field) {
    units_per_second = id == 1 ? kMillis : id == 2 ? kMicros : kNanos;
    reader.skip(field);
  });
  return units_per_second;
}

// A union: one field, whose id is the type.
void read_logical_type(ThriftReader& reader, ThriftType type, SchemaElement* element) {
  reader.read_struct(type, [&](int id, ThriftType field) {
    element->logical = type_at(kLogicalTypes, id);
    const bool is_time = element->logical == kTimestamp || element->logical == kTime;
    reader.read_struct(field, [&](int part, ThriftType part_type) {
      if (element->logical == kInteger && part == 2) {
        element->is_unsigned = !reader.boolean(part_type);
      } else if (element->logical == kDecimal && part == 1) {
        reader.read(part_type, &element->scale);
      } else if (is_time && part == 1) {
        reader.read(part_type, &element->is_utc);
      } else if (is_time && part == 2) {
        element->units_per_second = read_time_unit(reader, part_type);
      } else {
        reader.skip(part_type);
      }
    });
  });
}

std::string read_bytes(const InputFile& file, int64_t offset, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// An enum whose numbers end at `last`.
template <typename Enum>
Enum read_enum(ThriftReader& reader, ThriftType type, Enum last, const char* name) {
  const int64_t number = reader.integer(type);
  if (number < 0 || number > static_cast<int64_t>(last))
    reject("the schema has the unknown {} {}", name, number);
  return static_cast<Enum>(number);
}

}  // namespace

// ThriftReader::read() finds these by the type of their target.

static void read_value(ThriftReader& reader, ThriftType type, PhysicalType* value) {
  *value = read_enum(reader, type, PhysicalType::kFixedLenByteArray, "physical type");
}

static void read_value(ThriftReader& reader, ThriftType type, Repetition* value) {
  *value = read_enum(reader, type, Repetition::kRepeated, "repetition type");
}

static void read_value(ThriftReader& reader, ThriftType type, SchemaElement* element) {
  std::optional<int64_t> converted;
  bool has_logical_type = false;
  reader.read_struct(type, [&](int id, ThriftType field) {
    if (id == 10) {
      has_logical_type = true;
      return read_logical_type(reader, field, element);
    }
    reader.read_field(id, field, Field{1, &element->type}, Field{2, &element->type_length},
                      Field{3, &element->repetition}, Field{4, &element->name},
                      Field{5, &element->num_children}, Field{6, &converted}, Field{7, &element->scale});
  });
  if (!has_logical_type && converted) apply_converted_type(*converted, element);
  if ((element->logical == kTimestamp || element->logical == kTime) && element->units_per_second == 0)
    reject("the schema has a time without a unit");
}

static void read_column_metadata(ThriftReader& reader, ThriftType type, ColumnChunk* chunk) {
  int64_t data_page_offset = 0;
  int64_t dictionary_page_offset = 0;
  reader.read_fields(type, Field{1, &chunk->type}, Field{4, &chunk->codec}, Field{5, &chunk->num_values},
                     Field{7, &chunk->total_compressed_size}, Field{9, &data_page_offset},
                     Field{11, &dictionary_page_offset});
  // Some writers set an offset of 0 for "no dictionary", others give the dictionary's offset for both.
  const bool has_dictionary = dictionary_page_offset > 0 && dictionary_page_offset < data_page_offset;
  chunk->first_page_offset = has_dictionary ? dictionary_page_offset : data_page_offset;
}

static void read_value(ThriftReader& reader, ThriftType type, ColumnChunk* chunk) {
  reader.read_struct(type, [&](int id, ThriftType field) {
    if (id == 3) return read_column_metadata(reader, field, chunk);
    if (id == 1) {
      chunk->is_elsewhere = !reader.binary(field).empty();
      return;
    }
    chunk->is_encrypted |= id == 8;
    reader.skip(field);
  });
}

static void read_value(ThriftReader& reader, ThriftType type, RowGroup* group) {
  reader.read_fields(type, Field{1, &group->columns}, Field{3, &group->num_rows});
  if (group->num_rows < 0) reject("a row group has {} rows", group->num_rows);
}

static void read_value(ThriftReader& reader, ThriftType type, KeyValue* text) {
  reader.read_fields(type, Field{1, &text->first}, Field{2, &text->second});
}

FileMetadata read_metadata(const InputFile& file) {
  const std::string& name = file.path().native();
  const int64_t size = file.size_bytes();
  if (size < kMagicBytes + kTailBytes)
    fail(ExitCode::kBadData, "{}: expected a Parquet file, found only {}", name, count_of(size, "byte"));
  const std::string tail = read_bytes(file, size - kTailBytes, kTailBytes);
  const std::string_view magic = std::string_view(tail).substr(4);
  if (magic == "PARE")
    fail(ExitCode::kBadData, "{}: the footer is encrypted, which is not supported: decrypt the file first",
         name);
  if (magic != "PAR1")
    fail(
        ExitCode::kBadData,
        "{}: expected a Parquet file that ends with 'PAR1', found '{}': it is cut short or of another format",
        name, printable(magic));
  uint32_t footer_size = 0;
  std::memcpy(&footer_size, tail.data(), sizeof footer_size);
  if (footer_size > size - kMagicBytes - kTailBytes)
    fail(ExitCode::kBadData, "{}: the footer claims {}, but the file has {}", name,
         count_of(footer_size, "byte"), count_of(size, "byte"));
  try {
    const std::string footer = read_bytes(file, size - kTailBytes - footer_size, footer_size);
    FileMetadata metadata;
    ThriftReader(footer).read_fields(ThriftType::kStruct, Field{2, &metadata.schema},
                                     Field{4, &metadata.row_groups}, Field{5, &metadata.texts});
    return metadata;
  } catch (const Problem& problem) {
    fail(ExitCode::kBadData, "{}: the Parquet footer is damaged: {}", name, problem.what());
  }
}

PageHeader read_page_header(std::string_view bytes, int64_t* size_bytes) {
  ThriftReader reader(bytes);
  PageHeader header;
  reader.read_struct(ThriftType::kStruct, [&](int id, ThriftType field) {
    if (id == 5) {
      reader.read_fields(field, Field{1, &header.num_values}, Field{2, &header.encoding},
                         Field{3, &header.definition_encoding}, Field{4, &header.repetition_encoding});
    } else if (id == 7) {
      reader.read_fields(field, Field{1, &header.num_values}, Field{2, &header.encoding});
    } else if (id == 8) {
      reader.read_fields(field, Field{1, &header.num_values}, Field{4, &header.encoding},
                         Field{5, &header.definition_bytes}, Field{6, &header.repetition_bytes},
                         Field{7, &header.is_compressed});
    } else {
      reader.read_field(id, field, Field{1, &header.type}, Field{2, &header.uncompressed_size},
                        Field{3, &header.compressed_size}, Field{4, &header.crc});
    }
  });
  *size_bytes = static_cast<int64_t>(reader.position());
  return header;
}

}  // namespace tessera::parquet
