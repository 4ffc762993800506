// Parsed answers of a hub. Nothing here trusts it: names that become paths and numbers that become sizes are
// checked.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Names in lower case. If a header is given twice, the last one counts.
using HttpHeaders = std::map<std::string, std::string>;

struct HubFile {
  std::string path;             // relative, without "." and ".."
  int64_t size_bytes = -1;      // -1: not known
  std::string blob_id = {};     // SHA-1 of the git blob; "" = not known
  std::string lfs_sha256 = {};  // "" = a file kept by git itself
  std::string xet_hash = {};
};

// Answer of /api/models/ID/revision/REVISION.
struct RepoInfo {
  std::string commit;
  bool has_files = false;
  std::vector<HubFile> files;  // "siblings"
};

// Error(kBadData) naming `origin` for what is not such an answer.
RepoInfo parse_repo_info(std::string_view text, const std::string& origin);
// Appends one page of /api/models/ID/tree/REVISION?recursive=true; folders are dropped.
void parse_tree_page(std::string_view text, const std::string& origin, std::vector<HubFile>* files);
// The names in the answer of /api/models/ID/refs (branches, tags, converts) or of /api/models?author=ORG.
// Empty if it is something else: they only serve suggestions.
std::vector<std::string> parse_ref_names(std::string_view text);
std::vector<std::string> parse_repo_ids(std::string_view text);

// huggingface_hub's CACHE/REPO/trees/COMMIT.json; nullopt if the text is not one of version 1. Files without
// blob_id or size cannot be written.
std::optional<std::vector<HubFile>> parse_tree_cache(std::string_view text);
std::string tree_cache_text(const std::vector<HubFile>& files);

// W/"abc" and "abc" as abc, as huggingface_hub names its blobs. nullopt if it cannot be the name of a file.
std::optional<std::string> normalized_etag(std::string_view header);
// The address of the next page in a Link header (RFC 8288); "" = this is the last one.
std::string next_page(std::string_view link_header);
// Retry-After in seconds, or of `ratelimit: "api";r=0;t=55` the 55.
std::optional<std::chrono::seconds> retry_after(const HttpHeaders& headers);

struct ContentRange {
  int64_t begin = 0;
  int64_t end = 0;     // exclusive
  int64_t total = -1;  // -1: not known
};
std::optional<ContentRange> parse_content_range(std::string_view header);

// A whole number that is not negative and below 2^62.
std::optional<int64_t> parse_size(std::string_view text);

// `text` is a commit, which is also the name of a folder: up to 64 letters and digits.
bool is_commit(std::string_view text);
// `path` stays below the folder it is relative to, and contains no control characters.
bool is_safe_path(std::string_view path);

}  // namespace tessera
