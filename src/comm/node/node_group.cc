#include "comm/node/node_group.h"

#include <exception>

#include "base/error.h"
#include "base/text.h"
#include "comm/node/node_rendezvous.h"
#include "comm/node/node_state.h"
#include "platform/prefault.h"

namespace tessera {

CounterCell& SharedCounters::cell(int index, int64_t channel) const {
  TESSERA_CHECK(index >= 0 && index < state_->size() && channel >= 0 && channel < num_channels_,
                "rank {} of {}, channel {} of {}", index, state_->size(), channel, num_channels_);
  return reinterpret_cast<CounterCell*>(segment_->data())[index * num_channels_ + channel];
}

void SharedCounters::publish(int64_t channel, uint64_t value) {
  CounterCell& own = cell(state_->index(), channel);
  TESSERA_CHECK(own.value.load(std::memory_order_relaxed) <= value, "channel {}: {} after {}", channel, value,
                own.value.load());
  tessera::publish(own, value);
}

uint64_t SharedCounters::value(int index, int64_t channel) const {
  return cell(index, channel).value.load(std::memory_order_acquire);
}

void SharedCounters::wait(int index, int64_t channel, uint64_t value, const OpLabel& label,
                          int64_t bytes) const {
  NodeWait(*state_, WaitKind::kCounters, label, bytes).until(cell(index, channel), index, value);
}

void SharedCounters::wait_all(int64_t channel, uint64_t value, const OpLabel& label, int64_t bytes) const {
  NodeWait wait(*state_, WaitKind::kCounters, label, bytes);
  for (int i = 0; i < state_->size(); ++i) wait.until(cell(i, channel), i, value);
}

NodeGroup::NodeGroup(const World& world, const NodeGroupOptions& options, FailureDetector& failures)
    : state_(std::make_shared<NodeState>(world, options, failures)),
      exceptions_at_start_(std::uncaught_exceptions()) {
  open_node(*state_);
}

NodeGroup::~NodeGroup() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  state_->leave(!unwinding && !state_->failures().failed());
}

int NodeGroup::size() const { return state_->size(); }
int NodeGroup::index() const { return state_->index(); }

PageBuffer NodeGroup::allocate(std::string_view name, int64_t size_bytes) {
  NodeState& state = *state_;
  TESSERA_CHECK(size_bytes >= 0, "allocate '{}' of {} bytes", name, size_bytes);
  if (state.size() == 1 || size_bytes == 0) {
    if (state.size() > 1) state.agree(fmt::format("allocate {} of {}", count_of(size_bytes, "byte"), name));
    return PageBuffer(size_bytes);
  }
  state.agree(fmt::format("allocate {} of {}", count_of(size_bytes, "byte"), name));
  return state.index() == 0 ? give_segment(state, name, size_bytes) : take_segment(state, name, size_bytes);
}

void NodeGroup::prefault(const PageBuffer& segment, ThreadPool& pool) const {
  const std::span<std::byte> memory = segment.as<std::byte>();
  if (size() == 1) {
    tessera::prefault(pool, memory);
  } else {
    const int64_t size_bytes = segment.size_bytes();
    prefault_shared(pool, memory, size_bytes * index() / size(), size_bytes * (index() + 1) / size());
  }
}

SharedCounters NodeGroup::make_counters(std::string_view name, int64_t num_channels) {
  SharedCounters counters;
  const int64_t size_bytes = num_channels * size() * static_cast<int64_t>(sizeof(CounterCell));
  counters.state_ = state_;
  counters.segment_ =
      std::make_shared<const PageBuffer>(allocate(fmt::format("counters {}", name), size_bytes));
  counters.num_channels_ = num_channels;
  return counters;
}

void NodeGroup::barrier(const OpLabel& label) {
  if (size() > 1) state_->agree(fmt::format("barrier {}", to_string(label)));
}

double NodeGroup::waited_s() const { return state_->waited_s(); }

std::vector<CollectiveCount> NodeGroup::collectives() const {
  return {state_->count(WaitKind::kBarrier), state_->count(WaitKind::kCounters)};
}

void NodeGroup::set_timeout(std::chrono::milliseconds timeout) { state_->set_timeout(timeout); }

}  // namespace tessera
