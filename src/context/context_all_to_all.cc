#include "context/context_all_to_all.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "comm/network/link/coded_sum.h"
#include "kernels/rank_sum/rank_sum.h"

namespace tessera {
namespace {

// Stages of an all-to-all; a rank's counter has the number of the last all-to-all that reached the stage.
enum Channel : int64_t { kPacked, kArrived, kTaken, kNumChannels };

// Each block begins with a line that says whether its sender wants to abandon the pass.
constexpr int64_t kHeaderBytes = kCacheLineBytes;
// Tokens whose rows a thread copies at a time.
constexpr int64_t kTokensAtOnce = 16;

int64_t row_bytes_of(std::span<const RowSection> sections) {
  int64_t sum = 0;
  for (const RowSection& section : sections) sum += section.width;
  return sum;
}

int64_t shared_row_bytes(std::span<const RowSection> sections, int64_t team_size) {
  int64_t sum = 0;
  for (const RowSection& section : sections) sum += section.share(team_size);
  return sum;
}

// y = x_0 + x_1 + ..., `count` values of a type.
void add_values(std::span<const std::byte* const> inputs, DType dtype, int64_t count, std::byte* y) {
  if (dtype == DType::kBF16) {
    const auto input = [&](int reader) { return inputs[static_cast<size_t>(reader)]; };
    sum_bf16(static_cast<int>(inputs.size()), input, reinterpret_cast<bf16*>(y), count);
    return;
  }
  std::vector<RankInput> values;
  for (const std::byte* input : inputs) values.push_back(reinterpret_cast<const float*>(input));
  rank_sum(values, Update::kOverwrite, reinterpret_cast<float*>(y), count, nullptr);
}

int64_t block_bytes(int64_t row_bytes, int64_t num_tokens) {
  return kHeaderBytes + round_up(num_tokens * row_bytes, kCacheLineBytes);
}

}  // namespace

int64_t ContextAllToAll::buffer_bytes(int64_t team_size, int local_world_size, int64_t max_bytes) {
  const int64_t box = max_bytes + team_size * (kHeaderBytes + kCacheLineBytes);
  return team_size > local_world_size ? 2 * box : box;
}

int64_t ContextAllToAll::sent_bytes(int64_t team_size, int local_world_size, int64_t row_bytes,
                                    int64_t num_tokens) {
  return std::max<int64_t>(0, team_size - local_world_size) * block_bytes(row_bytes, num_tokens);
}

ContextAllToAll::ContextAllToAll(Communicator& comm, const ContextTeam& team, int64_t max_bytes,
                                 ThreadPool& pool)
    : pool_(pool), team_(team) {
  const int local_world_size = comm.world().local_world_size;
  const int64_t of_rank = buffer_bytes(team.size, local_world_size, max_bytes);
  box_bytes_ = team.num_nodes > 1 ? of_rank / 2 : of_rank;
  memory_ = comm.node().allocate("all-to-all of heads", local_world_size * of_rank);
  comm.node().prefault(memory_, pool);
  counters_ = comm.node().make_counters("all-to-all of heads", kNumChannels);
  if (team.num_nodes > 1) rail_ = &comm.open_token_rail(team.first_node, team.num_nodes);
  parts_.resize(static_cast<size_t>(team.num_nodes));
}

ContextAllToAll::~ContextAllToAll() {
  if (rail_ != nullptr) rail_->release_buffers();
}

NetworkCounters ContextAllToAll::take_network() {
  if (rail_ == nullptr) return {};
  const NetworkCounters now = rail_->counters();
  return now.since(std::exchange(counted_, now));
}

std::byte* ContextAllToAll::outbox(int local) const {
  const int64_t of_rank = team_.num_nodes > 1 ? 2 * box_bytes_ : box_bytes_;
  return memory_.data() + local_rank_of(local) * of_rank;
}

void ContextAllToAll::to_shares(std::span<const RowSection> sections, int64_t num_tokens,
                                const std::byte* own, std::byte* shared, const OpLabel& label) {
  const int64_t own_bytes = row_bytes_of(sections), shared_bytes = shared_row_bytes(sections, team_.size);
  const auto pack = [&](int64_t member, int64_t token, std::byte* row) {
    const std::byte* from = own + token * own_bytes;
    for (const RowSection& section : sections) {
      const int64_t share = section.share(team_.size);
      std::memcpy(row, from + member / section.readers * share, static_cast<size_t>(share));
      row += share;
      from += section.width;
    }
  };
  const auto unpack = [&](int64_t member, int64_t token, const std::byte* row) {
    std::memcpy(shared + (token * team_.size + member) * shared_bytes, row,
                static_cast<size_t>(shared_bytes));
  };
  run(
      shared_bytes, num_tokens, pack, unpack, [] {}, label);
}

void ContextAllToAll::to_tokens(std::span<const RowSection> sections, DType dtype, int64_t num_tokens,
                                const std::byte* shared, std::byte* own, const OpLabel& label) {
  const int64_t own_bytes = row_bytes_of(sections), shared_bytes = shared_row_bytes(sections, team_.size);
  const auto pack = [&](int64_t member, int64_t token, std::byte* row) {
    std::memcpy(row, shared + (token * team_.size + member) * shared_bytes,
                static_cast<size_t>(shared_bytes));
  };
  const auto unpack = [&](int64_t member, int64_t token, const std::byte* row) {
    std::byte* to = own + token * own_bytes;
    for (const RowSection& section : sections) {
      const int64_t share = section.share(team_.size);
      if (section.readers == 1) std::memcpy(to + member * share, row, static_cast<size_t>(share));
      row += share;
      to += section.width;
    }
  };
  run(
      shared_bytes, num_tokens, pack, unpack, [&] { add_up(sections, dtype, num_tokens, own); }, label);
}

void ContextAllToAll::add_up(std::span<const RowSection> sections, DType dtype, int64_t num_tokens,
                             std::byte* own) {
  const int64_t own_bytes = row_bytes_of(sections), shared_bytes = shared_row_bytes(sections, team_.size);
  int64_t to = 0, from = 0;  // where a section begins in a row
  for (const RowSection& section : sections) {
    const int64_t share = section.share(team_.size);
    if (section.readers > 1) {
      pool_.parallel_blocks(num_tokens, kTokensAtOnce, [&](int64_t begin, int64_t end) {
        std::vector<const std::byte*> inputs(static_cast<size_t>(section.readers));
        for (int64_t t = begin; t < end; ++t) {
          for (int64_t first = 0; first < team_.size; first += section.readers) {
            for (int64_t reader = 0; reader < section.readers; ++reader) {
              inputs[static_cast<size_t>(reader)] =
                  block_of(first + reader) + kHeaderBytes + t * shared_bytes + from;
            }
            add_values(inputs, dtype, share / dtype_bytes(dtype),
                       own + t * own_bytes + to + first / section.readers * share);
          }
        }
      });
    }
    to += section.width;
    from += share;
  }
}

void ContextAllToAll::pack_all(int64_t row_bytes, int64_t num_tokens, Pack pack) {
  std::byte* const blocks = outbox(team_.local());
  for (int64_t member = 0; member < team_.size; ++member) {
    const uint64_t wish = wishes_to_abandon_ ? 1 : 0;
    std::memcpy(blocks + member * block_bytes_, &wish, sizeof(wish));
  }
  pool_.parallel_blocks(num_tokens, kTokensAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t member = 0; member < team_.size; ++member) {
      std::byte* const rows = blocks + member * block_bytes_ + kHeaderBytes;
      for (int64_t t = begin; t < end; ++t) pack(member, t, rows + t * row_bytes);
    }
  });
}

const std::byte* ContextAllToAll::block_of(int64_t member) const {
  const auto node = static_cast<int>(member) / team_.local_size;
  const auto local = static_cast<int>(member) % team_.local_size;
  // A block for this node begins in an outbox at this node's part, in an inbox at the sender's.
  const std::byte* const box = node == team_.node() ? outbox(local) : inbox(local);
  return box + (node * team_.local_size + team_.local()) * block_bytes_;
}

void ContextAllToAll::unpack_from(int64_t member, int64_t row_bytes, int64_t num_tokens, Unpack unpack) {
  const std::byte* const block = block_of(member);
  uint64_t wish = 0;
  std::memcpy(&wish, block, sizeof(wish));
  is_abandoned_ = is_abandoned_ || wish != 0;
  pool_.parallel_blocks(num_tokens, kTokensAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) unpack(member, t, block + kHeaderBytes + t * row_bytes);
  });
}

void ContextAllToAll::run(int64_t row_bytes, int64_t num_tokens, Pack pack, Unpack unpack,
                          FunctionRef<void()> complete, const OpLabel& label) {
  block_bytes_ = block_bytes(row_bytes, num_tokens);
  TESSERA_CHECK(team_.size * block_bytes_ <= box_bytes_, "{} blocks of {} bytes in {}", team_.size,
                block_bytes_, box_bytes_);
  const int64_t node_bytes = team_.local_size * block_bytes_;
  const auto wait_for = [&](int local, Channel channel, uint64_t number) {
    counters_.wait(local_rank_of(local), channel, number, label, block_bytes_);
  };
  // The boxes of the previous all-to-all must have been read.
  for (int local = 0; local < team_.local_size; ++local) wait_for(local, kTaken, number_);
  ++number_;
  pack_all(row_bytes, num_tokens, pack);
  counters_.publish(kPacked, number_);
  NetworkGroup::Ticket arrival = 0;
  if (rail_ != nullptr) {
    for (int node = 0; node < team_.num_nodes; ++node) {
      parts_[static_cast<size_t>(node)] = {node * node_bytes, (node + 1) * node_bytes};
    }
    const auto all_bytes = static_cast<size_t>(team_.num_nodes * node_bytes);
    arrival = rail_->all_to_all({outbox(team_.local()), all_bytes}, parts_, {inbox(team_.local()), all_bytes},
                                parts_, label);
  }
  const int64_t first_here = team_.node() * team_.local_size;
  for (int local = 0; local < team_.local_size; ++local) {
    wait_for(local, kPacked, number_);
    unpack_from(first_here + local, row_bytes, num_tokens, unpack);
  }
  if (rail_ != nullptr) {
    rail_->wait(arrival);
    counters_.publish(kArrived, number_);
    for (int64_t member = 0; member < team_.size; ++member) {
      if (member / team_.local_size == team_.node()) continue;
      wait_for(static_cast<int>(member) % team_.local_size, kArrived, number_);
      unpack_from(member, row_bytes, num_tokens, unpack);
    }
  }
  complete();
  counters_.publish(kTaken, number_);
}

}  // namespace tessera
