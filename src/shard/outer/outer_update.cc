#include "shard/outer/outer_update.h"

#include <algorithm>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"

namespace tessera {
namespace {

// Elements that a thread copies at a time.
constexpr int64_t kCopyElements = int64_t{1} << 16;
constexpr ElementRange kAllElements = {0, INT64_MAX};

}  // namespace

OuterUpdate::OuterUpdate(std::unique_ptr<UpdateRule> of_node, InnerState node, size_t num_tensors,
                         const ZeroLayout& job_layout, const ZeroSettings& settings, Communicator& job,
                         ThreadPool& pool)
    : of_node_(std::move(of_node)),
      node_(std::move(node)),
      num_tensors_(num_tensors),
      settings_(settings.outer.value()),
      network_(&job.open_background_rail()),
      outer_({job_layout, settings, job.world().local_rank}, settings, *network_, pool),
      quantizes_(settings.quantized_gradients.has_value()),
      node_rank_(job.world().node_rank) {}

NodeWeights OuterUpdate::of_node(StateKind kind) {
  return {[this, kind](int64_t begin, std::span<float> values) { node_.read(kind, begin, values); },
          [this, kind](int64_t begin, std::span<const float> values) { node_.write(kind, begin, values); }};
}

void OuterUpdate::loaded(const std::vector<ElementRange>& kept) {
  std::vector<float> values(static_cast<size_t>(kCopyElements));
  for (const ElementRange& range : kept) {
    for (int64_t begin = range.begin; begin < range.end; begin += kCopyElements) {
      const auto count = static_cast<size_t>(std::min(kCopyElements, range.end - begin));
      node_.read(StateKind::kMaster, begin, std::span(values).first(count));
      write(StateKind::kMaster, begin, std::span(values).first(count));
    }
  }
}

void OuterUpdate::announce_change(const ChangeHook& before_change, ElementRange elements) const {
  if (!before_change) return;
  for (const ElementRange& range : owned()) {
    const ElementRange common = {std::max(range.begin, elements.begin), std::min(range.end, elements.end)};
    if (common.begin < common.end) before_change(common);
  }
}

void OuterUpdate::update(const OptimizerStep& step, const ChangeHook& before_change) {
  of_node_->update(step, [&](ElementRange changes) { announce_change(before_change, changes); });
  is_synchronized_ = false;
  const int64_t num_updates = step.step;
  if (pending_ && num_updates >= pending_->begun + divide_up(settings_.sync_delay, int64_t{2}))
    step_exchange();
  if (pending_ && num_updates >= pending_->begun + settings_.sync_delay)
    finish_exchange(settings_.update_alpha);
  for (int64_t fragment = 0; fragment < settings_.num_fragments; ++fragment) {
    if (!outer_.plan().begins(fragment, num_updates)) continue;
    if (settings_.sync_delay > 0) {
      begin_exchange(fragment, num_updates);
      continue;
    }
    exchange(fragment, /*exactly=*/false, settings_.update_alpha);
    is_synchronized_ = settings_.num_fragments == 1 && settings_.update_alpha == 0 && !quantizes_;
  }
}

// While a piece is on the network, the next one is prepared.
void OuterUpdate::exchange(int64_t fragment, bool exactly, double alpha) {
  const NodeWeights weights = of_node(StateKind::kMaster);
  const std::vector<int64_t>& pieces = outer_.plan().fragment(fragment);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i == 0) outer_.begin(pieces[i], weights, exactly);
    if (i + 1 < pieces.size()) outer_.begin(pieces[i + 1], weights, exactly);
    outer_.step(pieces[i]);
    outer_.finish(pieces[i], weights, alpha);
  }
  node_.written();
}

void OuterUpdate::begin_exchange(int64_t fragment, int64_t num_updates) {
  TESSERA_CHECK(!pending_, "fragment {} is on its way", pending_->fragment);
  pending_ = Exchange{fragment, num_updates};
  for (const int64_t piece : outer_.plan().fragment(fragment))
    outer_.begin(piece, of_node(StateKind::kMaster));
}

void OuterUpdate::step_exchange() {
  if (std::exchange(pending_->has_stepped, true)) return;
  for (const int64_t piece : outer_.plan().fragment(pending_->fragment)) outer_.step(piece);
}

void OuterUpdate::finish_exchange(double alpha) {
  step_exchange();
  for (const int64_t piece : outer_.plan().fragment(pending_->fragment))
    outer_.finish(piece, of_node(StateKind::kMaster), alpha);
  pending_.reset();
  node_.written();
}

void OuterUpdate::count_traffic() {
  const NetworkCounters now = network_->counters();
  counted_.add(now.since(seen_));
  seen_ = now;
}

NetworkCounters OuterUpdate::take_network() {
  count_traffic();
  return std::exchange(counted_, {});
}

void OuterUpdate::synchronize(const ChangeHook& before_change) {
  if (is_synchronized_) return;
  announce_change(before_change, kAllElements);
  // A pending exchange does not cover the updates since it began: these are exchanged below.
  if (pending_) finish_exchange(settings_.update_alpha);
  count_traffic();
  for (int64_t fragment = 0; fragment < settings_.num_fragments; ++fragment)
    exchange(fragment, /*exactly=*/true, /*alpha=*/0);
  seen_ = network_->counters();
  is_synchronized_ = true;
}

void OuterUpdate::settle_state(const ChangeHook& before_change) {
  synchronize(before_change);
  announce_change(before_change, kAllElements);
  count_traffic();
  for (size_t tensor = 0; tensor < num_tensors_; ++tensor) {
    for (int64_t piece = 0; piece < outer_.plan().num_pieces(); ++piece)
      outer_.average(piece, of_node(state_kind(tensor)), "mean of the optimizers' states");
  }
  seen_ = network_->counters();
}

std::vector<ElementRange> OuterUpdate::owned() const {
  std::vector<ElementRange> ranges;
  for (int64_t piece = 0; piece < outer_.plan().num_pieces(); ++piece) {
    const Part own = outer_.plan().owned(piece, node_rank_);
    if (own.size() > 0) ranges.push_back({own.begin, own.end});
  }
  return ranges;
}

}  // namespace tessera
