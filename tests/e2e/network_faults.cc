#include "e2e/network_faults.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netfilter_ipv4.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <random>
#include <vector>

namespace tessera {
namespace {

void need(bool is_well) {
  if (!is_well) _exit(3);
}

// One direction of a connection.
struct Stream {
  int from;
  int to;
  std::vector<char> waiting = {};
  bool has_ended = false;     // no more data will come
  bool is_passed_on = false;  // the other side has been notified
};

class Proxy {
 public:
  explicit Proxy(const DamagingProxy& options) : options_(options), random_(options.seed) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const int on = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(options.port));
    need(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    need(listen(listener_, 64) == 0);
  }

  [[noreturn]] void run() {
    for (;;) {
      std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
      for (const auto& stream : streams_) {
        const bool reads = !stream->has_ended && stream->waiting.size() < kMaxWaiting;
        fds.push_back({reads ? stream->from : -1, POLLIN, 0});
        fds.push_back({stream->waiting.empty() ? -1 : stream->to, POLLOUT, 0});
      }
      need(poll(fds.data(), fds.size(), -1) >= 0 || errno == EINTR);
      const size_t num_streams = streams_.size();
      for (size_t i = 0; i < num_streams; ++i) {
        if (fds[1 + 2 * i].revents != 0) receive(*streams_[i]);
        pass_on(*streams_[i]);
      }
      if (fds[0].revents != 0) accept_one();
    }
  }

 private:
  static constexpr size_t kMaxWaiting = 1 << 20;

  void accept_one() {
    const int near = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK);
    if (near < 0) return;
    sockaddr_in target{};
    socklen_t length = sizeof(target);
    need(getsockopt(near, SOL_IP, SO_ORIGINAL_DST, &target, &length) == 0);
    const int far = socket(AF_INET, SOCK_STREAM, 0);
    need(setsockopt(far, SOL_SOCKET, SO_MARK, &options_.mark, sizeof(options_.mark)) == 0);
    if (connect(far, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) != 0) {
      close(near);
      close(far);
      return;
    }
    fcntl(far, F_SETFL, O_NONBLOCK);
    const int on = 1;
    for (const int fd : {near, far}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    streams_.push_back(std::make_unique<Stream>(Stream{near, far}));
    streams_.push_back(std::make_unique<Stream>(Stream{far, near}));
  }

  void receive(Stream& stream) {
    std::array<char, 65536> piece;
    const ssize_t got = recv(stream.from, piece.data(), piece.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      stream.has_ended = true;
      return;
    }
    std::vector<char> bytes(piece.begin(), piece.begin() + got);
    const int64_t before = num_bytes_;
    num_bytes_ += got;
    // Not within a small piece: a connection that waits forever for missing bytes would be a different fault.
    if (!is_done_ && before >= options_.intact_bytes && got >= 4096) damage(&bytes);
    stream.waiting.insert(stream.waiting.end(), bytes.begin(), bytes.end());
  }

  void damage(std::vector<char>* bytes) {
    is_done_ = true;
    constexpr ptrdiff_t kCount = 16;
    const auto at = static_cast<ptrdiff_t>(random_() % (bytes->size() / 2));
    const auto begin = bytes->begin() + at;
    switch (options_.damage) {
      case Damage::kFlippedBit:
        *begin = static_cast<char>(*begin ^ (1 << (random_() % 8)));
        break;
      case Damage::kMissingBytes:
        bytes->erase(begin, begin + kCount);
        break;
      case Damage::kDoubledBytes: {
        const std::vector<char> again(begin, begin + kCount);
        bytes->insert(begin, again.begin(), again.end());
        break;
      }
    }
  }

  static void pass_on(Stream& stream) {
    if (!stream.waiting.empty()) {
      const ssize_t sent = send(stream.to, stream.waiting.data(), stream.waiting.size(), MSG_NOSIGNAL);
      if (sent > 0) stream.waiting.erase(stream.waiting.begin(), stream.waiting.begin() + sent);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        stream.waiting.clear();
        stream.has_ended = true;
      }
    }
    if (stream.has_ended && stream.waiting.empty() && !stream.is_passed_on) {
      shutdown(stream.to, SHUT_WR);
      stream.is_passed_on = true;
    }
  }

  DamagingProxy options_;
  std::mt19937_64 random_;
  int listener_ = -1;
  std::vector<std::unique_ptr<Stream>> streams_;
  int64_t num_bytes_ = 0;
  bool is_done_ = false;
};

bool connects(int fd, const sockaddr_in& address) {
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd wait = {fd, POLLOUT, 0};
  int error = ETIMEDOUT;
  socklen_t length = sizeof(error);
  return poll(&wait, 1, 200) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

}  // namespace

void run_damaging_proxy(const DamagingProxy& options) { Proxy(options).run(); }

void scan_ports(const std::string& address, uint64_t seed) {
  std::mt19937_64 random(seed);
  sockaddr_in target{};
  target.sin_family = AF_INET;
  need(inet_pton(AF_INET, address.c_str(), &target.sin_addr) == 1);
  std::vector<int> open_ports;
  std::vector<int> held;
  for (int64_t round = 0;; ++round) {
    // All ports first, then repeatedly those that were open.
    const bool looks = round == 0 || round % 200 == 0;
    std::vector<int> ports = open_ports;
    if (looks) {
      ports.clear();
      for (int port = 1024; port <= 65535; ++port) ports.push_back(port);
      open_ports.clear();
    }
    for (const int port : ports) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      need(fd >= 0);
      target.sin_port = htons(static_cast<uint16_t>(port));
      if (!connects(fd, target)) {
        close(fd);
        continue;
      }
      if (looks) open_ports.push_back(port);
      std::vector<char> garbage(random() % 3 == 0 ? 0 : random() % 5000);
      for (char& byte : garbage) byte = static_cast<char>(random());
      // Sometimes the beginning is valid.
      if (garbage.size() > 4 && random() % 2 == 0) std::copy_n("TSTR", 4, garbage.begin());
      send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
      switch (random() % 4) {
        case 0: {  // reset
          const linger at_once = {1, 0};
          setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
          close(fd);
          break;
        }
        case 1:  // stays connected, silent
          if (held.size() < 20) {
            held.push_back(fd);
            break;
          }
          [[fallthrough]];
        default:
          close(fd);
      }
    }
    usleep(5000);
  }
}

}  // namespace tessera
