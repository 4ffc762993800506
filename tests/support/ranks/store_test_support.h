// Jobs with ranks as threads, for tests of code that needs a store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/store/store_client.h"
#include "comm/store/store_server.h"

namespace tessera {

// Short, so that tests are short; long enough for busy machines and for sanitizers.
inline StoreOptions quick_store_options() {
  StoreOptions options;
  options.rendezvous_timeout = std::chrono::seconds(20);
  options.heartbeat = std::chrono::milliseconds(50);
  options.silence = std::chrono::milliseconds(1000);
  options.lost_grace = std::chrono::milliseconds(150);
  options.suspicion_grace = std::chrono::milliseconds(300);
  return options;
}

inline StoreServerOptions quick_server_options(int world_size) {
  return {.bind_addresses = {"127.0.0.1"},
          .secret = {},
          .run_id = "test",
          .world_size = world_size,
          .restart_count = 0,
          .timing = quick_store_options()};
}

// A rank of a job with `local_world_size` ranks per node, whose store listens on `port` and is served by an
// agent (a StoreServer of the test).
inline World test_world(int rank, int world_size, int local_world_size, int port) {
  World world;
  world.rank = rank;
  world.world_size = world_size;
  world.local_world_size = local_world_size;
  world.local_rank = rank % local_world_size;
  world.node_rank = rank / local_world_size;
  world.num_nodes = world_size / local_world_size;
  world.master_port = port;
  world.agent_has_store = true;
  world.run_id = "test";
  world.host = "host" + std::to_string(world.node_rank);
  return world;
}

// The text of the Error that `action` throws; "" if it throws none.
template <typename Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// Calls body(rank) in one thread per rank and joins them.
inline void run_ranks(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tessera
