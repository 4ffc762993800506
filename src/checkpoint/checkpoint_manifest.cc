#include "checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "formats/json.h"
#include "platform/crc32c.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kManifestFormat = "tessera-checkpoint";
constexpr const char* kIndexFormat = "tessera-checkpoint-index";
constexpr int64_t kVersion = 1;

// The end of the manifest: the checksum of everything before these bytes.
constexpr std::string_view kChecksumKey = "\"manifest_crc32c\": \"";
constexpr std::string_view kManifestEnd = "\"\n}\n";
constexpr size_t kChecksumDigits = 8;
constexpr size_t kTailBytes = kChecksumKey.size() + kChecksumDigits + kManifestEnd.size();

std::string hex(uint32_t checksum) { return fmt::format("{:08x}", checksum); }

std::optional<uint32_t> parse_hex(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  // Only hex()'s own spelling, so that every value has exactly one encoding.
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && hex(value) == text ? std::optional(value) : std::nullopt;
}

// Parses a document of one of the two formats and checks its version.
Json parse_document(std::string_view text, const std::string& origin, const char* format) {
  Json document = parse_json(text, origin);
  if (!document.is_object())
    fail(ExitCode::kBadData, "{}: expected an object, found {}", origin, found_text(document));
  const JsonFields fields(document, origin);
  if (fields.string("format") != format) fields.fail_expected("format", fmt::format("'{}'", format));
  const auto version = fields.integer("version");
  if (version && *version > kVersion) {
    fail(ExitCode::kBadData,
         "{}: field 'version': expected at most {}, found {}: written by a newer program{}; use that one",
         origin, kVersion, *version,
         document.contains("program_version") && document["program_version"].is_string()
             ? fmt::format(" ({})", printable(document["program_version"].get<std::string>()))
             : "");
  }
  if (version != kVersion) fields.fail_expected("version", "1");
  return document;
}

int64_t required_integer(const JsonFields& fields, const std::string& name, int64_t at_least,
                         int64_t at_most) {
  const auto value = fields.integer(name);
  if (!value || *value < at_least || *value > at_most) {
    fields.fail_expected(name, fmt::format("an integer from {} to {}", at_least, at_most));
  }
  return *value;
}

std::string required_string(const JsonFields& fields, const std::string& name) {
  auto value = fields.string(name);
  if (!value) fields.fail_expected(name, "a string");
  return std::move(*value);
}

const Json& required(const JsonFields& fields, const std::string& name, Json::value_t type,
                     const char* expected) {
  const Json* value = fields.find(name);
  if (value == nullptr || value->type() != type) fields.fail_expected(name, expected);
  return *value;
}

// A file directly in the checkpoint's folder or in its tessera/, nowhere else.
void check_file_name(const std::string& name, const std::string& origin) {
  std::string_view base = name;
  const std::string folder = std::string(kStateFolder) + "/";
  if (base.starts_with(folder)) base.remove_prefix(folder.size());
  const bool is_plain = !base.empty() && !base.starts_with('.') &&
                        std::all_of(base.begin(), base.end(),
                                    [](char c) { return c > ' ' && c < 127 && c != '/' && c != '\\'; });
  if (!is_plain) {
    fail(ExitCode::kBadData, "{}: field 'files': expected the name of a file in the checkpoint, found '{}'",
         origin, printable(name));
  }
}

FileRecord parse_file_record(const Json& json, const std::string& origin) {
  if (!json.is_object())
    fail(ExitCode::kBadData, "{}: field 'files': expected objects, found {}", origin, found_text(json));
  const JsonFields fields(json, origin, "files.");
  FileRecord file;
  file.name = required_string(fields, "name");
  check_file_name(file.name, origin);
  file.bytes = required_integer(fields, "bytes", 0, INT64_MAX);
  if (const auto text = fields.string("crc32c")) {
    file.crc32c = parse_hex(*text);
    if (!file.crc32c) fields.fail_expected("crc32c", "8 hexadecimal digits");
  }
  return file;
}

DType parse_model_dtype(const JsonFields& fields) {
  const std::string name = required_string(fields, "model_dtype");
  const auto dtype = parse_dtype(name);
  if (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32) {
    fields.fail_expected("model_dtype", "BF16, F16 or F32");
  }
  return *dtype;
}

void check_manifest_checksum(std::string_view text, const std::string& origin) {
  std::optional<uint32_t> expected;
  if (text.size() >= kTailBytes && text.ends_with(kManifestEnd)) {
    const std::string_view tail = text.substr(text.size() - kTailBytes);
    if (tail.starts_with(kChecksumKey))
      expected = parse_hex(tail.substr(kChecksumKey.size(), kChecksumDigits));
  }
  if (!expected) {
    fail(ExitCode::kBadData,
         "{}: field 'manifest_crc32c': expected at the end of the file, found none (truncated or edited?)",
         origin);
  }
  const uint32_t found = crc32c(0, std::as_bytes(std::span(text.substr(0, text.size() - kTailBytes))));
  if (found != *expected) {
    fail(ExitCode::kBadData,
         "{}: field 'manifest_crc32c': expected {} as recorded, found {} (damaged or edited; use another "
         "checkpoint)",
         origin, hex(*expected), hex(found));
  }
}

[[noreturn]] void fail_entry(const std::string& origin, const std::string& field, const char* expected,
                             const Json& found) {
  fail(ExitCode::kBadData, "{}: field '{}': expected {}, found {}", origin, printable(field), expected,
       found_text(found));
}

bool is_count(const Json& json) {
  return json.is_number_unsigned() && json.get<uint64_t>() <= uint64_t{INT64_MAX};
}

// [[offset, bytes, checksum], ...].
std::vector<PieceRecord> parse_pieces(const Json& json, const std::string& origin, const std::string& name) {
  const std::string field = "pieces of " + name;
  constexpr const char* kExpected =
      "[offset, bytes, checksum of 8 hexadecimal digits], ascending without overlap";
  std::vector<PieceRecord> pieces;
  pieces.reserve(json.size());
  int64_t end = 0;
  for (const Json& entry : json) {
    const bool is_triple = entry.is_array() && entry.size() == 3 && is_count(entry[0]) &&
                           is_count(entry[1]) && entry[2].is_string();
    if (!is_triple) fail_entry(origin, field, kExpected, entry);
    const auto crc = parse_hex(entry[2].get_ref<const std::string&>());
    const PieceRecord piece = {entry[0].get<int64_t>(), entry[1].get<int64_t>(), crc.value_or(0)};
    int64_t piece_end = 0;
    if (!crc || piece.size_bytes == 0 || piece.offset_bytes < end ||
        __builtin_add_overflow(piece.offset_bytes, piece.size_bytes, &piece_end)) {
      fail_entry(origin, field, kExpected, entry);
    }
    end = piece_end;
    pieces.push_back(piece);
  }
  return pieces;
}

// [[begin, end], ...] of non-negative integers.
std::vector<ElementRange> parse_elements(const Json& json, const std::string& origin,
                                         const std::string& name) {
  const std::string field = "elements of " + name;
  constexpr const char* kExpected = "[begin, end], ascending without overlap";
  if (!json.is_array() || json.empty()) fail_entry(origin, field, kExpected, json);
  std::vector<ElementRange> ranges;
  int64_t end = 0;
  for (const Json& entry : json) {
    if (!entry.is_array() || entry.size() != 2 || !is_count(entry[0]) || !is_count(entry[1])) {
      fail_entry(origin, field, kExpected, entry);
    }
    const ElementRange range = {entry[0].get<int64_t>(), entry[1].get<int64_t>()};
    if (range.begin < end || range.begin >= range.end) fail_entry(origin, field, kExpected, entry);
    end = range.end;
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace

std::string write_manifest(const CheckpointManifest& manifest) {
  OrderedJson json;
  json["format"] = kManifestFormat;
  json["version"] = kVersion;
  json["program_version"] = manifest.program_version;
  json["step"] = manifest.step;
  json["world_size"] = manifest.world_size;
  json["model_dtype"] = dtype_name(manifest.model_dtype);
  json["run"] = OrderedJson::parse(manifest.run_json);
  json["files"] = OrderedJson::array();
  for (const FileRecord& file : manifest.files) {
    OrderedJson entry = {{"name", file.name}, {"bytes", file.bytes}};
    if (file.crc32c) entry["crc32c"] = hex(*file.crc32c);
    json["files"].push_back(std::move(entry));
  }
  std::string text = json.dump(2);
  text.resize(text.size() - 2);  // the "\n}" that follows the checksum
  text += ",\n  ";
  const uint32_t checksum = crc32c(0, std::as_bytes(std::span(text)));
  return fmt::format("{}{}{}{}", text, kChecksumKey, hex(checksum), kManifestEnd);
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& origin) {
  const Json document = parse_document(text, origin, kManifestFormat);
  check_manifest_checksum(text, origin);
  const JsonFields fields(document, origin);
  CheckpointManifest manifest;
  manifest.program_version = required_string(fields, "program_version");
  manifest.step = required_integer(fields, "step", 0, INT64_MAX);
  manifest.world_size = required_integer(fields, "world_size", 1, 1'000'000);
  manifest.model_dtype = parse_model_dtype(fields);
  manifest.run_json = required(fields, "run", Json::value_t::object, "an object").dump();
  std::set<std::string> names;
  for (const Json& entry : required(fields, "files", Json::value_t::array, "a list of files")) {
    manifest.files.push_back(parse_file_record(entry, origin));
    const std::string& name = manifest.files.back().name;
    if (!names.insert(name).second)
      fail(ExitCode::kBadData, "{}: field 'files': '{}' appears twice", origin, name);
  }
  return manifest;
}

std::string write_rank_index(const RankIndex& index) {
  std::string text = fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"version\": {},\n  \"rank\": {},\n  \"world_size\": {},\n  \"files\": [",
      kIndexFormat, kVersion, index.rank, index.world_size);
  for (const RankIndex::File& file : index.files) {
    text += fmt::format("{}\n    {{\"name\": {}, \"pieces\": [", &file == index.files.data() ? "" : ",",
                        OrderedJson(file.name).dump());
    for (const PieceRecord& piece : file.pieces) {
      text += fmt::format("{}[{}, {}, \"{}\"]", &piece == file.pieces.data() ? "" : ", ", piece.offset_bytes,
                          piece.size_bytes, hex(piece.crc32c));
    }
    text += "]}";
  }
  text += "\n  ],\n  \"elements\": {";
  const char* separator = "";
  for (const auto& [name, ranges] : index.elements) {
    std::vector<std::string> pairs;
    for (const ElementRange& range : ranges) pairs.push_back(fmt::format("[{}, {}]", range.begin, range.end));
    text += fmt::format("{}\n    {}: [{}]", separator, OrderedJson(name).dump(), fmt::join(pairs, ", "));
    separator = ",";
  }
  return text + "\n  }\n}\n";
}

RankIndex parse_rank_index(std::string_view text, const std::string& origin) {
  const Json document = parse_document(text, origin, kIndexFormat);
  const JsonFields fields(document, origin);
  RankIndex index;
  index.world_size = required_integer(fields, "world_size", 1, 1'000'000);
  index.rank = required_integer(fields, "rank", 0, index.world_size - 1);
  std::set<std::string> names;
  for (const Json& entry : required(fields, "files", Json::value_t::array, "a list of files")) {
    if (!entry.is_object()) fail_entry(origin, "files", "objects", entry);
    const JsonFields file(entry, origin, "files.");
    const std::string name = required_string(file, "name");
    check_file_name(name, origin);
    if (!names.insert(name).second)
      fail(ExitCode::kBadData, "{}: field 'files': '{}' appears twice", origin, name);
    const Json& pieces = required(file, "pieces", Json::value_t::array, "a list of pieces");
    index.files.push_back({name, parse_pieces(pieces, origin, name)});
  }
  const Json& elements = required(fields, "elements", Json::value_t::object, "an object of lists");
  for (const auto& [name, ranges] : elements.items()) {
    index.elements.emplace(name, parse_elements(ranges, origin, name));
  }
  return index;
}

}  // namespace tessera
