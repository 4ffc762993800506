#include "hub/hub_client.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/name_hint.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr int kMaxRedirects = 10;
// Pages have 1,000 files each, as the Hub's have.
constexpr int kMaxPages = 1'000;
constexpr int kMaxEmptyPages = 10;
// For what is no file: this many times as long as for a connection.
constexpr int kTimeoutsPerAnswer = 30;
// An attempt that brings less is one without success: a server may send byte by byte.
constexpr int64_t kMinProgressBytes = 4 << 10;

bool is_transient_status(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

bool is_redirect(int status) { return status >= 300 && status < 400; }

std::string escaped_component(const std::string& text) {
  std::string out = escaped_path(text);
  for (size_t at = 0; (at = out.find('/', at)) != std::string::npos;) out.replace(at, 1, "%2F");
  return out;
}

}  // namespace

// A connection taken from the idle ones, returned at the end.
class HubClient::Lease {
 public:
  explicit Lease(HubClient* client) : client_(client) {
    const std::lock_guard lock(client->mutex_);
    if (!client->idle_.empty()) {
      connection_ = std::move(client->idle_.back());
      client->idle_.pop_back();
    }
    if (!connection_) connection_ = std::make_unique<HttpConnection>(client->settings_);
  }
  ~Lease() {
    const std::lock_guard lock(client_->mutex_);
    client_->idle_.push_back(std::move(connection_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  HttpConnection* operator->() { return connection_.get(); }

 private:
  HubClient* client_;
  std::unique_ptr<HttpConnection> connection_;
};

// Waits between attempts, longer each time, and gives up at the end.
class HubClient::Retries {
 public:
  Retries(const HubSettings& settings, int max) : settings_(settings), max_(max) {}

  void restart() { count_ = 0; }
  // After an answer that may pass; false: give up.
  bool wait_after(const HttpAnswer& answer, const std::string& url) {
    if (++count_ > max_) return false;
    const std::optional<std::chrono::seconds> wanted = retry_after(answer.headers);
    if (!wanted) {
      back_off();
      return true;
    }
    if (*wanted > settings_.max_retry_after) return false;
    log_warning("{} answers {}: trying again in {} s", printable(origin_of(url), 200), answer.status,
                wanted->count());
    std::this_thread::sleep_for(*wanted);
    return true;
  }
  void wait_after(const HttpFailure& failure) {
    if (!failure.is_transient() || ++count_ > max_) throw HubUnavailable(ExitCode::kIoError, failure.what());
    back_off();
  }

 private:
  void back_off() const {
    std::this_thread::sleep_for(settings_.first_retry * (1 << std::min(count_ - 1, 3)));
  }

  const HubSettings& settings_;
  int max_;
  int count_ = 0;
};

HubClient::HubClient(const HubSettings& settings, RepoName repo)
    : settings_(settings), repo_(std::move(repo)) {}

std::string HubClient::api_url(const std::string& rest) const {
  return fmt::format("{}/api/{}{}", settings_.endpoint,
                     repo_.type == RepoType::kModel ? "models" : "datasets", rest);
}

std::string HubClient::resolve_url(const std::string& commit, const std::string& path) const {
  return fmt::format("{}/{}{}/resolve/{}/{}", settings_.endpoint,
                     repo_.type == RepoType::kModel ? "" : "datasets/", repo_.id, commit, escaped_path(path));
}

std::string HubClient::token_for(const std::string& url) const {
  return origin_of(url) == origin_of(settings_.endpoint) ? settings_.token : "";
}

// Follows redirects within the server. A HEAD request ends at one that says what the file is.
HttpAnswer HubClient::get(std::string url, bool is_head, const std::string& path, int max_retries) {
  Retries retries(settings_, max_retries);
  for (int num_redirects = 0;;) {
    HttpAnswer answer;
    try {
      answer = Lease(this)->perform({.url = url,
                                     .is_head = is_head,
                                     .token = token_for(url),
                                     .range = "",
                                     .limit = kTimeoutsPerAnswer * settings_.timeout});
    } catch (const HttpFailure& failure) {
      retries.wait_after(failure);
      continue;
    }
    if (answer.status == 200) return answer;
    if (is_transient_status(answer.status) && retries.wait_after(answer, url)) continue;
    if (!is_redirect(answer.status)) fail_status(answer, path);
    const std::string target = redirected_url(url, answer.header("location"));
    if (target.empty() || ++num_redirects > kMaxRedirects)
      fail(ExitCode::kBadData, "{}: answers with a redirect that leads nowhere", printable(url, 200));
    answer.headers["location"] = target;
    const bool is_elsewhere = origin_of(target) != origin_of(url);
    if (is_head && (is_elsewhere || answer.headers.contains("x-linked-etag"))) return answer;
    url = target;
  }
}

RepoInfo HubClient::repo_info() {
  // Without a network, the cache should serve soon.
  const int max_retries = std::min(settings_.max_retries, 2);
  const std::string url =
      api_url(fmt::format("/{}/revision/{}", repo_.id, escaped_component(repo_.revision)));
  return parse_repo_info(get(url, false, "", max_retries).body, printable(url, 200));
}

std::vector<HubFile> HubClient::list_tree(const std::string& commit) {
  std::string url = api_url(fmt::format("/{}/tree/{}?recursive=true", repo_.id, commit));
  std::vector<HubFile> files;
  std::set<std::string> urls, paths;
  int num_empty = 0;
  for (int page = 0; !url.empty(); ++page) {
    const std::string origin = printable(url, 200);
    if (!urls.insert(url).second || page == kMaxPages || num_empty == kMaxEmptyPages) {
      fail(ExitCode::kBadData, "{}: its list of files does not end: {} so far{}", origin,
           count_of(page, "page"),
           page < kMaxPages
               ? num_empty == kMaxEmptyPages ? ", the last of them empty" : ", and back to an earlier one"
               : "");
    }
    HttpAnswer answer;
    try {
      answer = get(url, false, "", settings_.max_retries);
    } catch (const Error& error) {
      if (page == 0 && error.code() == ExitCode::kNoInput) return {};
      throw;
    }
    const size_t before = files.size();
    parse_tree_page(answer.body, origin, &files);
    for (size_t i = before; i < files.size(); ++i) {
      if (!paths.insert(files[i].path).second)
        fail(ExitCode::kBadData, "{}: lists '{}' twice", origin, printable(files[i].path, 200));
    }
    num_empty = files.size() > before ? 0 : num_empty + 1;
    const std::string next = next_page(answer.header("link"));
    url = next.empty() ? "" : redirected_url(url, next);
  }
  return files;
}

FileSource HubClient::locate(const std::string& commit, const std::string& path) {
  const std::string url = resolve_url(commit, path);
  const HttpAnswer answer = get(url, true, path, settings_.max_retries);
  const std::string linked_etag = answer.header("x-linked-etag");
  const std::optional<std::string> etag =
      normalized_etag(linked_etag.empty() ? answer.header("etag") : linked_etag);
  const std::string linked_size = answer.header("x-linked-size");
  const std::optional<int64_t> size = parse_size(
      linked_size.empty() && !is_redirect(answer.status) ? answer.header("content-length") : linked_size);
  if (!etag || !size)
    fail(ExitCode::kBadData,
         "{}: expected an answer with an ETag and a size, found none: is HF_ENDPOINT a Hugging Face hub?",
         printable(url, 200));
  const std::string location = answer.header("location");
  return {path, *etag, *size, location.empty() ? url : location};
}

// One range of a file, over as many answers as it takes.
class HubClient::RangeTransfer {
 public:
  RangeTransfer(int64_t begin, int64_t end, bool is_whole, const Sink& sink)
      : begin_(begin), at_(begin), end_(end), is_whole_(is_whole), sink_(sink) {}

  std::string range() const { return is_whole_ && at_ == 0 ? "" : fmt::format("{}-{}", at_, end_ - 1); }
  void start_answer() {
    skip_ = 0;
    is_first_ = true;
  }
  bool take(const HttpAnswer& answer, std::string_view data, const std::string& url) {
    if (std::exchange(is_first_, false) && !accepts(answer, url)) return false;
    const size_t skipped = std::min(data.size(), static_cast<size_t>(skip_));
    skip_ -= static_cast<int64_t>(skipped);
    data = data.substr(skipped, static_cast<size_t>(end_ - at_));
    if (data.empty()) return at_ < end_;
    at_ += std::ssize(data);
    num_new_ += std::ssize(data);
    is_stopped_ = !sink_(data);
    return !is_stopped_;
  }
  bool is_done() const { return at_ == end_ || is_stopped_; }
  bool lacks_ranges() const { return lacks_ranges_; }
  void give_up_ranges() { lacks_ranges_ = true; }
  // Whether enough has arrived since the last call to keep trying.
  bool made_progress() { return std::exchange(num_new_, 0) >= kMinProgressBytes; }

 private:
  bool accepts(const HttpAnswer& answer, const std::string& url) {
    if (answer.status == 206) {
      const std::optional<ContentRange> range = parse_content_range(answer.header("content-range"));
      if (range && range->begin == at_) return true;
      throw HttpFailure(
          fmt::format("{}: asked for bytes from {}, found the range '{}'", printable(origin_of(url), 200),
                      at_, printable(answer.header("content-range"))),
          "", true);
    }
    if (begin_ > 0) {
      lacks_ranges_ = true;
      return false;
    }
    skip_ = at_;  // the whole file again
    return true;
  }

  int64_t begin_;
  int64_t at_;
  int64_t end_;
  bool is_whole_;
  const Sink& sink_;
  int64_t skip_ = 0;
  bool is_first_ = true;
  int64_t num_new_ = 0;
  bool is_stopped_ = false;
  bool lacks_ranges_ = false;
};

bool HubClient::fetch(const FileSource& source, const std::string& commit, int64_t begin, int64_t end,
                      const Sink& sink) {
  RangeTransfer transfer(begin, end, begin == 0 && end == source.size_bytes, sink);
  Retries retries(settings_, settings_.max_retries);
  Retries signatures(settings_, settings_.max_retries);
  std::string url = source.url;
  int num_redirects = 0;
  while (!transfer.is_done()) {
    HttpAnswer answer;
    transfer.start_answer();
    try {
      answer = Lease(this)->perform(
          {.url = url, .is_head = false, .token = token_for(url), .range = transfer.range()},
          [&](const HttpAnswer& head, std::string_view data) { return transfer.take(head, data, url); });
      if (transfer.made_progress()) retries.restart();
      const bool has_body = answer.status == 200 || answer.status == 206;
      if (has_body && !transfer.is_done() && !transfer.lacks_ranges())
        throw HttpFailure(
            fmt::format("{}: {}: the answer is too short", printable(origin_of(url), 200), source.path), "",
            true);
    } catch (const HttpFailure& failure) {
      if (transfer.made_progress()) retries.restart();
      retries.wait_after(failure);
      continue;
    }
    if (answer.status == 416 && begin > 0) transfer.give_up_ranges();
    if (transfer.lacks_ranges()) return false;
    if (transfer.is_done()) break;
    if (is_transient_status(answer.status) && retries.wait_after(answer, url)) continue;
    const bool is_storage = origin_of(url) != origin_of(settings_.endpoint);
    if (is_redirect(answer.status) && ++num_redirects <= kMaxRedirects) {
      url = redirected_url(url, answer.header("location"));
    } else if (is_storage && (answer.status == 401 || answer.status == 403) &&
               signatures.wait_after(answer, url)) {
      url = locate(commit, source.path).url;  // a signed address expires
    } else {
      fail_status(answer, source.path);
    }
  }
  return true;
}

}  // namespace tessera
