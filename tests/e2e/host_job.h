// A job of `tessera launch` on several hosts (hosts.h), one agent on each.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "e2e/hosts.h"

namespace tessera {

struct HostJobOptions {
  int num_nodes = 2;
  int ranks_per_node = 1;
  std::vector<std::string> launch_flags = {};                            // for all agents
  std::function<std::vector<std::string>(int node)> flags_of_node = {};  // additionally, for one agent
  std::vector<std::string> command = {};                                 // what the ranks run
  std::function<std::vector<std::string>(int node)> command_of_node = {};
  std::vector<std::string> environment = {};
  std::vector<int> nodes = {};  // started immediately; empty: all
};

class HostJob {
 public:
  HostJob(const Hosts& hosts, const HostJobOptions& options);

  // Starts a node that was not started immediately.
  void start(int node);
  int num_nodes() const { return options_.num_nodes; }
  StartedProcess& agent(int node) { return *agents_.at(static_cast<size_t>(node)); }
  pid_t rank(int rank);  // 0 if there is none
  void send(int rank, int signal);

  // Waits for all started agents; if one is still running after `limit`, fails the test with their output and
  // returns false.
  bool wait(std::chrono::milliseconds limit);
  std::string all_output();

 private:
  const Hosts& hosts_;
  HostJobOptions options_;
  std::vector<std::unique_ptr<StartedProcess>> agents_;
};

// Waits until metrics.jsonl in the output folder has at least `steps` steps; false if it has not by `limit`.
bool wait_for_steps(const std::filesystem::path& output, int steps, std::chrono::milliseconds limit);

}  // namespace tessera
