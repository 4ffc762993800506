// A commit of a repository: the names of its files, and the files that are wanted in the cache.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/hub.h"
#include "hub/hub_client.h"

namespace tessera {

class Snapshot {
 public:
  // Asks the Hub for the commit of the revision and its files. Offline, or if the Hub is unavailable (with a
  // warning), both are taken from the cache; an error if it has none. `settings` outlives this.
  Snapshot(const RepoName& repo, const HubSettings& settings, HubProgressCallback progress);

  const RepoName& repo() const { return client_.repo(); }
  const std::string& commit() const { return commit_; }
  const std::vector<HubFile>& files() const { return files_; }
  // Only the files in the cache are known: there may be others.
  bool is_partial() const { return is_partial_; }
  std::filesystem::path folder() const { return cache_.snapshot(commit_); }

  // Whether the file is not in folder() and cannot be had, since the Hub cannot be asked.
  bool lacks(const std::string& path) const {
    return !offline_reason_.empty() && !cache_.has_file(commit_, path);
  }

  // Returns once all these files, of files(), are in folder(). One process of a machine downloads; others
  // wait for it.
  void fetch(const std::vector<std::string>& paths);

 private:
  class Meter;

  void open_cached(const std::string& reason);
  std::vector<std::string> missing(const std::vector<std::string>& paths) const;
  void download(const std::vector<std::string>& wanted, Meter& meter);
  void check_space(const std::vector<FileSource>& sources) const;
  // body(index) for all of them, on several threads; rethrows the first exception.
  void for_each(int64_t count, const std::function<void(int64_t)>& body) const;

  const HubSettings& settings_;
  HubProgressCallback progress_;
  RepoCache cache_;
  HubClient client_;
  std::string commit_;
  std::vector<HubFile> files_;
  bool is_partial_ = false;
  std::string offline_reason_;  // "" = the Hub can be asked
};

}  // namespace tessera
