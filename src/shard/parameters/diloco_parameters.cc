#include "shard/parameters/diloco_parameters.h"

#include <algorithm>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"
#include "checkpoint/checkpoint_files.h"
#include "shard/model_places.h"

namespace tessera {
namespace {

// Elements that a thread copies at a time.
constexpr int64_t kCopyElements = int64_t{1} << 16;
constexpr ElementRange kAllElements = {0, INT64_MAX};

ZeroSettings settings_of_node(ZeroSettings settings) {
  settings.outer.reset();
  return settings;
}

OuterPlan outer_plan(const TrainableModel& model, const ZeroSettings& settings, const World& world) {
  return {zero_layout(model.layout(), world.num_nodes, world.local_world_size), settings, world.local_rank};
}

}  // namespace

DilocoParameters::DilocoParameters(TrainableModel& model, const ZeroSettings& settings,
                                   std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                                   Communicator& job, ThreadPool& pool)
    : settings_(settings.outer.value()),
      node_comm_(Communicator::of_node(job)),
      node_(make_parameter_state(model, settings_of_node(settings), std::move(optimizer), decay_all,
                                 *node_comm_, pool)),
      network_(&job.open_background_rail()),
      outer_(outer_plan(model, settings, job.world()), settings, *network_, pool),
      quantizes_(settings.quantized_gradients.has_value()),
      node_rank_(job.world().node_rank) {
  const StateTensors of_node = node_->state_tensors();
  state_tensors_.assign(of_node.begin(), of_node.end());
  state_tensors_.push_back(kOuterMomentum);
}

NodeWeights DilocoParameters::of_node(StateKind kind) {
  return {[this, kind](int64_t begin, std::span<float> values) { node_->read_state(kind, begin, values); },
          [this, kind](int64_t begin, std::span<const float> values) {
            node_->write_state(kind, begin, values);
          }};
}

// Every node reads the files for itself.
void DilocoParameters::load(const SafetensorsModel& file, LoadOnce /*once*/,
                            const std::function<void(const LoadProgress&)>& progress) {
  node_->load(file, LoadOnce::kPerNode, progress);
  std::vector<float> values(static_cast<size_t>(kCopyElements));
  for (const ElementRange& range : kept()) {
    for (int64_t begin = range.begin; begin < range.end; begin += kCopyElements) {
      const auto count = static_cast<size_t>(std::min(kCopyElements, range.end - begin));
      node_->read_state(StateKind::kMaster, begin, std::span(values).first(count));
      outer_.write(OuterOptimizer::Kept::kWeights, begin, std::span(values).first(count));
    }
  }
}

void DilocoParameters::announce_change(const ChangeHook& before_change, ElementRange elements) const {
  if (!before_change) return;
  for (const ElementRange& range : owned()) {
    const ElementRange common = {std::max(range.begin, elements.begin), std::min(range.end, elements.end)};
    if (common.begin < common.end) before_change(common);
  }
}

void DilocoParameters::update(const OptimizerStep& step, const ChangeHook& before_change) {
  node_->update(step, [&](ElementRange changes) { announce_change(before_change, changes); });
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
void DilocoParameters::exchange(int64_t fragment, bool exactly, double alpha) {
  const NodeWeights weights = of_node(StateKind::kMaster);
  const std::vector<int64_t>& pieces = outer_.plan().fragment(fragment);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i == 0) outer_.begin(pieces[i], weights, exactly);
    if (i + 1 < pieces.size()) outer_.begin(pieces[i + 1], weights, exactly);
    outer_.step(pieces[i]);
    outer_.finish(pieces[i], weights, alpha);
  }
  node_->state_written();
}

void DilocoParameters::begin_exchange(int64_t fragment, int64_t num_updates) {
  TESSERA_CHECK(!pending_, "fragment {} is on its way", pending_->fragment);
  pending_ = Exchange{fragment, num_updates};
  for (const int64_t piece : outer_.plan().fragment(fragment))
    outer_.begin(piece, of_node(StateKind::kMaster));
}

void DilocoParameters::step_exchange() {
  if (std::exchange(pending_->has_stepped, true)) return;
  for (const int64_t piece : outer_.plan().fragment(pending_->fragment)) outer_.step(piece);
}

void DilocoParameters::finish_exchange(double alpha) {
  step_exchange();
  for (const int64_t piece : outer_.plan().fragment(pending_->fragment))
    outer_.finish(piece, of_node(StateKind::kMaster), alpha);
  pending_.reset();
  node_->state_written();
}

void DilocoParameters::count_traffic() {
  const NetworkCounters now = network_->counters();
  counted_.add(now.since(seen_));
  seen_ = now;
}

NetworkCounters DilocoParameters::take_network() {
  count_traffic();
  return std::exchange(counted_, {});
}

void DilocoParameters::synchronize(const ChangeHook& before_change) {
  if (is_synchronized_) return;
  announce_change(before_change, kAllElements);
  // What is under way says nothing of the updates after its beginning: these follow.
  if (pending_) finish_exchange(settings_.update_alpha);
  count_traffic();
  for (int64_t fragment = 0; fragment < settings_.num_fragments; ++fragment)
    exchange(fragment, /*exactly=*/true, /*alpha=*/0);
  seen_ = network_->counters();
  is_synchronized_ = true;
}

void DilocoParameters::settle_state(const ChangeHook& before_change) {
  synchronize(before_change);
  announce_change(before_change, kAllElements);
  count_traffic();
  for (size_t tensor = 0; tensor + 1 < state_tensors_.size(); ++tensor) {
    for (int64_t piece = 0; piece < outer_.plan().num_pieces(); ++piece)
      outer_.average(piece, of_node(state_kind(tensor)), "mean of the optimizers' states");
  }
  seen_ = network_->counters();
}

// All nodes have the same.
void DilocoParameters::export_masters(const std::function<void(const WeightSource&)>& write) {
  if (node_rank_ == 0) node_->export_masters(write);
}

std::vector<ElementRange> DilocoParameters::owned() const {
  std::vector<ElementRange> ranges;
  for (int64_t piece = 0; piece < outer_.plan().num_pieces(); ++piece) {
    const Part own = outer_.plan().owned(piece, node_rank_);
    if (own.size() > 0) ranges.push_back({own.begin, own.end});
  }
  return ranges;
}

void DilocoParameters::read_state(StateKind kind, int64_t begin, std::span<float> values) const {
  if (kind == StateKind::kMaster) return outer_.read(OuterOptimizer::Kept::kWeights, begin, values);
  if (is_momentum(kind)) return outer_.read(OuterOptimizer::Kept::kMomentum, begin, values);
  node_->read_state(kind, begin, values);
}

// The masters that are saved are not the node's own.
StoredSource DilocoParameters::stored_source() const {
  StoredSource of_node = node_->stored_source();
  if (!of_node) return {};
  return [this, of_node = std::move(of_node)](size_t part, DType dtype, int64_t begin, int64_t count,
                                              const StoredBody& body) {
    return part >= StoredParts::kFirstTensor && !is_momentum(StoredParts::kind(part)) &&
           of_node(part, dtype, begin, count, body);
  };
}

void DilocoParameters::write_state(StateKind kind, int64_t begin, std::span<const float> values) {
  if (is_momentum(kind)) return outer_.write(OuterOptimizer::Kept::kMomentum, begin, values);
  if (kind == StateKind::kMaster) outer_.write(OuterOptimizer::Kept::kWeights, begin, values);
  node_->write_state(kind, begin, values);
}

}  // namespace tessera
