#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "tensor/shape_text.h"

namespace tessera {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr int kMaxDepth = 3;  // the header, a tensor, a list of numbers

DType read_dtype(const JsonNode& node, const std::string& origin, const std::string& tensor) {
  const std::string& name = node.string();
  if (const std::optional<DType> dtype = parse_dtype(name)) return *dtype;
  const bool sub_byte = name.starts_with("F4") || name.starts_with("F6");
  fail(ExitCode::kBadData, "{}: tensor '{}': field 'dtype': {} '{}', expected one of {}", origin,
       printable(tensor), sub_byte ? "sub-byte type not supported:" : "unknown type", printable(name),
       "BF16, F16, F32, F64, F8_E4M3, F8_E5M2, I64, I32, I16, I8, U64, U32, U16, U8, BOOL");
}

// Offsets and size must agree with shape and dtype.
SafetensorsEntry read_tensor(const JsonNode& fields, const std::string& origin, const std::string& name) {
  for (const auto& [field, value] : fields.object().items()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets")
      fail(ExitCode::kBadData, "{}: tensor '{}': unknown field '{}', expected dtype, shape and data_offsets",
           origin, printable(name), printable(field));
  }
  SafetensorsEntry entry{};
  entry.name = name;
  entry.dtype = read_dtype(fields["dtype"], origin, name);
  entry.size_bytes = dtype_bytes(entry.dtype);
  for (const JsonNode& dim : fields["shape"].list()) entry.shape.push_back(dim.integer(0));
  for (const int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(entry.size_bytes, dim, &entry.size_bytes))
      fail(ExitCode::kBadData, "{}: tensor '{}': field 'shape': the size of {} {} overflows 64 bits", origin,
           printable(name), dtype_name(entry.dtype), shape_text(entry.shape));
  }
  const std::vector<JsonNode> offsets = fields["data_offsets"].list();
  if (offsets.size() != 2) fields["data_offsets"].expected("two integers");
  const int64_t begin = offsets[0].integer(0), end = offsets[1].integer(0);
  if (begin > end)
    fail(ExitCode::kBadData, "{}: tensor '{}': field 'data_offsets': begin {} is after end {}", origin,
         printable(name), begin, end);
  if (end - begin != entry.size_bytes)
    fail(ExitCode::kBadData,
         "{}: tensor '{}': field 'data_offsets': expected {} for {} {}, found {} ([{}, {}])", origin,
         printable(name), count_of(entry.size_bytes, "byte"), dtype_name(entry.dtype),
         shape_text(entry.shape), end - begin, begin, end);
  entry.offset_bytes = begin;
  return entry;
}

// The tensors must cover the data exactly, back to back: a gap could hide another file's content.
void check_coverage(std::vector<SafetensorsEntry>& entries, int64_t data_bytes, const std::string& origin) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.offset_bytes, a.size_bytes, a.name) < std::tie(b.offset_bytes, b.size_bytes, b.name);
  });
  int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset_bytes + entry.size_bytes > data_bytes)
      fail(ExitCode::kBadData,
           "{}: tensor '{}': field 'data_offsets': [{}, {}] lies outside the {} of data in the file "
           "(truncated?)",
           origin, printable(entry.name), entry.offset_bytes, entry.offset_bytes + entry.size_bytes,
           count_of(data_bytes, "byte"));
    if (entry.offset_bytes != covered)
      fail(ExitCode::kBadData,
           "{}: tensor '{}': field 'data_offsets': expected to begin at {}, found {} ({})", origin,
           printable(entry.name), covered, entry.offset_bytes,
           entry.offset_bytes < covered ? "overlaps the tensor before it" : "a hole that no tensor covers");
    covered += entry.size_bytes;
  }
  if (covered != data_bytes)
    fail(ExitCode::kBadData, "{}: expected {} of data for {} in the header, found {}", origin,
         count_of(covered, "byte"), count_of(std::ssize(entries), "tensor"), data_bytes);
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, int64_t data_bytes,
                                                       const std::string& origin,
                                                       std::map<std::string, std::string>* metadata) {
  const std::string where = origin + ": header";
  const size_t first = json.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || json[first] != '{')
    fail(ExitCode::kBadData, "{}: expected '{{', found {}", where,
         first == std::string_view::npos ? "nothing" : "'" + printable(json.substr(first), 16) + "'");
  const Json header = parse_json(json, where, kMaxDepth);
  const JsonNode root(header, where);
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, unused] : header.items()) {
    const JsonNode fields = root[name];
    if (name != kMetadataKey) {
      entries.push_back(read_tensor(fields, origin, name));
      continue;
    }
    for (const auto& [key, text] : fields.object().items()) {
      const std::string& value = fields[key].string();
      if (metadata != nullptr) metadata->emplace(key, value);
    }
  }
  check_coverage(entries, data_bytes, origin);
  return entries;
}

}  // namespace tessera
