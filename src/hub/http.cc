#include "hub/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <exception>
#include <memory>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr size_t kMaxBodyBytes = size_t{64} << 20;
constexpr size_t kMaxHeaders = 1000;
constexpr size_t kMaxHeaderBytes = size_t{256} << 10;
constexpr long kReceiveBytes = 512 << 10;  // the most that libcurl allows

void initialise_curl() {
  static const CURLcode status = curl_global_init(CURL_GLOBAL_DEFAULT);
  TESSERA_CHECK(status == CURLE_OK, "libcurl: {}", curl_easy_strerror(status));
}

template <typename T>
void set_option(CURL* curl, CURLoption option, T value) {
  const CURLcode status = curl_easy_setopt(curl, option, value);
  TESSERA_CHECK(status == CURLE_OK, "libcurl option {}: {}", static_cast<int>(option),
                curl_easy_strerror(status));
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

[[noreturn]] void fail_transfer(CURLcode code, const std::string& detail, const std::string& url,
                                const HubSettings& settings) {
  const std::string where = printable(origin_of(url), 200);
  const bool is_endpoint = origin_of(url) == origin_of(settings.endpoint);
  const std::string what = printable(detail.empty() ? curl_easy_strerror(code) : detail, 200);
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      throw HttpFailure(fmt::format("{}: {}", where, what),
                        fmt::format("check the network{}; HF_HUB_OFFLINE=1 uses only what is in the cache",
                                    is_endpoint ? " and HF_ENDPOINT" : ""),
                        true);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
      throw HttpFailure(fmt::format("{}: no secure connection: {}", where, what),
                        "SSL_CERT_FILE names the file of trusted certificates (the package ca-certificates "
                        "has the usual ones)",
                        false);
    case CURLE_OPERATION_TIMEDOUT:
      throw HttpFailure(fmt::format("{}: no data for {} s, or hardly any", where, settings.timeout.count()),
                        "HF_HUB_DOWNLOAD_TIMEOUT sets how long to wait", true);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      throw HttpFailure(fmt::format("'{}': not an address of a web server", printable(url, 200)), "", false);
    default:
      throw HttpFailure(fmt::format("{}: the connection broke: {}", where, what), "", true);
  }
}

}  // namespace

struct HttpConnection::Transfer {
  HttpAnswer answer;
  const Sink* sink = nullptr;
  std::exception_ptr error;
  bool is_ended_by_sink = false;
  bool is_too_large = false;
  size_t header_bytes = 0;

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    auto& answer = transfer.answer;
    transfer.header_bytes += size;
    if (transfer.header_bytes > kMaxHeaderBytes) return 0;
    const std::string_view line(data, size);
    if (line.starts_with("HTTP/")) {  // another one follows 100 Continue
      answer.headers.clear();
      return size;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || answer.headers.size() >= kMaxHeaders) return size;
    answer.headers[lower_case(std::string(line.substr(0, colon)))] = trimmed(line.substr(colon + 1));
    return size;
  }

  size_t take(std::string_view data) {
    const bool is_wanted = answer.status == 200 || answer.status == 206;
    if (!is_wanted || !*sink) {
      is_too_large = answer.body.size() + data.size() > kMaxBodyBytes;
      if (is_too_large) return 0;
      answer.body += data;
      return data.size();
    }
    try {
      is_ended_by_sink = !(*sink)(answer, data);
    } catch (...) {
      error = std::current_exception();  // may not pass through libcurl
    }
    return error || is_ended_by_sink ? 0 : data.size();
  }
};

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpConnection::HttpConnection(const HubSettings& settings)
    : settings_(settings), detail_(CURL_ERROR_SIZE, '\0') {
  initialise_curl();
  curl_ = curl_easy_init();
  if (curl_ == nullptr) throw std::bad_alloc();
  const auto set = [this](CURLoption option, auto value) { set_option(curl_, option, value); };
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  // Parallel ranges need connections of their own.
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_USERAGENT, "tessera");
  set(CURLOPT_BUFFERSIZE, kReceiveBytes);
  const auto timeout_s = static_cast<long>(settings.timeout.count());
  set(CURLOPT_CONNECTTIMEOUT, timeout_s);
  set(CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(settings.min_bytes_per_second));
  set(CURLOPT_LOW_SPEED_TIME, timeout_s);
  set(CURLOPT_ERRORBUFFER, detail_.data());
  if (!settings.ca_file.empty()) set(CURLOPT_CAINFO, settings.ca_file.c_str());
}

HttpConnection::~HttpConnection() { curl_easy_cleanup(curl_); }

HttpAnswer HttpConnection::perform(const HttpRequest& request, const Sink& sink) {
  struct Context {
    CURL* curl;
    Transfer transfer;
  } context{curl_, {}};
  context.transfer.sink = &sink;
  detail_[0] = '\0';
  // Sizes and hashes are of files as they are.
  curl_slist* lines = curl_slist_append(nullptr, "Accept-Encoding: identity");
  if (!request.token.empty())
    lines = curl_slist_append(lines, ("Authorization: Bearer " + request.token).c_str());
  if (request.posted_json) lines = curl_slist_append(lines, "Content-Type: application/json");

  const auto set = [this](CURLoption option, auto value) { set_option(curl_, option, value); };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_HTTPGET, 1L);
  set(CURLOPT_NOBODY, request.is_head ? 1L : 0L);
  if (request.posted_json) {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.posted_json->size()));
    set(CURLOPT_POSTFIELDS, request.posted_json->c_str());
  }
  set(CURLOPT_USERPWD, request.basic_credentials.empty() ? nullptr : request.basic_credentials.c_str());
  set(CURLOPT_TIMEOUT, static_cast<long>(request.limit.count()));
  set(CURLOPT_HTTPHEADER, lines);
  curl_slist* const addresses =
      request.resolved.empty() ? nullptr : curl_slist_append(nullptr, request.resolved.c_str());
  set(CURLOPT_RESOLVE, addresses);
  set(CURLOPT_RANGE, request.range.empty() ? nullptr : request.range.c_str());
  set(CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  set(CURLOPT_HEADERDATA, &context.transfer);
  set(
      CURLOPT_WRITEFUNCTION, +[](char* data, size_t, size_t size, void* self) -> size_t {
        auto& current = *static_cast<Context*>(self);
        long status = 0;
        curl_easy_getinfo(current.curl, CURLINFO_RESPONSE_CODE, &status);
        current.transfer.answer.status = static_cast<int>(status);
        return current.transfer.take({data, size});
      });
  set(CURLOPT_WRITEDATA, &context);
  const CURLcode code = curl_easy_perform(curl_);
  set(CURLOPT_HTTPHEADER, static_cast<curl_slist*>(nullptr));
  curl_slist_free_all(lines);
  set(CURLOPT_RESOLVE, static_cast<curl_slist*>(nullptr));
  curl_slist_free_all(addresses);

  Transfer& transfer = context.transfer;
  long status = 0;
  curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
  transfer.answer.status = static_cast<int>(status);
  if (transfer.error) std::rethrow_exception(transfer.error);
  const std::string where = printable(request.url, 200);
  if (transfer.is_too_large)
    throw HttpFailure(fmt::format("{}: the answer is larger than {}", where, format_bytes(kMaxBodyBytes)), "",
                      false);
  if (transfer.header_bytes > kMaxHeaderBytes) {
    throw HttpFailure(
        fmt::format("{}: the answer's headers are larger than {}", where, format_bytes(kMaxHeaderBytes)), "",
        false);
  }
  double seconds = 0;
  curl_easy_getinfo(curl_, CURLINFO_TOTAL_TIME, &seconds);
  const auto limit_s = static_cast<double>(request.limit.count());
  if (code == CURLE_OPERATION_TIMEDOUT && limit_s > 0 && seconds >= limit_s && transfer.header_bytes > 0) {
    throw HttpFailure(fmt::format("{}: no whole answer within {} s", where, limit_s),
                      "HF_HUB_DOWNLOAD_TIMEOUT sets how long to wait", /*is_transient=*/false);
  }
  if (code != CURLE_OK && !transfer.is_ended_by_sink)
    fail_transfer(code, detail_.c_str(), request.url, settings_);
  return std::move(transfer.answer);
}

std::string origin_of(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return "";
  return lower_case(std::string(url.substr(0, url.find_first_of("/?#", scheme + 3))));
}

std::string redirected_url(const std::string& url, const std::string& location) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parts(curl_url(), &curl_url_cleanup);
  char* text = nullptr;
  const bool is_valid = parts != nullptr &&
                        curl_url_set(parts.get(), CURLUPART_URL, url.c_str(), 0) == CURLUE_OK &&
                        curl_url_set(parts.get(), CURLUPART_URL, location.c_str(), 0) == CURLUE_OK &&
                        curl_url_get(parts.get(), CURLUPART_URL, &text, 0) == CURLUE_OK;
  const std::string result = is_valid ? text : "";
  curl_free(text);
  return result;
}

std::string escaped_path(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          c == '-' || c == '_' || c == '.' || c == '~' || c == '/';
    out += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace tessera
