#include "train/recovery/held_state.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "shard/layout/model_places.h"
#include "shard/layout/owned_pieces.h"

namespace tessera {
namespace {

const OpLabel kHeldStateLabel = {"state in memory"};

// Elements that a thread passes to the sink at a time, and elements broadcast at a time.
constexpr int64_t kGivenElements = int64_t{64} << 10;
constexpr int64_t kSentElements = int64_t{1} << 20;

// A rank's report to the others about its slots.
constexpr size_t kMaxSlots = 4;
struct SlotReport {
  bool counts = false;  // holds a state of this job
  SnapshotId id;
  int64_t rank = 0;
  int64_t num_state_tensors = 0;
};
using SlotReports = std::array<SlotReport, kMaxSlots>;

// A state as reported by the ranks; newer ones compare greater.
// Start, step, key, nodes, ranks, tensors.
using Candidate = std::tuple<int64_t, int64_t, uint64_t, int64_t, int64_t, int64_t>;
using Places = std::vector<std::vector<HeldState::Place>>;

std::map<Candidate, Places> find_candidates(Communicator& comm, std::span<const SnapshotSlot> slots,
                                            uint64_t job) {
  TESSERA_CHECK(slots.size() <= kMaxSlots, "{} slots", slots.size());
  SlotReports own;
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto content = slots[i].content();
    if (content && content->id.job == job)
      own[i] = {true, content->id, content->rank, content->sizes.num_state_tensors};
  }
  const std::vector<SlotReports> all = comm.all_gather(own, kHeldStateLabel);
  std::map<Candidate, Places> candidates;
  for (int rank = 0; rank < std::ssize(all); ++rank) {
    for (int slot = 0; slot < std::ssize(slots); ++slot) {
      const SlotReport& report = all[static_cast<size_t>(rank)][static_cast<size_t>(slot)];
      if (!report.counts) continue;
      const SnapshotId& id = report.id;
      Places& places = candidates[{id.start, id.step, id.start_key, id.num_nodes, id.local_world_size,
                                   report.num_state_tensors}];
      places.resize(static_cast<size_t>(id.world_size()));
      places.at(static_cast<size_t>(report.rank)).push_back({rank, slot});
    }
  }
  return candidates;
}

// The places whose state is intact, as verified by all ranks together.
Places whole_places(Communicator& comm, ThreadPool& pool, std::span<const SnapshotSlot> slots,
                    const Places& places) {
  std::array<bool, kMaxSlots> own = {};
  for (const auto& of_rank : places) {
    for (const HeldState::Place& place : of_rank) {
      if (place.rank != comm.world().rank) continue;
      own[static_cast<size_t>(place.slot)] = slots[static_cast<size_t>(place.slot)].verify(pool);
    }
  }
  const auto all = comm.all_gather(own, kHeldStateLabel);
  Places whole = places;
  for (auto& of_rank : whole) {
    std::erase_if(of_rank, [&](const HeldState::Place& place) {
      return !all[static_cast<size_t>(place.rank)][static_cast<size_t>(place.slot)];
    });
  }
  return whole;
}

std::vector<int> ranks_without(const Places& places) {
  std::vector<int> ranks;
  for (int rank = 0; rank < std::ssize(places); ++rank) {
    if (places[static_cast<size_t>(rank)].empty()) ranks.push_back(rank);
  }
  return ranks;
}

// Elements [flat_begin, flat_begin + count), stored from `position` on within an earlier rank's elements.
struct Wanted {
  int64_t flat_begin;
  int64_t position;
  int64_t count;
};

std::vector<Wanted> wanted_of(std::span<const ElementRange> ranges, const std::vector<ElementRange>& kept) {
  std::vector<Wanted> wanted;
  int64_t position = 0;
  for (const ElementRange& range : ranges) {
    auto at = std::partition_point(kept.begin(), kept.end(),
                                   [&](const ElementRange& k) { return k.end <= range.begin; });
    for (; at != kept.end() && at->begin < range.end; ++at) {
      const int64_t begin = std::max(range.begin, at->begin), end = std::min(range.end, at->end);
      for (int64_t cut = begin; cut < end; cut += kGivenElements) {
        wanted.push_back({cut, position + cut - range.begin, std::min(kGivenElements, end - cut)});
      }
    }
    position += range.end - range.begin;
  }
  return wanted;
}

// `values` are the elements from `first` on.
void give(const std::vector<Wanted>& wanted, StateKind kind, int64_t first, std::span<const float> values,
          const StateSink& sink, ThreadPool& pool) {
  const int64_t last = first + std::ssize(values);
  const auto begin = std::partition_point(wanted.begin(), wanted.end(),
                                          [&](const Wanted& w) { return w.position + w.count <= first; });
  const auto end =
      std::partition_point(begin, wanted.end(), [&](const Wanted& w) { return w.position < last; });
  pool.parallel_for(end - begin, [&](int64_t i) {
    const Wanted& w = begin[i];
    const int64_t from = std::max(w.position, first), to = std::min(w.position + w.count, last);
    sink(kind, w.flat_begin + from - w.position,
         values.subspan(static_cast<size_t>(from - first), static_cast<size_t>(to - from)));
  });
}

int64_t count_of(const std::vector<ElementRange>& ranges) {
  int64_t count = 0;
  for (const ElementRange& range : ranges) count += range.end - range.begin;
  return count;
}

int64_t count_of(const std::vector<Wanted>& wanted) {
  int64_t count = 0;
  for (const Wanted& w : wanted) count += w.count;
  return count;
}

// Broadcasts an earlier rank's elements from the current rank that has them to all that want some.
void send_to_all(Communicator& comm, ThreadPool& pool, int root, const SnapshotSlot* slot, int64_t count,
                 size_t num_tensors, const std::vector<Wanted>& wanted, const StateSink& sink) {
  std::vector<float> buffer(static_cast<size_t>(std::min(count, kSentElements)));
  for_each_state_kind(num_tensors, [&](StateKind kind) {
    for (int64_t first = 0; first < count; first += kSentElements) {
      const auto now = static_cast<size_t>(std::min(kSentElements, count - first));
      const std::span<float> values = std::span(buffer).first(now);
      if (slot != nullptr) {
        std::ranges::copy(slot->values(kind).subspan(static_cast<size_t>(first), now), values.begin());
      }
      comm.broadcast_bytes(std::as_writable_bytes(values), root, kHeldStateLabel);
      give(wanted, kind, first, values, sink, pool);
    }
  });
}

}  // namespace

std::vector<ElementRange> without_gaps(const ParameterLayout& layout,
                                       const std::vector<ElementRange>& ranges) {
  const std::vector<Parameter>& parameters = layout.parameters();
  std::vector<ElementRange> parts;
  for (const ElementRange& range : ranges) {
    auto at = std::partition_point(parameters.begin(), parameters.end(), [&](const Parameter& parameter) {
      return parameter.offset + parameter.num_elements <= range.begin;
    });
    for (; at != parameters.end() && at->offset < range.end; ++at) {
      parts.push_back(
          {std::max(range.begin, at->offset), std::min(range.end, at->offset + at->num_elements)});
    }
  }
  return parts;
}

std::string HeldState::nodes(int local_world_size) const {
  std::set<int> nodes;
  for (const auto& of_rank : places) nodes.insert(of_rank.front().rank / local_world_size);
  const std::string text = format_ranks({nodes.begin(), nodes.end()});
  return (nodes.size() == 1 ? "node " : "nodes ") + text;
}

HeldSearch find_held_state(Communicator& comm, ThreadPool& pool, std::span<const SnapshotSlot> slots,
                           uint64_t job) {
  HeldSearch search;
  const std::map<Candidate, Places> candidates = find_candidates(comm, slots, job);
  if (candidates.empty()) search.problem = "no rank has left its state";
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    const auto& [start, step, key, num_nodes, local_world_size, num_tensors] = candidate->first;
    std::vector<int> lost = ranks_without(candidate->second);
    const char* fate = "is on no node that is left";
    Places places;
    if (lost.empty()) {
      places = whole_places(comm, pool, slots, candidate->second);
      lost = ranks_without(places);
      fate = "is damaged";
    }
    if (lost.empty()) {
      const SnapshotId id = {.job = job,
                             .start_key = key,
                             .start = start,
                             .step = step,
                             .num_nodes = num_nodes,
                             .local_world_size = local_world_size};
      search.found = HeldState{id, num_tensors, std::move(places)};
      break;
    }
    if (search.problem.empty()) {
      search.problem = fmt::format("step {}: the state of rank{} {} {}", step, lost.size() == 1 ? "" : "s",
                                   format_ranks(lost), fate);
    }
  }
  return search;
}

HeldTexts held_texts(const HeldState& held, Communicator& comm, std::span<const SnapshotSlot> slots) {
  const HeldState::Place place = held.places.front().front();
  const bool has_them = comm.world().rank == place.rank;
  HeldTexts texts;
  if (has_them) {
    const SnapshotTexts found = slots[static_cast<size_t>(place.slot)].texts();
    texts = {std::string(found.run), std::string(found.log_history)};
  }
  for (std::string* text : {&texts.run, &texts.log_history}) {
    text->resize(comm.broadcast(text->size(), place.rank, kHeldStateLabel));
    comm.broadcast_bytes(std::as_writable_bytes(std::span(*text)), place.rank, kHeldStateLabel);
  }
  return texts;
}

void load_held_state(const HeldState& held, Communicator& comm, ThreadPool& pool,
                     std::span<const SnapshotSlot> slots, const ParameterLayout& layout, StateTensors tensors,
                     const std::vector<ElementRange>& kept, const StateSink& sink) {
  const int me = comm.world().rank;
  const std::vector<ElementRange> needed = without_gaps(layout, kept);
  const auto ranges_of_then = [&](int64_t rank) {
    const ZeroLayout of_then =
        zero_layout(layout, static_cast<int>(held.id.num_nodes), static_cast<int>(held.id.local_world_size));
    return without_gaps(layout, owned_ranges(shard_plan(of_then, ZeroSettings()), static_cast<int>(rank)));
  };
  // The last one may be lacking, or not be wanted: kGradientFeedback.
  const size_t num_tensors = std::min(tensors.size(), static_cast<size_t>(held.num_state_tensors));
  const int64_t num_ranks = held.id.world_size();
  std::vector<double> wants(static_cast<size_t>(num_ranks));  // summed up: the ranks that want some of it
  int64_t num_given = 0;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const auto& places = held.places[static_cast<size_t>(rank)];
    const std::vector<ElementRange> ranges = ranges_of_then(rank);
    const std::vector<Wanted> wanted = wanted_of(ranges, needed);
    num_given += count_of(wanted);
    const auto own = std::ranges::find(places, me, &HeldState::Place::rank);
    if (own == places.end()) {
      wants[static_cast<size_t>(rank)] = wanted.empty() ? 0 : 1;
      continue;
    }
    const SnapshotSlot& slot = slots[static_cast<size_t>(own->slot)];
    TESSERA_CHECK(std::ssize(slot.values(StateKind::kMaster)) == count_of(ranges), "rank {} of {}", rank,
                  num_ranks);
    for_each_state_kind(num_tensors,
                        [&](StateKind kind) { give(wanted, kind, 0, slot.values(kind), sink, pool); });
  }
  TESSERA_CHECK(num_given == count_of(needed), "{} elements of {}", num_given, count_of(needed));

  comm.sum(wants, kHeldStateLabel);
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    if (wants[static_cast<size_t>(rank)] == 0) continue;
    const auto& places = held.places[static_cast<size_t>(rank)];
    const bool is_mine = std::ranges::find(places, me, &HeldState::Place::rank) != places.end();
    const HeldState::Place root = places.front();
    const SnapshotSlot* slot = root.rank == me ? &slots[static_cast<size_t>(root.slot)] : nullptr;
    const std::vector<ElementRange> ranges = ranges_of_then(rank);
    const std::vector<Wanted> wanted =
        is_mine ? std::vector<Wanted>() : wanted_of(ranges, needed);  // already passed on
    send_to_all(comm, pool, root.rank, slot, count_of(ranges), num_tensors, wanted, sink);
  }
}

}  // namespace tessera
