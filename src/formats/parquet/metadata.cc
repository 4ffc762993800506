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

int32_t narrow(int64_t value) {
  if (value < 0 || value > INT32_MAX) reject("expected a number of up to 31 bits, found {}", value);
  return static_cast<int32_t>(value);
}

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
        element->scale = narrow(reader.integer(part_type));
      } else if (is_time && part == 1) {
        element->is_utc = reader.boolean(part_type);
      } else if (is_time && part == 2) {
        element->units_per_second = read_time_unit(reader, part_type);
      } else {
        reader.skip(part_type);
      }
    });
  });
}

SchemaElement read_schema_element(ThriftReader& reader, ThriftType type) {
  SchemaElement element;
  std::optional<int64_t> converted;
  bool has_logical_type = false;
  reader.read_struct(type, [&](int id, ThriftType field) {
    switch (id) {
      case 1: {
        const int64_t number = reader.integer(field);
        if (number < 0 || number > 7) reject("the schema has the unknown physical type {}", number);
        element.type = static_cast<PhysicalType>(number);
        return;
      }
      case 2:
        element.type_length = narrow(reader.integer(field));
        return;
      case 3: {
        const int64_t number = reader.integer(field);
        if (number < 0 || number > 2) reject("the schema has the unknown repetition type {}", number);
        element.repetition = static_cast<Repetition>(number);
        return;
      }
      case 4:
        element.name = reader.binary(field);
        return;
      case 5:
        element.num_children = narrow(reader.integer(field));
        return;
      case 6:
        converted = reader.integer(field);
        return;
      case 7:
        element.scale = narrow(reader.integer(field));
        return;
      case 10:
        has_logical_type = true;
        read_logical_type(reader, field, &element);
        return;
      default:
        reader.skip(field);
    }
  });
  if (!has_logical_type && converted) apply_converted_type(*converted, &element);
  if ((element.logical == kTimestamp || element.logical == kTime) && element.units_per_second == 0)
    reject("the schema has a time without a unit");
  return element;
}

void read_column_metadata(ThriftReader& reader, ThriftType type, ColumnChunk* chunk) {
  int64_t data_page_offset = 0;
  int64_t dictionary_page_offset = 0;
  reader.read_struct(type, [&](int id, ThriftType field) {
    switch (id) {
      case 1:
        chunk->type = static_cast<PhysicalType>(reader.integer(field));
        return;
      case 4:
        chunk->codec = narrow(reader.integer(field));
        return;
      case 5:
        chunk->num_values = reader.integer(field);
        return;
      case 7:
        chunk->total_compressed_size = reader.integer(field);
        return;
      case 9:
        data_page_offset = reader.integer(field);
        return;
      case 11:
        dictionary_page_offset = reader.integer(field);
        return;
      default:
        reader.skip(field);
    }
  });
  // Some writers set an offset of 0 for "no dictionary", others give the dictionary's offset for both.
  const bool has_dictionary = dictionary_page_offset > 0 && dictionary_page_offset < data_page_offset;
  chunk->first_page_offset = has_dictionary ? dictionary_page_offset : data_page_offset;
}

ColumnChunk read_column_chunk(ThriftReader& reader, ThriftType type) {
  ColumnChunk chunk;
  reader.read_struct(type, [&](int id, ThriftType field) {
    switch (id) {
      case 1:
        chunk.is_elsewhere = !reader.binary(field).empty();
        return;
      case 3:
        return read_column_metadata(reader, field, &chunk);
      case 8:
        chunk.is_encrypted = true;
        break;
      default:
        break;
    }
    reader.skip(field);
  });
  return chunk;
}

RowGroup read_row_group(ThriftReader& reader, ThriftType type) {
  RowGroup group;
  reader.read_struct(type, [&](int id, ThriftType field) {
    switch (id) {
      case 1:
        reader.read_list(
            field, [&](ThriftType element) { group.columns.push_back(read_column_chunk(reader, element)); });
        return;
      case 3:
        group.num_rows = reader.integer(field);
        return;
      default:
        reader.skip(field);
    }
  });
  if (group.num_rows < 0) reject("a row group has {} rows", group.num_rows);
  return group;
}

std::pair<std::string, std::string> read_key_value(ThriftReader& reader, ThriftType type) {
  std::pair<std::string, std::string> text;
  reader.read_struct(type, [&](int id, ThriftType field) {
    switch (id) {
      case 1:
        text.first = reader.binary(field);
        return;
      case 2:
        text.second = reader.binary(field);
        return;
      default:
        reader.skip(field);
    }
  });
  return text;
}

FileMetadata read_file_metadata(std::string_view footer) {
  ThriftReader reader(footer);
  FileMetadata metadata;
  reader.read_struct([&](int id, ThriftType field) {
    switch (id) {
      case 2:
        reader.read_list(field, [&](ThriftType element) {
          metadata.schema.push_back(read_schema_element(reader, element));
        });
        return;
      case 4:
        reader.read_list(field, [&](ThriftType element) {
          metadata.row_groups.push_back(read_row_group(reader, element));
        });
        return;
      case 5:
        reader.read_list(
            field, [&](ThriftType element) { metadata.texts.push_back(read_key_value(reader, element)); });
        return;
      default:
        reader.skip(field);
    }
  });
  return metadata;
}

void read_data_page_header(ThriftReader& reader, ThriftType type, PageHeader* header) {
  reader.read_struct(type, [&](int id, ThriftType field) {
    switch (id) {
      case 1:
        header->num_values = narrow(reader.integer(field));
        return;
      case 2:
        header->encoding = static_cast<Encoding>(narrow(reader.integer(field)));
        return;
      case 3:
        header->definition_encoding = static_cast<Encoding>(narrow(reader.integer(field)));
        return;
      case 4:
        header->repetition_encoding = static_cast<Encoding>(narrow(reader.integer(field)));
        return;
      default:
        reader.skip(field);
    }
  });
}

void read_dictionary_page_header(ThriftReader& reader, ThriftType type, PageHeader* header) {
  reader.read_struct(type, [&](int id, ThriftType field) {
    switch (id) {
      case 1:
        header->num_values = narrow(reader.integer(field));
        return;
      case 2:
        header->encoding = static_cast<Encoding>(narrow(reader.integer(field)));
        return;
      default:
        reader.skip(field);
    }
  });
}

void read_data_page_header_v2(ThriftReader& reader, ThriftType type, PageHeader* header) {
  reader.read_struct(type, [&](int id, ThriftType field) {
    switch (id) {
      case 1:
        header->num_values = narrow(reader.integer(field));
        return;
      case 4:
        header->encoding = static_cast<Encoding>(narrow(reader.integer(field)));
        return;
      case 5:
        header->definition_bytes = narrow(reader.integer(field));
        return;
      case 6:
        header->repetition_bytes = narrow(reader.integer(field));
        return;
      case 7:
        header->is_compressed = reader.boolean(field);
        return;
      default:
        reader.skip(field);
    }
  });
}

std::string read_bytes(const InputFile& file, int64_t offset, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace

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
    return read_file_metadata(read_bytes(file, size - kTailBytes - footer_size, footer_size));
  } catch (const Problem& problem) {
    fail(ExitCode::kBadData, "{}: the Parquet footer is damaged: {}", name, problem.what());
  }
}

PageHeader read_page_header(std::string_view bytes, int64_t* size_bytes) {
  ThriftReader reader(bytes);
  PageHeader header;
  reader.read_struct([&](int id, ThriftType field) {
    switch (id) {
      case 1:
        header.type = narrow(reader.integer(field));
        return;
      case 2:
        header.uncompressed_size = narrow(reader.integer(field));
        return;
      case 3:
        header.compressed_size = narrow(reader.integer(field));
        return;
      case 4:
        header.crc = static_cast<uint32_t>(reader.integer(field));
        return;
      case 5:
        return read_data_page_header(reader, field, &header);
      case 7:
        return read_dictionary_page_header(reader, field, &header);
      case 8:
        return read_data_page_header_v2(reader, field, &header);
      default:
        reader.skip(field);
    }
  });
  *size_bytes = static_cast<int64_t>(reader.position());
  return header;
}

}  // namespace tessera::parquet
