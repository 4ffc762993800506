#include "launch/ranks/snapshot_memory.h"

#include <cerrno>

#include "base/error.h"
#include "comm/ranks/world.h"

namespace tessera {

SnapshotMemory::SnapshotMemory(int num_ranks) {
  for (int i = 0; i < num_ranks * kNumSnapshotSlots; ++i) {
    files_.push_back(memory_file("tessera_snapshot"));
    if (!files_.back()) fail_errno(ExitCode::kIoError, errno, "memory for snapshots of ranks");
  }
}

std::vector<int> SnapshotMemory::of_rank(int local_rank) const {
  std::vector<int> slots;
  if (files_.empty()) return slots;
  const auto first = static_cast<size_t>(local_rank * kNumSnapshotSlots);
  for (size_t i = first; i < first + kNumSnapshotSlots; ++i) slots.push_back(files_[i].get());
  return slots;
}

}  // namespace tessera
