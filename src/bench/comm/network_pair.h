// Two network namespaces connected by a veth pair: two hosts, as far as TCP can tell.
#pragma once

#include <array>
#include <string>

namespace tessera {

class NetworkPair {
 public:
  // Needs root and the program `ip` (iproute2). Error(kBadConfig) says what is missing.
  NetworkPair();
  ~NetworkPair();
  NetworkPair(const NetworkPair&) = delete;
  NetworkPair& operator=(const NetworkPair&) = delete;

  const std::string& address(int side) const { return addresses_[static_cast<size_t>(side)]; }
  // Moves the calling thread, and whatever it starts from now on, to that side (0 or 1).
  void enter(int side) const;
  // Runs a shell command on that side and returns its output. Error(kIoError) with the output if it fails.
  std::string run(int side, const std::string& command) const;

 private:
  std::array<std::string, 2> names_;
  std::array<std::string, 2> addresses_{"10.77.0.1", "10.77.0.2"};
};

}  // namespace tessera
