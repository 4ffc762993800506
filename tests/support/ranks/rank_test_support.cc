#include "support/ranks/rank_test_support.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "comm/store/store_server.h"
#include "platform/system.h"

namespace tessera {

namespace {

std::string run_rank(const World& world, std::chrono::milliseconds timeout, const RankBody& body) {
  FailureDetector failures;
  try {
    NodeGroup group(world, {.timeout = timeout}, failures);
    body(group, failures);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

World world_of(int rank, int size, const std::string& run_id) {
  World world;
  world.rank = world.local_rank = rank;
  world.world_size = world.local_world_size = size;
  world.run_id = run_id;
  world.master_port = 29500;
  world.host = "testhost";
  return world;
}

std::string fresh_run_id() {
  static std::atomic<int> count = 0;
  return fmt::format("rank_test-{}-{}", getpid(), count.fetch_add(1));
}

std::vector<std::string> run_threads(int size, const RankBody& body, std::chrono::milliseconds timeout) {
  const std::string run_id = fresh_run_id();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      errors[static_cast<size_t>(rank)] = run_rank(world_of(rank, size, run_id), timeout, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> run_communicators(int num_nodes, int local_world_size, const CommOptions& options,
                                           const std::function<void(Communicator& comm)>& body) {
  StoreServerOptions server_options;
  server_options.bind_addresses = {"127.0.0.1"};
  server_options.run_id = fresh_run_id();
  server_options.world_size = num_nodes * local_world_size;
  server_options.timing = options.store;
  const auto server = StoreServer::start(server_options);
  std::vector<std::string> errors(static_cast<size_t>(server_options.world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < server_options.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      World world = world_of(rank, server_options.world_size, server_options.run_id);
      world.local_world_size = local_world_size;
      world.local_rank = rank % local_world_size;
      world.node_rank = rank / local_world_size;
      world.num_nodes = num_nodes;
      world.master_port = server->port();
      world.agent_has_store = true;
      world.host = fmt::format("testhost{}", world.node_rank);
      try {
        const std::unique_ptr<Communicator> comm = Communicator::open(world, options);
        body(*comm);
        comm->leave();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::string lacks_open_files(int num_nodes, int local_world_size) {
  // Each rank has a socket to every other rank of its node, both ends of its connection to the store, an
  // event loop, shared memory and, with several nodes, connections between them.
  constexpr int64_t kPerRank = 8;
  const int64_t world_size = num_nodes * local_world_size;
  const int64_t needed = world_size * (local_world_size - 1 + kPerRank);
  const std::optional<int64_t> limit = open_file_limit();
  if (!limit || *limit >= needed) return "";
  return fmt::format("{} ranks in one process need up to {} open files, the hard limit (ulimit -Hn) is {}",
                     world_size, needed, *limit);
}

RankProcesses::RankProcesses(int size, const RankBody& body, std::chrono::milliseconds timeout)
    : RankProcesses(
          size, [](int) { return true; }, body, timeout) {}

RankProcesses::RankProcesses(int size, const std::function<bool(int rank)>& starts, const RankBody& body,
                             std::chrono::milliseconds timeout)
    : processes_(static_cast<size_t>(size)) {
  const std::string run_id = fresh_run_id();
  for (int rank = 0; rank < size; ++rank) {
    if (!starts(rank)) continue;
    std::array<int, 2> ends{};
    TESSERA_CHECK(pipe(ends.data()) == 0, "pipe");
    const pid_t pid = fork();
    TESSERA_CHECK(pid >= 0, "fork");
    if (pid == 0) {
      close(ends[0]);
      const std::string error = run_rank(world_of(rank, size, run_id), timeout, body);
      const ssize_t written = write(ends[1], error.data(), error.size());
      _exit(written == static_cast<ssize_t>(error.size()) ? 0 : 1);
    }
    close(ends[1]);
    processes_[static_cast<size_t>(rank)] = {.pid = pid, .output = ends[0]};
  }
}

RankProcesses::~RankProcesses() {
  for (Process& process : processes_) {
    if (process.pid > 0) {
      ::kill(process.pid, SIGKILL);
      waitpid(process.pid, nullptr, 0);
    }
    if (process.output >= 0) close(process.output);
  }
}

void RankProcesses::kill(int rank) { ::kill(processes_[static_cast<size_t>(rank)].pid, SIGKILL); }

std::string RankProcesses::wait(int rank) {
  Process& process = processes_[static_cast<size_t>(rank)];
  std::string output;
  std::array<char, 1024> piece{};
  for (ssize_t count = 0; (count = read(process.output, piece.data(), piece.size())) > 0;) {
    output.append(piece.data(), static_cast<size_t>(count));
  }
  int status = 0;
  waitpid(process.pid, &status, 0);
  process.pid = -1;
  return WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status)) : output;
}

}  // namespace tessera
