// The cache of huggingface_hub on disk, of one repository:
//   CACHE/models--org--name/blobs/ETAG                 the content of a file; ETAG.incomplete while it is
//   downloaded CACHE/models--org--name/snapshots/COMMIT/PATH      a link to ../../blobs/ETAG
//   CACHE/models--org--name/refs/REVISION              the commit of a branch or tag, without a newline
//   CACHE/models--org--name/trees/COMMIT.json          the files of a commit
//   CACHE/.locks/models--org--name/ETAG.lock           locked (flock) while its blob is downloaded
// Source: huggingface_hub/file_download.py and its guide "Understand caching".
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hub/hub_answers.h"
#include "hub/repo_name.h"

namespace tessera {

class RepoCache {
 public:
  RepoCache(std::filesystem::path cache, const RepoName& repo);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }
  std::filesystem::path blob(const std::string& etag) const { return folder_ / "blobs" / etag; }
  // The part that has arrived so far: always a prefix of the file without holes, to which any version of
  // huggingface_hub that resumes downloads can append.
  std::filesystem::path incomplete(const std::string& etag) const {
    return folder_ / "blobs" / (etag + ".incomplete");
  }
  // Creates the folder of the lock.
  std::filesystem::path lock(const std::string& name) const;

  // The commit of the revision when it was last asked for, or the revision itself if there is a snapshot of
  // this name.
  std::optional<std::string> cached_commit(const std::string& revision) const;
  bool has_file(const std::string& commit, const std::string& path) const;
  // All files of a snapshot, by path.
  std::vector<HubFile> snapshot_files(const std::string& commit) const;
  std::optional<std::vector<HubFile>> read_tree(const std::string& commit) const;

  // These do nothing if it is already so, which keeps a cache on a read-only disk usable.
  void write_ref(const std::string& revision, const std::string& commit) const;
  void write_tree(const std::string& commit, const std::vector<HubFile>& files) const;
  // Makes the snapshot's file a link to the blob; on a file system without links, moves the blob there.
  void link_file(const std::string& commit, const std::string& path, const std::string& etag) const;
  // The folders, and CACHEDIR.TAG, by which backups skip the cache.
  void create() const;

 private:
  std::filesystem::path cache_;
  std::filesystem::path folder_;
};

}  // namespace tessera
