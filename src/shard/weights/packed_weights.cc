#include "shard/weights/packed_weights.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

// The only channel: number of groups whose share a rank has made since the beginning.
constexpr int64_t kPacked = 0;

}  // namespace

PackedWeights::PackedWeights(std::span<const int64_t> bytes_by_group, NodeGroup& node, ThreadPool& pool,
                             Weights weights, PackShare pack_share)
    : weights_(std::move(weights)), pack_share_(std::move(pack_share)) {
  const int64_t total = std::reduce(bytes_by_group.begin(), bytes_by_group.end());
  memory_ = node.allocate("packed weights", total);
  node.prefault(memory_, pool);
  counters_ = node.make_counters("packed weights", 1);
  std::byte* next = memory_.data();
  for (const int64_t size_bytes : bytes_by_group) {
    forms_.push_back(size_bytes == 0 ? nullptr : next);
    next += size_bytes;
  }
}

void PackedWeights::weights_changed() {
  ++version_;
  num_packed_ = num_complete_ = 0;
}

void PackedWeights::complete(int64_t group) {
  TESSERA_CHECK(version_ > 0, "weights were never announced");
  if (group < num_complete_) return;
  const auto stamp = [&](int64_t num_groups_packed) {
    return (version_ - 1) * static_cast<uint64_t>(num_groups()) + static_cast<uint64_t>(num_groups_packed);
  };
  while (num_packed_ < num_groups() && (num_packed_ <= group || weights_.is_complete(num_packed_))) {
    if (forms(num_packed_) != nullptr) {
      pack_share_(num_packed_, weights_.open(num_packed_));
    }
    counters_.publish(kPacked, stamp(++num_packed_));
  }
  counters_.wait_all(kPacked, stamp(group + 1), {"packed weights", group});
  num_complete_ = group + 1;
}

}  // namespace tessera
