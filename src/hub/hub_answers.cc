#include "hub/hub_answers.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/json.h"

namespace tessera {
namespace {

constexpr size_t kMaxFiles = 1'000'000;
constexpr size_t kMaxPathBytes = 4096;
constexpr size_t kMaxNameBytes = 255;  // of one name in a file system
constexpr int64_t kMaxSizeBytes = int64_t{1} << 62;

bool is_hex(std::string_view text, size_t size) {
  return text.size() == size && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string hex_or_empty(const JsonNode& node, size_t size) {
  std::string text = node.string_or("");
  if (!text.empty() && !is_hex(text, size)) node.expected(fmt::format("{} hexadecimal digits", size));
  return text;
}

std::string safe_path(const JsonNode& node) {
  if (!is_safe_path(node.string())) node.expected("a relative path");
  return node.string();
}

void check_file_count(size_t count, const std::string& origin) {
  if (count > kMaxFiles) fail(ExitCode::kBadData, "{}: lists more than {} files", origin, kMaxFiles);
}

HubFile file_of_tree(const JsonNode& entry) {
  HubFile file;
  file.path = safe_path(entry["path"]);
  file.size_bytes = entry["size"].integer(0, kMaxSizeBytes);
  file.blob_id = hex_or_empty(entry["oid"], 40);
  if (const JsonNode lfs = entry["lfs"]; !lfs.is_null()) {
    file.lfs_sha256 = hex_or_empty(lfs["oid"], 64);
    file.size_bytes = lfs["size"].integer(0, kMaxSizeBytes);
  }
  file.xet_hash = hex_or_empty(entry["xetHash"], 64);
  return file;
}

// The JSON of an answer that may be missing or wrong without harm.
Json parse_optional(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const Error&) {
    return nullptr;
  }
}

void append_names(const Json& list, const char* key, std::vector<std::string>* out) {
  if (!list.is_array()) return;
  for (const Json& item : list) {
    const auto name = item.is_object() ? item.find(key) : item.end();
    if (item.is_object() && name != item.end() && name->is_string()) out->push_back(name->get<std::string>());
  }
}

}  // namespace

bool is_commit(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes || path.front() == '/' || path.back() == '/' ||
      !is_valid_utf8(path))
    return false;
  if (std::any_of(path.begin(), path.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; }))
    return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxNameBytes) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

RepoInfo parse_repo_info(std::string_view text, const std::string& origin) {
  const Json document = parse_json(text, origin);
  const JsonNode root(document, origin);
  RepoInfo info;
  info.commit = root["sha"].string();
  if (!is_commit(info.commit)) root["sha"].expected("a commit");
  info.has_files = root["siblings"].is_list();
  if (!info.has_files) return info;
  const std::vector<JsonNode> siblings = root["siblings"].list();
  check_file_count(siblings.size(), origin);
  for (const JsonNode& sibling : siblings) info.files.emplace_back().path = safe_path(sibling["rfilename"]);
  return info;
}

void parse_tree_page(std::string_view text, const std::string& origin, std::vector<HubFile>* files) {
  const Json document = parse_json(text, origin);
  for (const JsonNode& entry : JsonNode(document, origin).list()) {
    if (entry["type"].string() == "file") files->push_back(file_of_tree(entry));
  }
  check_file_count(files->size(), origin);
}

std::vector<std::string> parse_ref_names(std::string_view text) {
  std::vector<std::string> names;
  const Json refs = parse_optional(text);
  if (!refs.is_object()) return names;
  for (const char* const kind : {"branches", "tags"}) append_names(refs.value(kind, Json()), "name", &names);
  append_names(refs.value("converts", Json()), "ref", &names);
  return names;
}

std::vector<std::string> parse_repo_ids(std::string_view text) {
  std::vector<std::string> ids;
  append_names(parse_optional(text), "id", &ids);
  return ids;
}

std::optional<std::vector<HubFile>> parse_tree_cache(std::string_view text) {
  try {
    const std::string origin;
    const Json document = parse_json(text, origin);
    const JsonNode root(document, origin);
    if (root["format_version"].integer() != 1) return std::nullopt;
    std::vector<HubFile> files;
    for (const auto& [path, entry] : root["files"].object().items()) {
      const JsonNode node(entry, origin);
      if (!is_safe_path(path)) return std::nullopt;
      files.push_back({.path = path,
                       .size_bytes = node["size"].integer(0, kMaxSizeBytes),
                       .blob_id = hex_or_empty(node["blob_id"], 40),
                       .lfs_sha256 = hex_or_empty(node["lfs_sha256"], 64),
                       .xet_hash = hex_or_empty(node["xet_hash"], 64)});
    }
    return files;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string tree_cache_text(const std::vector<HubFile>& files) {
  Json entries = Json::object();  // sorted by path
  for (const HubFile& file : files) {
    Json& entry = entries[file.path];
    entry = {{"size", file.size_bytes}, {"blob_id", file.blob_id}};
    if (!file.lfs_sha256.empty()) {
      entry["lfs_sha256"] = file.lfs_sha256;
      entry["lfs_size"] = file.size_bytes;
    }
    if (!file.xet_hash.empty()) entry["xet_hash"] = file.xet_hash;
  }
  return Json{{"format_version", 1}, {"files", std::move(entries)}}.dump(1);
}

std::optional<std::string> normalized_etag(std::string_view header) {
  while (header.starts_with('W') || header.starts_with('/')) header.remove_prefix(1);
  while (header.starts_with('"')) header.remove_prefix(1);
  while (header.ends_with('"')) header.remove_suffix(1);
  const bool is_name =
      is_safe_path(header) && header.find('/') == std::string_view::npos && header.size() <= 200;
  return is_name ? std::optional<std::string>(header) : std::nullopt;
}

std::string next_page(std::string_view link_header) {
  while (!link_header.empty()) {
    const size_t open = link_header.find('<');
    const size_t close = link_header.find('>', open);
    if (open == std::string_view::npos || close == std::string_view::npos) return "";
    const std::string_view address = link_header.substr(open + 1, close - open - 1);
    link_header.remove_prefix(close + 1);
    const std::string_view parameters = link_header.substr(0, link_header.find('<'));
    const size_t rel = parameters.find("rel=");
    if (rel != std::string_view::npos) {
      const std::string_view value = parameters.substr(rel + 4);
      if (value.starts_with("next") || value.starts_with("\"next\"")) return std::string(address);
    }
  }
  return "";
}

std::optional<std::chrono::seconds> retry_after(const HttpHeaders& headers) {
  constexpr int64_t kMaxSeconds = 1'000'000;
  const auto seconds_of = [kMaxSeconds](std::string_view text) -> std::optional<std::chrono::seconds> {
    const std::optional<int64_t> seconds = parse_size(text);
    if (!seconds) return std::nullopt;
    return std::chrono::seconds(std::min(*seconds, kMaxSeconds));
  };
  if (const auto limit = headers.find("ratelimit"); limit != headers.end()) {
    std::string_view text = limit->second;
    const size_t time = text.find("t=");
    if (text.find("r=0") != std::string_view::npos && time != std::string_view::npos) {
      text.remove_prefix(time + 2);
      return seconds_of(text.substr(0, text.find_first_not_of("0123456789")));
    }
  }
  const auto header = headers.find("retry-after");
  return header == headers.end() ? std::nullopt : seconds_of(header->second);
}

std::optional<int64_t> parse_size(std::string_view text) {
  const std::optional<int64_t> value = parse_integer(text);
  return value && *value >= 0 && *value < kMaxSizeBytes ? value : std::nullopt;
}

std::optional<ContentRange> parse_content_range(std::string_view header) {
  constexpr std::string_view kUnit = "bytes ";
  if (!header.starts_with(kUnit)) return std::nullopt;
  header.remove_prefix(kUnit.size());
  const size_t dash = header.find('-');
  const size_t slash = header.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return std::nullopt;
  const std::optional<int64_t> first = parse_size(header.substr(0, dash));
  const std::optional<int64_t> last = parse_size(header.substr(dash + 1, slash - dash - 1));
  const std::optional<int64_t> total = parse_size(header.substr(slash + 1));
  const bool has_total = header.substr(slash + 1) != "*";
  if (!first || !last || *last < *first || (has_total && (!total || *last >= *total))) return std::nullopt;
  return ContentRange{*first, *last + 1, has_total ? *total : -1};
}

}  // namespace tessera
