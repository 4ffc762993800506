#include "comm/socket/port_owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// "socket:[INODE]" of the listening socket, as links in /proc/PID/fd read; "" if there is none.
std::string listening_socket(const char* table, int port) {
  std::ifstream lines(table);
  const std::string wanted = fmt::format(":{:04X}", port);
  std::string line;
  while (std::getline(lines, line)) {
    // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    constexpr const char* kListening = "0A";
    if (fields && state == kListening && local.ends_with(wanted)) return fmt::format("socket:[{}]", inode);
  }
  return {};
}

bool holds(const fs::path& process, const std::string& socket) {
  std::error_code error;
  for (fs::directory_iterator it(process / "fd", error), end; !error && it != end; it.increment(error)) {
    std::error_code unreadable;
    if (fs::read_symlink(it->path(), unreadable) == socket) return true;
  }
  return false;
}

}  // namespace

std::string describe_port_owner(int port) {
  std::string socket = listening_socket("/proc/net/tcp", port);
  if (socket.empty()) socket = listening_socket("/proc/net/tcp6", port);
  if (socket.empty()) return {};
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string pid = it->path().filename().string();
    const bool is_process =
        std::all_of(pid.begin(), pid.end(), [](unsigned char c) { return std::isdigit(c); });
    if (!is_process || !holds(it->path(), socket)) continue;
    std::string name;
    std::getline(std::ifstream(it->path() / "comm"), name);
    return fmt::format("process {} ({})", pid, printable(name));
  }
  return {};
}

}  // namespace tessera
