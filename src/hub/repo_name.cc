#include "hub/repo_name.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "base/text.h"

namespace tessera {
namespace {

// The Hub allows 96 characters in each part.
constexpr size_t kMaxPartBytes = 96;
constexpr size_t kMaxRevisionBytes = 250;

constexpr std::array<std::string_view, 27> kFileEndings = {
    ".json", ".jsonl", ".ndjson", ".txt", ".text", ".md",    ".csv", ".tsv",   ".parquet",
    ".gz",   ".zst",   ".xz",     ".bz2", ".zip",  ".tar",   ".bin", ".pth",   ".pt",
    ".gguf", ".onnx",  ".yaml",   ".yml", ".py",   ".jinja", ".git", ".arrow", ".safetensors"};

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

bool is_part(std::string_view part) {
  const auto is_edge = [](char c) { return c == '-' || c == '.'; };
  return is_word(part) && part.size() <= kMaxPartBytes && !is_edge(part.front()) && !is_edge(part.back()) &&
         part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Takes what precedes the first of `ends` off the front of `rest`.
std::string_view take_until(std::string_view ends, std::string_view* rest) {
  const std::string_view taken = rest->substr(0, rest->find_first_of(ends));
  rest->remove_prefix(taken.size());
  return taken;
}

std::string unescape_slashes(std::string_view text) {
  std::string out(text);
  for (size_t at; (at = out.find("%2F")) != std::string::npos;) out.replace(at, 3, "/");
  return out;
}

// Takes "@revision" off the front of `rest`, if it begins with '@'.
bool take_revision(std::string_view* rest, std::string* revision) {
  if (!rest->starts_with('@')) return true;
  rest->remove_prefix(1);
  size_t num_parts = 1;
  if (rest->starts_with("refs/pr/") || rest->starts_with("refs/convert/")) num_parts = 3;
  std::string_view from = *rest;
  for (size_t i = 0; i < num_parts; ++i) {
    if (i > 0) rest->remove_prefix(std::min<size_t>(1, rest->size()));
    if (take_until(":/", rest).empty()) return false;
  }
  from = from.substr(0, from.size() - rest->size());
  *revision = unescape_slashes(from);
  return is_revision_name(*revision);
}

bool take_repo(std::string_view* rest, RepoName* repo) {
  const std::string_view whole = *rest;
  take_until("/", rest);
  if (rest->empty()) return false;
  rest->remove_prefix(1);
  take_until("@:/", rest);
  repo->id = whole.substr(0, whole.size() - rest->size());
  return is_repo_id(repo->id) && take_revision(rest, &repo->revision);
}

}  // namespace

std::string RepoName::text() const { return revision == "main" ? id : id + "@" + revision; }

bool is_repo_id(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return false;
  const std::string_view name = text.substr(slash + 1);
  const std::string lower = lower_case(std::string(name));
  return is_part(text.substr(0, slash)) && is_part(name) &&
         std::none_of(kFileEndings.begin(), kFileEndings.end(),
                      [&](std::string_view ending) { return lower.ends_with(ending); });
}

bool is_revision_name(std::string_view text) {
  if (text.size() > kMaxRevisionBytes) return false;
  const std::string_view part = take_until("/", &text);
  if (!is_word(part) || part == "." || part == "..") return false;
  return text.empty() || is_revision_name(text.substr(1));
}

std::optional<RepoName> hub_model_name(const std::string& text) {
  RepoName repo;
  std::string_view rest = text;
  if (!take_repo(&rest, &repo) || !rest.empty() || exists(text)) return std::nullopt;
  return repo;
}

std::optional<DatasetName> hub_dataset_name(const std::string& text) {
  DatasetName dataset;
  dataset.repo.type = RepoType::kDataset;
  std::string_view rest = text;
  if (!take_repo(&rest, &dataset.repo)) return std::nullopt;
  if (rest.starts_with(':')) {
    rest.remove_prefix(1);
    dataset.config = take_until("/", &rest);
    if (dataset.config.empty()) return std::nullopt;
  }
  if (rest.starts_with('/')) {
    dataset.split = rest.substr(1);
    if (!is_word(dataset.split)) return std::nullopt;
    rest = {};
  }
  const bool is_file = std::any_of(kFileEndings.begin(), kFileEndings.end(),
                                   [&](std::string_view ending) { return dataset.split.ends_with(ending); });
  if (!rest.empty() || is_file || exists(text)) return std::nullopt;
  return dataset;
}

}  // namespace tessera
