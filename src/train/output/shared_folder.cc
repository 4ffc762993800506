#include "train/output/shared_folder.h"

#include <chrono>
#include <cstdint>
#include <random>
#include <system_error>
#include <thread>

#include "io/file.h"
#include "io/synced_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const OpLabel kSharedFolderLabel = {"shared folder"};

// A network file system may take a while to show a new name.
constexpr std::chrono::seconds kPatience(5);
constexpr std::chrono::milliseconds kPause(50);

bool appears(const fs::path& path) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::error_code ignored;
  while (!fs::exists(path, ignored)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

bool is_shared_by_nodes(Communicator& comm, const fs::path& folder) {
  const World& world = comm.world();
  uint64_t token = 0;
  const auto path = [&] { return folder / fmt::format(".unfinished-shared-{:016x}", token); };
  if (world.rank == 0) {
    std::random_device random;
    token = (static_cast<uint64_t>(random()) << 32) | random();
    create_synced_folder(folder);
    write_text_file(path(), "");
  }
  token = comm.broadcast(token, 0, kSharedFolderLabel);
  const bool is_shared = comm.all(world.local_rank != 0 || appears(path()), kSharedFolderLabel);
  std::error_code ignored;
  if (world.rank == 0) fs::remove(path(), ignored);
  return is_shared;
}

}  // namespace tessera
