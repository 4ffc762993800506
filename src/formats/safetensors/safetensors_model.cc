// A model's tensors in one or several files, with the index checked against the shards.
#include <array>
#include <cstdio>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/file_kind.h"
#include "formats/json.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/shard_name.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// About 100 bytes per tensor: room for more than 100,000 tensors.
constexpr int64_t kMaxIndexBytes = int64_t{1} << 24;

bool file_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Says what a folder without safetensors weights holds instead.
[[noreturn]] void fail_no_weights(const fs::path& folder) {
  constexpr const char* kConvert = "convert it to safetensors";
  constexpr std::array<std::pair<const char*, const char*>, 7> kOthers = {{
      {"pytorch_model.bin", kConvert},
      {"pytorch_model.bin.index.json", kConvert},
      {"consolidated.safetensors", "Mistral's own format: convert it to that of Hugging Face"},
      {"consolidated.00.pth", kConvert},
      {"tf_model.h5", kConvert},
      {"flax_model.msgpack", kConvert},
      {"adapter_model.safetensors", "a LoRA adapter, without its model"},
  }};
  std::string found = note_on_gguf(folder);
  for (const auto& [other, note] : kOthers) {
    if (file_exists(folder / other)) found = fmt::format(", found only {} ({})", other, note);
  }
  fail(ExitCode::kNoInput, "{}: no weights: expected {} or {}{}", folder.native(), kSingleFileName,
       kIndexFileName, found);
}

// tensor -> shard, after checking the fields of the index.
std::map<std::string, std::string> read_weight_map(const Json& index, const std::string& origin) {
  const JsonNode map = JsonNode(index, origin)["weight_map"];
  if (!map.is_object() || map.json().empty()) map.expected("an object of tensor names and file names");
  std::map<std::string, std::string> result;
  for (const auto& [name, shard] : map.json().items()) {
    if (!shard.is_string())
      fail(ExitCode::kBadData, "{}: weight_map: tensor '{}': expected a file name, found {}", origin,
           printable(name), found_text(shard));
    const auto& file = shard.get_ref<const std::string&>();
    // A path could point outside the folder.
    if (file.empty() || file == "." || file == ".." ||
        file.find_first_of(std::string_view("/\\\0", 3)) != file.npos)
      fail(ExitCode::kBadData,
           "{}: weight_map: tensor '{}': expected a file name without a folder, found '{}'", origin,
           printable(name), printable(file));
    result.emplace(name, file);
  }
  return result;
}

// Shards named like model-00001-of-00003.safetensors must be complete.
void check_shard_numbers(const std::set<std::string>& shards, const fs::path& folder,
                         const std::string& origin) {
  for (const std::string& shard : shards) {
    const auto number = parse_shard_name(shard);
    if (number && number->count != static_cast<int64_t>(shards.size()))
      fail(ExitCode::kBadData, "{}: weight_map: expected {} from the name '{}', found {}", origin,
           count_of(number->count, "shard"), printable(shard), shards.size());
  }
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().native();
    if (parse_shard_name(name) && !shards.contains(name))
      log_warning("{}: the shard {} in this folder is not part of the index: ignored", origin,
                  printable(name));
  }
}

// Transformers reads all tensors of the shards, even if the index disagrees.
void warn_about_index(const std::map<std::string, std::string>& weight_map,
                      const std::map<std::string, SafetensorsModel::Location>& tensors,
                      const std::string& origin) {
  std::vector<std::string> lacking, elsewhere, unlisted;
  for (const auto& [name, shard] : weight_map) {
    const auto at = tensors.find(name);
    if (at == tensors.end()) {
      lacking.push_back(name);
    } else if (at->second.file->path().filename().native() != shard) {
      elsewhere.push_back(name);
    }
  }
  for (const auto& [name, location] : tensors) {
    if (!weight_map.contains(name)) unlisted.push_back(name);
  }
  const auto warn = [&](const std::vector<std::string>& names, std::string_view what) {
    if (names.empty()) return;
    log_warning("{}: weight_map: {} ('{}'{}) {}", origin, count_of(std::ssize(names), "tensor"),
                printable(names.front()), names.size() > 1 ? ", ..." : "", what);
  };
  warn(lacking, "in none of the shards");
  warn(elsewhere, "in another shard than it says: read from there");
  warn(unlisted, "of the shards missing in it: read as if listed");
}

void check_total_size(const Json& index, int64_t found_bytes, const std::string& origin) {
  const JsonNode metadata = JsonNode(index, origin)["metadata"];
  if (!metadata.is_object() || metadata["total_size"].is_null()) return;
  // Published models have totals that count tied tensors twice or are written as a float: worth a warning,
  // not an error.
  const double expected = metadata["total_size"].number();
  if (expected != static_cast<double>(found_bytes))
    log_warning("{}: field 'metadata.total_size' is {}, the tensors have {} bytes", origin, expected,
                found_bytes);
}

}  // namespace

std::string shard_name(int64_t number, int64_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

std::optional<ShardNumber> parse_shard_name(const std::string& name) {
  ShardNumber result = {};
  int end = 0;
  long number = 0, count = 0;
  if (std::sscanf(name.c_str(), "model-%5ld-of-%5ld.safetensors%n", &number, &count, &end) != 2)
    return std::nullopt;
  result = {number, count};
  if (number < 1 || number > count || name != shard_name(number, count)) return std::nullopt;
  return result;
}

SafetensorsModel SafetensorsModel::open(const fs::path& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  fs::path index_path;
  SafetensorsModel model;
  if (!is_folder && path.native().ends_with(".index.json")) {
    index_path = path;
  } else if (!is_folder) {
    const fs::path other = fs::path(path).replace_extension(".bin");
    if (!file_exists(path) && file_exists(other)) {
      fail(ExitCode::kNoInput, "{}: no such file, found only {} (convert it to safetensors)", path.native(),
           other.filename().native());
    }
    model.add_file(path);
  } else if (file_exists(path / kSingleFileName)) {
    if (file_exists(path / kIndexFileName))
      log_warning("{}: both {} and {} exist: the index is ignored", path.native(), kSingleFileName,
                  kIndexFileName);
    model.add_file(path / kSingleFileName);
  } else if (file_exists(path / kIndexFileName)) {
    index_path = path / kIndexFileName;
  } else {
    fail_no_weights(path);
  }
  if (!index_path.empty()) model.open_index(index_path);
  return model;
}

void SafetensorsModel::add_file(const fs::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(SafetensorsFile::open(path)));
  const SafetensorsFile& file = *files_.back();
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto [at, is_new] = tensors_.emplace(entry.name, Location{&file, &entry});
    if (!is_new)
      fail(ExitCode::kBadData, "{}: tensor '{}' is also in {}", path.native(), printable(entry.name),
           at->second.file->path().filename().native());
  }
}

void SafetensorsModel::open_index(const fs::path& path) {
  const std::string& origin = path.native();
  const Json index = parse_json(read_text_file(path, kMaxIndexBytes), origin);
  const std::map<std::string, std::string> weight_map = read_weight_map(index, origin);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  check_shard_numbers(shards, path.parent_path().empty() ? "." : path.parent_path(), origin);
  for (const std::string& shard : shards) {
    if (!file_exists(path.parent_path() / shard))
      fail(ExitCode::kNoInput, "{}: weight_map: the shard {} is missing", origin, printable(shard));
    add_file(path.parent_path() / shard);
  }
  int64_t total_bytes = 0;
  for (const auto& [name, location] : tensors_) total_bytes += location.entry->size_bytes;
  warn_about_index(weight_map, tensors_, origin);
  check_total_size(index, total_bytes, origin);
}

}  // namespace tessera
