// Unix sockets between processes on one machine: abstract names (no file), whole messages, descriptor
// passing.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/unique_fd.h"

namespace tessera {

// A SOCK_SEQPACKET socket listening under an abstract name. Error(kBadConfig) if the name is taken.
UniqueFd listen_local(const std::string& name);
// Connects; nullopt if no process listens under that name.
std::optional<UniqueFd> connect_local(const std::string& name);
// The two ends of a new connection.
std::pair<UniqueFd, UniqueFd> connected_pair();

// Whether the process at the other end runs as the same user as this one. On the listening side that is the
// process that connected, on the connecting side the one that listens.
bool same_user(int socket);

enum class Transfer { kDone, kNotYet, kClosed };

// Sends one whole message, with a descriptor if `fd` >= 0. Never blocks. Error(kIoError) on anything
// unexpected.
Transfer send_message(int socket, std::span<const std::byte> message, int fd = -1);
// Returns kDone only for a message of exactly that size; any other size is kClosed, as its sender is not one
// of us. A descriptor that came with it goes to `fd`, or is closed.
Transfer receive_message(int socket, std::span<std::byte> message, UniqueFd* fd = nullptr);

}  // namespace tessera
