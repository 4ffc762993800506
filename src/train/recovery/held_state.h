// State that the ranks of an earlier start left in the current ranks' slots (snapshot_slot.h): finds the
// newest state whose parts are intact for every rank, and distributes it to the current ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/run_state.h"
#include "checkpoint/snapshot_slot.h"
#include "comm/communicator.h"
#include "model/parameters.h"
#include "platform/thread_pool.h"

namespace tessera {

// The parts of the ranges that belong to parameters, ascending.
std::vector<ElementRange> without_gaps(const ParameterLayout& layout,
                                       const std::vector<ElementRange>& ranges);

struct HeldState {
  struct Place {
    int rank;  // current
    int slot;
  };
  SnapshotId id;
  int64_t num_state_tensors;
  std::vector<std::vector<Place>> places;  // by rank of the earlier start, each with at least one

  // "node 0", "nodes 0-2": the current nodes it is taken from.
  std::string nodes(int local_world_size) const;
};

struct HeldSearch {
  std::optional<HeldState> found;
  std::string problem;  // why the newest of all is not the one that was found; "" = it is
};

// Collective; `slots` are this rank's, and only slots of the same job count. Reads every byte of the
// candidates.
HeldSearch find_held_state(Communicator& comm, ThreadPool& pool, std::span<const SnapshotSlot> slots,
                           uint64_t job);

// Collective: the texts left by the first rank of the earlier start.
struct HeldTexts {
  std::string run;
  std::string log_history;
};
HeldTexts held_texts(const HeldState& held, Communicator& comm, std::span<const SnapshotSlot> slots);

// Collective: passes the masters and the optimizer's state of `kept` (ascending, without overlap, different
// on every rank) to `sink`, from several threads. They come from the rank's own slots where possible; the
// rest is broadcast by a rank that has it, one earlier rank after another, as far as any rank needs it.
void load_held_state(const HeldState& held, Communicator& comm, ThreadPool& pool,
                     std::span<const SnapshotSlot> slots, const ParameterLayout& layout, StateTensors tensors,
                     const std::vector<ElementRange>& kept, const StateSink& sink);

}  // namespace tessera
