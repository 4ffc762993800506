#include "support/web/hub_server.h"

#include <openssl/evp.h>

#include <algorithm>
#include <asio.hpp>
#include <chrono>
#include <list>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

using asio::ip::tcp;
using nlohmann::json;

constexpr size_t kLfsBytes = 1000;  // larger files are in the storage

std::string hex_digest(const EVP_MD* function, std::string_view data) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(data.data(), data.size(), bytes, &size, function, nullptr);
  std::string out;
  for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

HubServer::Reply json_reply(const json& value) {
  HubServer::Reply reply;
  reply.headers = {{"Content-Type", "application/json"}};
  reply.body = std::make_shared<const std::string>(value.dump());
  return reply;
}

HubServer::Reply refusal(int status, const std::string& code, const std::string& message = "") {
  HubServer::Reply reply;
  reply.status = status;
  if (!code.empty()) reply.headers.emplace_back("X-Error-Code", code);
  if (!message.empty()) reply.headers.emplace_back("X-Error-Message", message);
  return reply;
}

HubServer::Request read_request(tcp::socket& socket, asio::streambuf& buffer) {
  asio::read(socket, buffer, asio::transfer_at_least(buffer.size() == 0 ? 1 : 0));
  constexpr char kTlsHandshake = 0x16;
  if (*static_cast<const char*>(buffer.data().data()) == kTlsHandshake) throw std::runtime_error("TLS");
  asio::read_until(socket, buffer, "\r\n\r\n");
  std::istream stream(&buffer);
  HubServer::Request request;
  std::string version;
  std::string line;
  stream >> request.method >> request.target >> version;
  std::getline(stream, line);
  while (std::getline(stream, line) && line != "\r") {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos)
      request.headers[lower_case(line.substr(0, colon))] = line.substr(colon + 2, line.size() - colon - 3);
  }
  const std::string length = request.header("content-length");
  if (!length.empty()) {
    request.body.resize(std::stoul(length));
    if (buffer.size() < request.body.size())
      asio::read(socket, buffer, asio::transfer_at_least(request.body.size() - buffer.size()));
    stream.read(request.body.data(), std::ssize(request.body));
  }
  return request;
}

// "bytes=FIRST-[LAST]" of a content with `size` bytes; the end is exclusive.
std::pair<int64_t, int64_t> range_of(const std::string& header, int64_t size) {
  const size_t dash = header.find('-');
  const int64_t first = std::stoll(header.substr(6, dash - 6));
  const std::string last = header.substr(dash + 1);
  return {first, last.empty() ? size : std::min(size, int64_t{std::stoll(last)} + 1)};
}

// Returns whether the connection can be used again.
bool send_reply(tcp::socket& socket, const HubServer::Request& request, HubServer::Reply reply,
                std::atomic<int64_t>* storage_bytes) {
  const auto size = static_cast<int64_t>(reply.body->size());
  int64_t begin = 0;
  int64_t end = size;
  const std::string range = request.header("range");
  if (reply.status == 200 && reply.takes_ranges && !range.empty()) {
    std::tie(begin, end) = range_of(range, size);
    reply.status = begin < size ? 206 : 416;
    if (begin >= size) begin = end = 0;
    reply.headers.emplace_back("Content-Range", fmt::format("bytes {}-{}/{}", begin, end - 1, size));
  }
  std::string head = fmt::format("HTTP/1.1 {} Status\r\nContent-Length: {}\r\n", reply.status, end - begin);
  for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
  asio::write(socket, asio::buffer(head + "\r\n"));
  if (request.method == "HEAD") return true;
  const bool is_cut = reply.cut_after_bytes >= 0 && reply.cut_after_bytes < end - begin;
  if (is_cut) end = begin + reply.cut_after_bytes;
  const int64_t piece =
      reply.max_bytes_per_second == 0 ? end - begin : std::max<int64_t>(1, reply.max_bytes_per_second / 50);
  while (begin < end) {
    const int64_t count = std::min(piece, end - begin);
    if (request.is_storage) *storage_bytes += count;  // before the client can know
    asio::write(socket, asio::buffer(reply.body->data() + begin, static_cast<size_t>(count)));
    begin += count;
    if (reply.max_bytes_per_second > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (is_cut && reply.stalls) {
    asio::error_code closed;
    char byte = 0;
    socket.read_some(asio::buffer(&byte, 1), closed);  // until the client gives up
  }
  return !is_cut;
}

}  // namespace

std::string HubServer::Request::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

// Accepts connections on a port of its own; a thread for each.
class HubServer::Listener {
 public:
  Listener(HubServer* server, bool is_storage)
      : server_(server),
        is_storage_(is_storage),
        acceptor_(io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {
    thread_ = std::thread([this] { accept(); });
  }
  ~Listener() {
    is_closing_ = true;
    asio::error_code ignored;
    tcp::socket(io_).connect(acceptor_.local_endpoint(), ignored);  // wakes accept()
    thread_.join();
    {
      const std::lock_guard lock(mutex_);
      for (tcp::socket& socket : sockets_) socket.shutdown(tcp::socket::shutdown_both, ignored);
    }
    for (std::thread& thread : threads_) thread.join();
  }
  int port() const { return acceptor_.local_endpoint().port(); }

 private:
  void accept() {
    while (true) {
      tcp::socket socket = acceptor_.accept();
      if (is_closing_) return;
      socket.set_option(tcp::no_delay(true));
      const std::lock_guard lock(mutex_);
      sockets_.push_back(std::move(socket));
      threads_.emplace_back([this, connection = &sockets_.back()] { serve(*connection); });
    }
  }
  void serve(tcp::socket& socket) {
    try {
      asio::streambuf buffer;
      bool is_open = true;
      while (is_open) {
        Request request = read_request(socket, buffer);
        request.is_storage = is_storage_;
        is_open = send_reply(socket, request, server_->answer(request), &server_->storage_bytes_);
      }
    } catch (const std::exception&) {
      // The client has closed the connection.
    }
    const std::lock_guard lock(mutex_);
    asio::error_code ignored;
    socket.shutdown(tcp::socket::shutdown_both, ignored);
  }

  HubServer* server_;
  bool is_storage_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::atomic<bool> is_closing_ = false;
  std::mutex mutex_;
  std::list<tcp::socket> sockets_;
  std::vector<std::thread> threads_;
  std::thread thread_;
};

HubServer::HubServer()
    : hub_(std::make_unique<Listener>(this, false)), storage_(std::make_unique<Listener>(this, true)) {}

HubServer::~HubServer() {
  hub_.reset();
  storage_.reset();
}

void HubServer::add(Repo repo) {
  const std::lock_guard lock(mutex_);
  for (const auto& [path, content] : repo.files) {
    contents_[repo.commit + "/" + path] = {std::make_shared<const std::string>(content), sha256_of(content),
                                           git_sha1_of(content)};
  }
  repos_.push_back(std::move(repo));
}

void HubServer::set_hook(Hook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

std::string HubServer::endpoint() const { return fmt::format("http://127.0.0.1:{}", hub_->port()); }
std::string HubServer::storage() const { return fmt::format("http://localhost:{}", storage_->port()); }

HubSettings HubServer::settings(const std::filesystem::path& cache) const {
  HubSettings settings;
  settings.endpoint = endpoint();
  settings.cache = cache;
  settings.token_source = "found nowhere";
  settings.first_retry = std::chrono::milliseconds(1);
  return settings;
}

std::vector<HubServer::Request> HubServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

int64_t HubServer::count(std::string_view text, std::string_view method) const {
  const std::vector<Request> all = requests();
  return std::count_if(all.begin(), all.end(), [&](const Request& request) {
    return request.target.find(text) != std::string::npos && (method.empty() || request.method == method);
  });
}

const HubServer::Repo* HubServer::find(RepoType type, const std::string& id) const {
  const auto repo = std::find_if(repos_.begin(), repos_.end(), [&](const Repo& known) {
    return known.name.type == type && known.name.id == id;
  });
  return repo == repos_.end() ? nullptr : &*repo;
}

HubServer::Reply HubServer::answer(const Request& request) {
  Reply reply;
  Hook hook;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    reply = request.is_storage                    ? answer_storage(request)
            : request.target.starts_with("/api/") ? answer_api(request)
                                                  : answer_resolve(request);
    hook = hook_;
  }
  if (hook) hook(request, &reply);
  return reply;
}

HubServer::Reply HubServer::answer_api(const Request& request) {
  const bool is_model = request.target.starts_with("/api/models");
  const std::string rest =
      request.target.substr(std::string_view(is_model ? "/api/models" : "/api/datasets").size());
  const RepoType type = is_model ? RepoType::kModel : RepoType::kDataset;
  if (rest.starts_with("?author=")) {
    const std::string author = rest.substr(8, rest.find('&') - 8);
    json ids = json::array();
    for (const Repo& repo : repos_) {
      if (repo.name.type == type && repo.name.id.starts_with(author + "/") && repo.token.empty())
        ids.push_back({{"id", repo.name.id}});
    }
    return json_reply(ids);
  }
  const size_t end = rest.find('/', rest.find('/', 1) + 1);
  const Repo* const repo = find(type, rest.substr(1, end - 1));
  const bool has_token = !request.header("authorization").empty();
  const bool is_hidden = repo != nullptr && !repo->token.empty() && !repo->is_gated &&
                         request.header("authorization") != "Bearer " + repo->token;
  if (repo == nullptr || is_hidden)
    return has_token ? refusal(404, "RepoNotFound") : refusal(401, "", "Invalid username or password.");
  return answer_list(request, *repo, rest.substr(end));
}

HubServer::Reply HubServer::answer_list(const Request& request, const Repo& repo, const std::string& rest) {
  if (rest == "/refs")
    return json_reply({{"branches", {{{"name", repo.name.revision}}}},
                       {"tags", json::array()},
                       {"converts", json::array()}});
  std::string revision = rest.substr(rest.find('/', 1) + 1);
  revision.resize(std::min(revision.size(), revision.find('?')));
  for (size_t at; (at = revision.find("%2F")) != std::string::npos;) revision.replace(at, 3, "/");
  if (revision != repo.name.revision && revision != repo.commit) {
    // Another repository of the same name may be another revision.
    for (const Repo& other : repos_) {
      if (other.name.type == repo.name.type && other.name.id == repo.name.id &&
          (other.name.revision == revision || other.commit == revision))
        return answer_list(request, other, rest);
    }
    return refusal(404, "RevisionNotFound", "Invalid rev id: " + revision);
  }
  json entries = json::array();
  if (rest.starts_with("/revision/")) {
    for (const auto& file : repo.files) entries.push_back({{"rfilename", file.first}});
    return json_reply({{"id", repo.name.id}, {"sha", repo.commit}, {"siblings", entries}});
  }
  const size_t cursor = rest.find("&cursor=");
  const size_t first = cursor == std::string::npos ? 0 : std::stoul(rest.substr(cursor + 8));
  size_t index = 0;
  for (const auto& [path, content] : repo.files) {
    if (index++ < first || index > first + page_size_) continue;
    const Content& stored = contents_.at(repo.commit + "/" + path);
    json entry = {{"type", "file"}, {"path", path}, {"size", content.size()}, {"oid", stored.git_sha1}};
    if (content.size() > kLfsBytes)
      entry["lfs"] = {{"oid", stored.sha256}, {"size", content.size()}, {"pointerSize", 130}};
    entries.push_back(entry);
  }
  Reply reply = json_reply(entries);
  if (first + page_size_ < repo.files.size()) {
    const std::string page = request.target.substr(0, request.target.find("&cursor="));
    reply.headers.emplace_back(
        "Link", fmt::format("<{}{}&cursor={}>; rel=\"next\"", endpoint(), page, first + page_size_));
  }
  return reply;
}

HubServer::Reply HubServer::answer_resolve(const Request& request) {
  const bool is_dataset = request.target.starts_with("/datasets/");
  const std::string rest = request.target.substr(is_dataset ? 10 : 1);
  const size_t resolve = rest.find("/resolve/");
  if (resolve == std::string::npos) return refusal(404, "");
  const size_t slash = rest.find('/', resolve + 9);
  const std::string commit = rest.substr(resolve + 9, slash - resolve - 9);
  std::string path = rest.substr(slash + 1);
  for (size_t at; (at = path.find("%20")) != std::string::npos;) path.replace(at, 3, " ");
  const Repo* repo = nullptr;
  for (const Repo& known : repos_) {
    const bool is_type = known.name.type == (is_dataset ? RepoType::kDataset : RepoType::kModel);
    if (is_type && known.name.id == rest.substr(0, resolve) && known.commit == commit) repo = &known;
  }
  if (repo == nullptr) return refusal(404, "RepoNotFound");
  if (!repo->token.empty() && request.header("authorization") != "Bearer " + repo->token)
    return refusal(request.header("authorization").empty() ? 401 : 403, repo->is_gated ? "GatedRepo" : "",
                   repo->is_gated ? "Access to model " + repo->name.id + " is restricted" : "Forbidden");
  const auto file = repo->files.find(path);
  if (file == repo->files.end()) return refusal(404, "EntryNotFound");
  const Content& content = contents_.at(commit + "/" + path);
  Reply reply;
  reply.headers = {{"X-Repo-Commit", commit}};
  if (file->second.size() > kLfsBytes) {
    const std::string& sha256 = content.sha256;
    reply.status = 302;
    reply.headers.emplace_back("Location", storage() + "/blob/" + sha256 + "?Signature=abc");
    reply.headers.emplace_back("X-Linked-Etag", "\"" + sha256 + "\"");
    reply.headers.emplace_back("X-Linked-Size", std::to_string(file->second.size()));
    reply.headers.emplace_back("ETag", "\"pointer\"");
    return reply;
  }
  reply.headers.emplace_back("ETag", "W/\"" + content.git_sha1 + "\"");
  reply.takes_ranges = true;
  reply.body = content.body;
  return reply;
}

HubServer::Reply HubServer::answer_storage(const Request& request) {
  for (const auto& [path, content] : contents_) {
    if (content.sha256 != request.target.substr(6, 64)) continue;
    Reply reply;
    reply.body = content.body;
    reply.takes_ranges = true;
    return reply;
  }
  return refusal(404, "");
}

std::string sha256_of(std::string_view content) { return hex_digest(EVP_sha256(), content); }

std::string git_sha1_of(std::string_view content) {
  return hex_digest(EVP_sha1(), fmt::format("blob {}{}{}", content.size(), '\0', content));
}

}  // namespace tessera
