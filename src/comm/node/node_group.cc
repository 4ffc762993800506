#include "comm/node/node_group.h"

#include <exception>

#include "base/error.h"
#include "base/text.h"
#include "comm/node/node_rendezvous.h"
#include "comm/node/node_state.h"
#include "platform/prefault.h"

namespace tessera {

class SharedCounters::Impl {
 public:
  Impl(std::shared_ptr<NodeState> node, PageBuffer memory, int64_t channels)
      : state(std::move(node)), segment(std::move(memory)), num_channels(channels) {}

  // Counters of a rank are contiguous: each rank writes its own pages.
  CounterCell& cell(int index, int64_t channel) const {
    TESSERA_CHECK(index >= 0 && index < state->size() && channel >= 0 && channel < num_channels,
                  "rank {} of {}, channel {} of {}", index, state->size(), channel, num_channels);
    return reinterpret_cast<CounterCell*>(segment.data())[index * num_channels + channel];
  }

  const std::shared_ptr<NodeState> state;
  const PageBuffer segment;
  const int64_t num_channels;
};

void SharedCounters::publish(int64_t channel, uint64_t value) {
  CounterCell& cell = impl_->cell(impl_->state->index(), channel);
  TESSERA_CHECK(cell.value.load(std::memory_order_relaxed) <= value, "channel {}: {} after {}", channel,
                value, cell.value.load());
  tessera::publish(cell, value);
}

uint64_t SharedCounters::value(int index, int64_t channel) const {
  return impl_->cell(index, channel).value.load(std::memory_order_acquire);
}

void SharedCounters::wait(int index, int64_t channel, uint64_t value, const OpLabel& label,
                          int64_t bytes) const {
  NodeWait(*impl_->state, WaitKind::kCounters, label, bytes).until(impl_->cell(index, channel), index, value);
}

void SharedCounters::wait_all(int64_t channel, uint64_t value, const OpLabel& label, int64_t bytes) const {
  NodeWait wait(*impl_->state, WaitKind::kCounters, label, bytes);
  for (int i = 0; i < impl_->state->size(); ++i) wait.until(impl_->cell(i, channel), i, value);
}

class NodeGroup::Impl {
 public:
  Impl(const World& world, const NodeGroupOptions& options, FailureDetector& failures)
      : state(std::make_shared<NodeState>(world, options, failures)) {
    open_node(*state);
  }

  const std::shared_ptr<NodeState> state;
  const int exceptions_at_start = std::uncaught_exceptions();
};

NodeGroup::NodeGroup(const World& world, const NodeGroupOptions& options, FailureDetector& failures)
    : impl_(std::make_unique<Impl>(world, options, failures)) {}

NodeGroup::~NodeGroup() {
  const bool unwinding = std::uncaught_exceptions() > impl_->exceptions_at_start;
  impl_->state->leave(!unwinding && !impl_->state->failures().failed());
}

int NodeGroup::size() const { return impl_->state->size(); }
int NodeGroup::index() const { return impl_->state->index(); }

PageBuffer NodeGroup::allocate(std::string_view name, int64_t size_bytes) {
  NodeState& state = *impl_->state;
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
  counters.impl_ = std::make_shared<SharedCounters::Impl>(
      impl_->state, allocate(fmt::format("counters {}", name), size_bytes), num_channels);
  return counters;
}

void NodeGroup::barrier(const OpLabel& label) {
  if (size() > 1) impl_->state->agree(fmt::format("barrier {}", to_string(label)));
}

double NodeGroup::waited_s() const { return impl_->state->waited_s(); }

std::vector<CollectiveCount> NodeGroup::collectives() const {
  return {impl_->state->count(WaitKind::kBarrier), impl_->state->count(WaitKind::kCounters)};
}

void NodeGroup::set_timeout(std::chrono::milliseconds timeout) { impl_->state->set_timeout(timeout); }

}  // namespace tessera
