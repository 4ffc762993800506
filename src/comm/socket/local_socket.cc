#include "comm/socket/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace tessera {

namespace {

struct Address {
  sockaddr_un value{};
  socklen_t size = 0;
};

// An abstract name begins with a zero byte and has no terminator.
Address abstract_address(const std::string& name) {
  Address address;
  TESSERA_CHECK(name.size() < sizeof(address.value.sun_path), "socket name of {} bytes", name.size());
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

UniqueFd new_socket() {
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd) fail_errno(ExitCode::kIoError, errno, "cannot create a Unix socket");
  return socket_fd;
}

using Control = std::array<std::byte, CMSG_SPACE(sizeof(int))>;

// The descriptor in a received message; there is at most one.
UniqueFd received_descriptor(msghdr& header) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof(fd));
    return UniqueFd(fd);
  }
  return {};
}

}  // namespace

UniqueFd listen_local(const std::string& name) {
  UniqueFd socket_fd = new_socket();
  const Address address = abstract_address(name);
  if (bind(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address.value), address.size) != 0) {
    fail_errno(ExitCode::kBadConfig, errno,
               fmt::format("cannot take the Unix socket name @{}: a process of this or another user has it; "
                           "is the same job running here with the same port?",
                           name));
  }
  if (listen(socket_fd.get(), SOMAXCONN) != 0) {
    fail_errno(ExitCode::kIoError, errno, fmt::format("cannot listen on the Unix socket @{}", name));
  }
  return socket_fd;
}

std::optional<UniqueFd> connect_local(const std::string& name) {
  UniqueFd socket_fd = new_socket();
  const Address address = abstract_address(name);
  if (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address.value), address.size) == 0) {
    return socket_fd;
  }
  // EAGAIN: the listener's queue is full.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return std::nullopt;
  fail_errno(ExitCode::kIoError, errno, fmt::format("cannot connect to the Unix socket @{}", name));
}

std::pair<UniqueFd, UniqueFd> connected_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    fail_errno(ExitCode::kIoError, errno, "cannot create a pair of Unix sockets");
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool same_user(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  return credentials.uid == geteuid();
}

Transfer send_message(int socket, std::span<const std::byte> message, int fd) {
  iovec data{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) Control control{};
  if (fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &fd, sizeof(fd));
  }
  const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(message.size())) return Transfer::kDone;
  TESSERA_CHECK(sent < 0, "{} of {} bytes of a message sent", sent, message.size());
  // ETOOMANYREFS: too many descriptors in flight; receivers will take them.
  if (errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS || errno == ENOBUFS) {
    return Transfer::kNotYet;
  }
  if (errno == EPIPE || errno == ECONNRESET) return Transfer::kClosed;
  fail_errno(ExitCode::kIoError, errno, "cannot send to a rank of this node");
}

Transfer receive_message(int socket, std::span<std::byte> message, UniqueFd* fd) {
  iovec data{message.data(), message.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) Control control{};
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (received < 0) {
    if (errno == EAGAIN || errno == EINTR) return Transfer::kNotYet;
    if (errno == ECONNRESET) return Transfer::kClosed;
    fail_errno(ExitCode::kIoError, errno, "cannot receive from a rank of this node");
  }
  UniqueFd descriptor = received_descriptor(header);
  if (received != static_cast<ssize_t>(message.size()) || (header.msg_flags & MSG_TRUNC) != 0) {
    return Transfer::kClosed;
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    fail(ExitCode::kBadConfig,
         "a shared memory descriptor did not arrive: the process has too many open files; raise 'ulimit -n'");
  }
  if (fd != nullptr) *fd = std::move(descriptor);
  return Transfer::kDone;
}

}  // namespace tessera
