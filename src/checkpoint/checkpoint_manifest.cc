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
  const JsonNode fields(document, origin);
  if (fields["format"].string_or("") != format) fields["format"].expected(fmt::format("'{}'", format));
  const int64_t version = fields["version"].integer();
  if (version > kVersion) {
    fail(ExitCode::kBadData,
         "{}: field 'version': expected at most {}, found {}: written by a newer program{}; use that one",
         origin, kVersion, version,
         fields["program_version"].is_string()
             ? fmt::format(" ({})", printable(fields["program_version"].string()))
             : "");
  }
  if (version != kVersion) fields["version"].expected("1");
  return document;
}

// A file directly in the checkpoint's folder or in its tessera/, nowhere else.
std::string read_file_name(const JsonNode& file, std::set<std::string>* names) {
  const std::string& name = file["name"].string();
  std::string_view base = name;
  const std::string folder = std::string(kStateFolder) + "/";
  if (base.starts_with(folder)) base.remove_prefix(folder.size());
  const bool is_plain = !base.empty() && !base.starts_with('.') &&
                        std::all_of(base.begin(), base.end(),
                                    [](char c) { return c > ' ' && c < 127 && c != '/' && c != '\\'; });
  if (!is_plain) file["name"].expected("the name of a file in the checkpoint");
  if (!names->insert(name).second)
    fail(ExitCode::kBadData, "{}: field 'files': '{}' appears twice", file.origin(), name);
  return name;
}

FileRecord parse_file_record(const JsonNode& file, std::set<std::string>* names) {
  FileRecord record = {read_file_name(file, names), file["bytes"].integer(0), std::nullopt};
  if (const JsonNode text = file["crc32c"]; !text.is_null()) {
    record.crc32c = parse_hex(text.string());
    if (!record.crc32c) text.expected("8 hexadecimal digits");
  }
  return record;
}

DType parse_model_dtype(const JsonNode& name) {
  const auto dtype = parse_dtype(name.string());
  if (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32)
    name.expected("BF16, F16 or F32");
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

bool is_count(const Json& json) {
  return json.is_number_unsigned() && json.get<uint64_t>() <= uint64_t{INT64_MAX};
}

// [[offset, bytes, checksum], ...].
std::vector<PieceRecord> parse_pieces(const JsonNode& list) {
  std::vector<PieceRecord> pieces;
  int64_t end = 0;
  for (const JsonNode& entry : list.list()) {
    const Json& json = entry.json();
    const bool is_triple =
        json.is_array() && json.size() == 3 && is_count(json[0]) && is_count(json[1]) && json[2].is_string();
    const auto crc = is_triple ? parse_hex(json[2].get_ref<const std::string&>()) : std::nullopt;
    PieceRecord piece = {};
    if (crc) piece = {json[0].get<int64_t>(), json[1].get<int64_t>(), *crc};
    int64_t piece_end = 0;
    if (!crc || piece.size_bytes == 0 || piece.offset_bytes < end ||
        __builtin_add_overflow(piece.offset_bytes, piece.size_bytes, &piece_end)) {
      entry.expected("[offset, bytes, checksum of 8 hexadecimal digits], ascending without overlap");
    }
    end = piece_end;
    pieces.push_back(piece);
  }
  return pieces;
}

// [[begin, end], ...] of non-negative integers.
std::vector<ElementRange> parse_elements(const JsonNode& list) {
  std::vector<ElementRange> ranges;
  int64_t end = 0;
  for (const JsonNode& entry : list.list()) {
    const Json& json = entry.json();
    const bool is_pair = json.is_array() && json.size() == 2 && is_count(json[0]) && is_count(json[1]);
    ElementRange range = {};
    if (is_pair) range = {json[0].get<int64_t>(), json[1].get<int64_t>()};
    if (range.begin < end || range.begin >= range.end)
      entry.expected("[begin, end], ascending without overlap");
    end = range.end;
    ranges.push_back(range);
  }
  if (ranges.empty()) list.expected("at least one [begin, end]");
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
  const JsonNode fields(document, origin);
  CheckpointManifest manifest;
  manifest.program_version = fields["program_version"].string();
  manifest.step = fields["step"].integer(0);
  manifest.world_size = fields["world_size"].integer(1, 1'000'000);
  manifest.model_dtype = parse_model_dtype(fields["model_dtype"]);
  manifest.run_json = fields["run"].object().dump();
  std::set<std::string> names;
  for (const JsonNode& file : fields["files"].list())
    manifest.files.push_back(parse_file_record(file, &names));
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
  const JsonNode fields(document, origin);
  RankIndex index;
  index.world_size = fields["world_size"].integer(1, 1'000'000);
  index.rank = fields["rank"].integer(0, index.world_size - 1);
  std::set<std::string> names;
  for (const JsonNode& file : fields["files"].list())
    index.files.push_back({read_file_name(file, &names), parse_pieces(file["pieces"])});
  const JsonNode elements = fields["elements"];
  for (const auto& [name, ranges] : elements.object().items())
    index.elements.emplace(name, parse_elements(elements[name]));
  return index;
}

}  // namespace tessera
