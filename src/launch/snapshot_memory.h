// Memory of the agent in which its ranks leave their state: it outlives them, and ends with the agent.
#pragma once

#include <vector>

#include "comm/local_socket.h"

namespace tessera {

// Per rank kNumSnapshotSlots files in memory (memfd), empty and without cost until a rank writes to them.
class SnapshotMemory {
 public:
  // 0: none for any rank. Error(kIoError).
  explicit SnapshotMemory(int num_ranks);

  // The descriptors, to be inherited by the rank; the same in every start.
  std::vector<int> of_rank(int local_rank) const;

 private:
  std::vector<UniqueFd> files_;  // rank by rank
};

}  // namespace tessera
