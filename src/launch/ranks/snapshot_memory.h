// Memory of the agent in which its ranks keep snapshots of their state: it outlives the ranks and ends with
// the agent.
#pragma once

#include <vector>

#include "base/unique_fd.h"

namespace tessera {

// kNumSnapshotSlots memory files (memfd) per rank, empty and free of cost until a rank writes to them.
class SnapshotMemory {
 public:
  // num_ranks = 0: no files at all. Error(kIoError).
  explicit SnapshotMemory(int num_ranks);

  // The descriptors for the rank to inherit; the same in every start.
  std::vector<int> of_rank(int local_rank) const;

 private:
  std::vector<UniqueFd> files_;  // rank by rank
};

}  // namespace tessera
