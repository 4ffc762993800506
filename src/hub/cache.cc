#include "hub/cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTreeBytes = int64_t{256} << 20;
constexpr const char* kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by huggingface_hub.\n"
    "# For information about cache directory tags, see:\n"
    "#\thttps://bford.info/cachedir/\n";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string folder_name(const RepoName& repo) {
  std::string name = repo.id;
  name.replace(name.find('/'), 1, "--");
  return (repo.type == RepoType::kModel ? "models--" : "datasets--") + name;
}

// The text of a small file; nullopt if it cannot be read.
std::optional<std::string> read_if_there(const fs::path& path, int64_t max_bytes) {
  try {
    if (is_there(path)) return read_text_file(path, max_bytes);
  } catch (const Error&) {
    // Written by another program: as good as missing.
  }
  return std::nullopt;
}

}  // namespace

RepoCache::RepoCache(fs::path cache, const RepoName& repo)
    : cache_(std::move(cache)), folder_(cache_ / folder_name(repo)) {}

fs::path RepoCache::lock(const std::string& name) const {
  const fs::path folder = cache_ / ".locks" / folder_.filename();
  create_folder(folder);
  return folder / (name + ".lock");
}

std::optional<std::string> RepoCache::cached_commit(const std::string& revision) const {
  if (std::optional<std::string> commit = read_if_there(folder_ / "refs" / revision, 1000)) {
    while (commit->ends_with('\n')) commit->pop_back();
    if (is_commit(*commit)) return commit;
  }
  if (is_commit(revision) && is_there(snapshot(revision))) return revision;
  return std::nullopt;
}

bool RepoCache::has_file(const std::string& commit, const std::string& path) const {
  return is_there(snapshot(commit) / path);
}

std::vector<HubFile> RepoCache::snapshot_files(const std::string& commit) const {
  std::vector<HubFile> files;
  const fs::path root = snapshot(commit);
  std::error_code error;
  for (fs::recursive_directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code dangling;
    if (entry->is_regular_file(dangling)) {
      const int64_t size = static_cast<int64_t>(entry->file_size(dangling));
      files.push_back({.path = entry->path().lexically_relative(root).string(), .size_bytes = size});
    }
  }
  std::sort(files.begin(), files.end(), [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  return files;
}

std::optional<std::vector<HubFile>> RepoCache::read_tree(const std::string& commit) const {
  const std::optional<std::string> text =
      read_if_there(folder_ / "trees" / (commit + ".json"), kMaxTreeBytes);
  return text ? parse_tree_cache(*text) : std::nullopt;
}

void RepoCache::write_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const fs::path path = folder_ / "refs" / revision;
  if (read_if_there(path, 1000) == commit) return;
  create_folder(path.parent_path());
  write_text_file(path, commit);
}

void RepoCache::write_tree(const std::string& commit, const std::vector<HubFile>& files) const {
  const fs::path path = folder_ / "trees" / (commit + ".json");
  const bool is_complete = std::all_of(files.begin(), files.end(), [](const HubFile& file) {
    return file.size_bytes >= 0 && !file.blob_id.empty();
  });
  if (!is_complete || is_there(path)) return;
  create_folder(path.parent_path());
  write_text_file(path, tree_cache_text(files));
}

void RepoCache::link_file(const std::string& commit, const std::string& path, const std::string& etag) const {
  const fs::path link = snapshot(commit) / path;
  if (is_there(link)) return;
  create_folder(link.parent_path());
  const fs::path target = blob(etag).lexically_relative(link.parent_path());
  std::error_code ignored;
  fs::remove(link, ignored);  // one that leads nowhere
  if (::symlink(target.c_str(), link.c_str()) == 0) return;
  const int error = errno;
  if (error == EEXIST && is_there(link)) return;
  if (error != EPERM && error != EOPNOTSUPP && error != ENOSYS) fail_write(link, "link", error);
  if (::rename(blob(etag).c_str(), link.c_str()) != 0) fail_write(link, "rename", errno);
}

void RepoCache::create() const {
  create_folder(folder_ / "blobs");
  const fs::path tag = cache_ / "CACHEDIR.TAG";
  if (!is_there(tag)) write_text_file(tag, kCacheTag);
}

}  // namespace tessera
