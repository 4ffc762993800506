#include "e2e/host_job.h"
#include "test_paths.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <thread>

namespace tessera {
namespace {

void append(std::vector<std::string>* to, const std::vector<std::string>& more) {
  to->insert(to->end(), more.begin(), more.end());
}

}  // namespace

HostJob::HostJob(const Hosts& hosts, const HostJobOptions& options) : hosts_(hosts), options_(options) {
  agents_.resize(static_cast<size_t>(options.num_nodes));
  for (int node = 0; node < options.num_nodes; ++node) {
    const bool at_once = options.nodes.empty() ||
                         std::find(options.nodes.begin(), options.nodes.end(), node) != options.nodes.end();
    if (at_once) start(node);
  }
}

void HostJob::start(int node) {
  std::vector<std::string> argv = {tessera_binary(),   "launch",
                                   "--nnodes",         std::to_string(options_.num_nodes),
                                   "--node_rank",      std::to_string(node),
                                   "--nproc_per_node", std::to_string(options_.ranks_per_node),
                                   "--rdzv_endpoint",  Hosts::address(0) + ":29500"};
  append(&argv, options_.launch_flags);
  if (options_.flags_of_node) append(&argv, options_.flags_of_node(node));
  append(&argv, options_.command_of_node ? options_.command_of_node(node) : options_.command);
  agents_.at(static_cast<size_t>(node)) = hosts_.start(node, argv, options_.environment);
}

pid_t HostJob::rank(int rank) { return pid_of_rank(agent(rank / options_.ranks_per_node).pid(), rank); }

void HostJob::send(int rank, int signal) {
  const pid_t pid = this->rank(rank);
  ASSERT_NE(pid, 0) << "no rank " << rank << "\n" << all_output();
  kill(pid, signal);
}

bool HostJob::wait(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    // Polls all of them, as the end time of each is recorded.
    const auto running =
        std::count_if(agents_.begin(), agents_.end(), [](const auto& a) { return a && !a->has_ended(); });
    if (running == 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) {
      ADD_FAILURE() << running << " agents are still running\n" << all_output();
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string HostJob::all_output() {
  std::string text;
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (agents_[i]) text += fmt::format("--- node {}\n{}{}", i, agents_[i]->out(), agents_[i]->err());
  }
  return text;
}

bool wait_for_steps(const std::filesystem::path& output, int steps, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const std::string lines = read_file(output / "metrics.jsonl");
    if (std::count(lines.begin(), lines.end(), '\n') >= steps) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace tessera
