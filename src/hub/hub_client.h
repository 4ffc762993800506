// Requests to a hub: its answers, or an Error that says in one line what is wrong and what to do.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "hub/http.h"
#include "hub/hub_settings.h"
#include "hub/repo_name.h"

namespace tessera {

// The location of a file's content and the checks it must pass.
struct FileSource {
  std::string path;
  std::string etag;
  int64_t size_bytes = 0;
  std::string url;  // after redirects; may be signed and expire
};

// The Hub refused, could not be reached or answered with a server error: what is in the cache may serve
// instead.
class HubUnavailable : public Error {
  using Error::Error;
};

// Retries what may pass: 5xx, 408, 429 (after the time it names), broken and stalled connections, short
// bodies. The token goes to the endpoint's own host only. Thread-safe.
class HubClient {
 public:
  HubClient(const HubSettings& settings, RepoName repo);

  const RepoName& repo() const { return repo_; }
  const HubSettings& settings() const { return settings_; }

  RepoInfo repo_info();
  // The files of a commit, with sizes; empty if the server lists no trees.
  std::vector<HubFile> list_tree(const std::string& commit);
  FileSource locate(const std::string& commit, const std::string& path);

  using Sink = std::function<bool(std::string_view)>;
  // Passes bytes [begin, end) of a file on, in order; false from the sink ends it. Returns false, without
  // having passed on anything, if begin > 0 and the server answers with the whole file or with 416.
  bool fetch(const FileSource& source, const std::string& commit, int64_t begin, int64_t end,
             const Sink& sink);

 private:
  class Lease;
  class Retries;
  class RangeTransfer;

  HttpAnswer get(std::string url, bool is_head, const std::string& path, int max_retries);
  [[noreturn]] void fail_status(const HttpAnswer& answer, const std::string& path);
  [[noreturn]] void fail_refused(const HttpAnswer& answer);
  [[noreturn]] void fail_not_found(const HttpAnswer& answer, const std::string& path);
  // "; did you mean 'x'?", from a list that the Hub gives; "" if it gives none.
  std::string hint(const std::string& name, const std::string& list_url,
                   std::vector<std::string> (*parse)(std::string_view));
  std::string nearest_repository();
  const char* kind() const;
  std::string api_url(const std::string& rest) const;
  std::string resolve_url(const std::string& commit, const std::string& path) const;
  std::string token_for(const std::string& url) const;

  const HubSettings& settings_;
  RepoName repo_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<HttpConnection>> idle_;
};

}  // namespace tessera
