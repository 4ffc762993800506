// For tests: a server that behaves like the Hugging Face Hub, and its storage on a port of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/hub_settings.h"
#include "hub/repo_name.h"

namespace tessera {

class HubServer {
 public:
  struct Request {
    bool is_storage = false;
    std::string method;
    std::string target;                          // path and query
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;

    std::string header(const std::string& name) const;
  };
  struct Reply {
    int status = 200;
    std::vector<std::pair<std::string, std::string>> headers;
    std::shared_ptr<const std::string> body = std::make_shared<const std::string>();
    bool takes_ranges = false;
    int64_t cut_after_bytes = -1;      // of the body, then the connection is closed
    bool stalls = false;               // after cut_after_bytes: stays open and silent
    int64_t max_bytes_per_second = 0;  // 0 = as fast as it goes
  };
  // Asked about every request with the reply that would be sent; may change it. Called by several threads.
  using Hook = std::function<void(const Request&, Reply*)>;

  struct Repo {
    RepoName name;
    std::string commit = "1234567890123456789012345678901234567890";
    std::map<std::string, std::string> files;
    std::string token;      // needed to see it
    bool is_gated = false;  // listed for all, files only with `token`
  };

  HubServer();
  ~HubServer();
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  void add(Repo repo);
  void set_hook(Hook hook);
  void set_page_size(size_t num_files) { page_size_ = num_files; }
  std::string endpoint() const;
  std::string storage() const;
  // For this server, with a cache in `cache` and quick retries.
  HubSettings settings(const std::filesystem::path& cache) const;

  std::vector<Request> requests() const;
  // The number of these requests whose target contains the text and, if given, have this method.
  int64_t count(std::string_view text, std::string_view method = "") const;
  // Bytes of bodies sent by the storage.
  int64_t storage_bytes() const { return storage_bytes_; }

 private:
  class Listener;
  struct Content {
    std::shared_ptr<const std::string> body;
    std::string sha256;
    std::string git_sha1;
  };

  Reply answer(const Request& request);
  Reply answer_api(const Request& request);
  Reply answer_list(const Request& request, const Repo& repo, const std::string& rest);
  Reply answer_resolve(const Request& request);
  Reply answer_storage(const Request& request);
  const Repo* find(RepoType type, const std::string& id) const;

  std::vector<Repo> repos_;
  std::map<std::string, Content> contents_;  // by COMMIT/PATH
  Hook hook_;
  size_t page_size_ = 1000;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::atomic<int64_t> storage_bytes_ = 0;
  std::unique_ptr<Listener> hub_;
  std::unique_ptr<Listener> storage_;
};

// The names under which the Hub keeps content.
std::string sha256_of(std::string_view content);
std::string git_sha1_of(std::string_view content);

}  // namespace tessera
