// The master weights of all ranks in the hands of rank 0, in ascending order: every node shows them to it
// piece by piece, in kMasterExportBytes of memory that its ranks share.
#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "shard/layout/owned_pieces.h"
#include "shard/layout/shard_plan.h"
#include "weights/model_folder.h"

namespace tessera {

class MasterExport {
 public:
  // Collective; allocates. The arguments must outlive this.
  MasterExport(const ShardPlan& plan, const OwnedPieces& pieces, Communicator& comm);

  // Collective: calls write() on rank 0. `own` reads what this rank keeps. Exceptions from write() propagate
  // there.
  void run(const WeightSource& own, const std::function<void(const WeightSource& source)>& write);

 private:
  // Elements of a group that all ranks put into memory_ at a time.
  struct Chunk {
    int64_t group;
    Part elements;
  };
  class Reader;

  // Collective: fills every node's memory_ with the masters of the chunk.
  void share(const Chunk& chunk, const WeightSource& own);

  const ShardPlan* plan_;
  const OwnedPieces* pieces_;
  Communicator* comm_;
  PageBuffer memory_;  // float32
  std::vector<Chunk> chunks_;
};

}  // namespace tessera
