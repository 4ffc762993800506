// What the ranks of a former start have left in the slots of those of now (snapshot_slot.h): the newest state
// of which every rank's part is whole somewhere, and how the ranks of now get what they need of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/run_state.h"
#include "comm/communicator.h"
#include "model/parameters.h"
#include "platform/thread_pool.h"
#include "train/snapshot_slot.h"

namespace tessera {

// The parts of the ranges that belong to parameters, ascending.
std::vector<ElementRange> without_gaps(const ParameterLayout& layout,
                                       const std::vector<ElementRange>& ranges);

struct HeldState {
  struct Place {
    int rank;  // of now
    int slot;
  };
  SnapshotId id;
  std::vector<std::vector<Place>> places;  // by rank of then, each with at least one

  // "node 0", "nodes 0-2": of now, from which it is taken.
  std::string nodes(int local_world_size) const;
};

struct HeldSearch {
  std::optional<HeldState> found;
  std::string problem;  // "" or why the newest of all is not the one that was found
};

// Collective; `slots` of this rank, those of the same job count. Reads every byte of those that come into
// question.
HeldSearch find_held_state(Communicator& comm, ThreadPool& pool, std::span<const SnapshotSlot> slots,
                           uint64_t job);

// Collective: the texts that the first rank of then has left.
struct HeldTexts {
  std::string run;
  std::string log_history;
};
HeldTexts held_texts(const HeldState& held, Communicator& comm, std::span<const SnapshotSlot> slots);

// Collective: gives masters and moments of `kept` (ascending without overlap, any other on every rank) to
// `sink`, from several threads. From the rank's own slots where they are there; the rest is broadcast by a
// rank that has it, a rank of then after the other, as far as anybody needs it.
void load_held_state(const HeldState& held, Communicator& comm, ThreadPool& pool,
                     std::span<const SnapshotSlot> slots, const ParameterLayout& layout,
                     const std::vector<ElementRange>& kept, const StateSink& sink);

}  // namespace tessera
