// Unix sockets between processes of one machine: abstract names (no file), whole messages, descriptors as
// cargo.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace tessera {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// A SOCK_SEQPACKET socket that listens under an abstract name. Error(kBadConfig) when the name is taken.
UniqueFd listen_local(const std::string& name);
// A connection, or nothing while nobody listens under that name.
std::optional<UniqueFd> connect_local(const std::string& name);
// Two ends of a connection.
std::pair<UniqueFd, UniqueFd> connected_pair();

// Whether the process at the other end runs as this one's user. At the listening end of a connection this is
// who connected, at the other end who listens.
bool same_user(int socket);

enum class Transfer { kDone, kNotYet, kClosed };

// One whole message, with a descriptor when `fd` >= 0. Never blocks. Error(kIoError) for anything unexpected.
Transfer send_message(int socket, std::span<const std::byte> message, int fd = -1);
// kDone needs a message of exactly that size; another size is kClosed: who sends it is not one of us. A
// descriptor that came along goes to `fd`, or is closed.
Transfer receive_message(int socket, std::span<std::byte> message, UniqueFd* fd = nullptr);

}  // namespace tessera
