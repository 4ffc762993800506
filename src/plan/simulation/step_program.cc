#include "plan/simulation/step_program.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/error.h"
#include "comm/network/chunk_count.h"
#include "kernels/quantized_weight/gradient_blocks.h"
#include "kernels/quantized_weight/int8_blocks.h"

namespace tessera {
namespace {

// What stop_agreement.cc and step_exchange.cc send: losses, times, signals.
constexpr double kValueBytes = 256;
// Between passes longer than this the ranks ask one another for signals.
constexpr double kAskSeconds = 0.1;
constexpr int64_t kNumStaging = 2;  // as in GradientStore

class Recorder {
 public:
  Recorder(const ZeroLayout& layout, const ZeroSettings& settings, int connections)
      : layout_(layout), settings_(settings), connections_(connections) {}

  void compute(double seconds) {
    if (seconds > 0) program_.actions.push_back({ActionKind::kCompute, seconds, 0});
  }
  void other(double seconds) { program_.actions.push_back({ActionKind::kOther, seconds, 0}); }
  void wait(int64_t transfer) { program_.actions.push_back({ActionKind::kWait, 0, transfer}); }
  void end_step() {
    program_.actions.push_back({ActionKind::kStepEnd});
    ++step_;
  }

  // Bytes of all nodes' parts of a group.
  int64_t issue(TransferKind kind, int64_t group_bytes) {
    const double pair_bytes = static_cast<double>(group_bytes) / layout_.num_nodes;
    const double of_rank = pair_bytes / layout_.local_world_size;
    const int64_t chunks =
        num_chunks(std::llround(of_rank), /*is_sum=*/kind == TransferKind::kReduce, connections_);
    return add({kind, step_, pair_bytes, static_cast<double>(chunks * layout_.local_world_size)});
  }
  void exchange_values() {
    const double ranks = layout_.local_world_size;
    wait(add({TransferKind::kValues, step_, ranks * kValueBytes, ranks}));
  }

  const ZeroLayout& layout() const { return layout_; }
  const ZeroSettings& settings() const { return settings_; }
  int64_t group_bytes(int64_t group, DType dtype) const {
    return layout_.groups[static_cast<size_t>(group)].size() * dtype_bytes(dtype);
  }
  int64_t weight_bytes(int64_t group) const {
    return settings_.quantized_weights ? int8_blocks_bytes(layout_.groups[static_cast<size_t>(group)].size())
                                       : group_bytes(group, settings_.weight_dtype);
  }
  int64_t gradient_bytes(int64_t group) const {
    if (!settings_.quantized_gradients) return group_bytes(group, settings_.network_dtype);
    return gradient_blocks_bytes(*settings_.quantized_gradients,
                                 layout_.groups[static_cast<size_t>(group)].size());
  }
  StepProgram take() { return std::move(program_); }

 private:
  int64_t add(const SimulatedTransfer& transfer) {
    const int64_t number = std::ssize(program_.transfers);
    program_.transfers.push_back(transfer);
    program_.actions.push_back({ActionKind::kIssue, 0, number});
    return number;
  }

  const ZeroLayout& layout_;
  const ZeroSettings& settings_;
  int connections_;
  int step_ = 0;
  StepProgram program_;
};

// WeightStore on a node: what it gathers and when.
class Weights {
 public:
  explicit Weights(Recorder& recorder)
      : recorder_(recorder),
        head_(std::ssize(recorder.layout().groups) - 1),
        sharded_(shards_weights(recorder.layout(), recorder.settings())),
        fetches_(recorder.layout().num_nodes > 1 && recorder.settings().stage > 0) {
    resident_.resize(recorder.layout().groups.size(), kNone);
    if (!sharded_) return;
    slots_.resize(static_cast<size_t>(num_live_layers(recorder.layout(), recorder.settings())));
    slots_.push_back({.for_ends = true});
  }

  void open(int64_t group, bool forward) {
    if (is_resident(group)) {
      int64_t& fetch = resident_[static_cast<size_t>(group)];
      if (fetch != kNone) recorder_.wait(fetch);
      fetch = kNone;
      return;
    }
    Slot* slot = find(group);
    if (slot == nullptr) slot = &gather(group);
    slot->is_open = true;
    slot->last_use = ++clock_;
    fetch_ahead(group, forward);
    if (slot->fetch != kNone) recorder_.wait(slot->fetch);
    slot->fetch = kNone;
  }
  void close(int64_t group) {
    if (!is_resident(group)) find(group)->is_open = false;
  }
  void updated(int64_t group) {
    if (group == 0) {
      for (Slot& slot : slots_) slot.group = kNone;
    }
    if (is_resident(group) && fetches_) resident_[static_cast<size_t>(group)] = issue(group);
  }

 private:
  static constexpr int64_t kNone = -1;

  struct Slot {
    bool for_ends = false;  // for embedding or head rather than a layer
    int64_t group = kNone;
    bool is_open = false;
    int64_t last_use = 0;
    int64_t fetch = kNone;  // that nobody has waited for yet
  };

  bool is_resident(int64_t group) const {
    return !sharded_ || is_persistent(recorder_.layout(), recorder_.settings(), group);
  }
  bool is_end(int64_t group) const { return group == 0 || group == head_; }
  Slot* find(int64_t group) {
    const auto found = std::ranges::find(slots_, group, &Slot::group);
    return found == slots_.end() ? nullptr : &*found;
  }
  int64_t issue(int64_t group) {
    const int64_t number = recorder_.issue(TransferKind::kGather, recorder_.weight_bytes(group));
    if (!recorder_.settings().overlap) recorder_.wait(number);
    return number;
  }
  // Fills the least recently used slot.
  Slot& gather(int64_t group) {
    Slot* oldest = nullptr;
    for (Slot& slot : slots_) {
      if (slot.for_ends != is_end(group) || slot.is_open) continue;
      if (oldest == nullptr || slot.last_use < oldest->last_use) oldest = &slot;
    }
    TESSERA_CHECK(oldest != nullptr, "no memory for group {}", group);
    oldest->group = group;
    oldest->last_use = ++clock_;
    oldest->fetch = issue(group);
    return *oldest;
  }
  void fetch_ahead(int64_t group, bool forward) {
    const int64_t ahead = std::ssize(slots_) - 2;
    for (int64_t i = 1; i <= ahead; ++i) {
      const int64_t next = forward ? group + i : group - i;
      if (next < 1 || next >= head_ || is_resident(next)) continue;
      Slot* slot = find(next);
      if (slot == nullptr) slot = &gather(next);
      slot->last_use = ++clock_;
    }
    const bool near_head = group >= std::max<int64_t>(1, head_ - 2) && group < head_;
    if (forward && near_head && !is_resident(head_) && find(head_) == nullptr) gather(head_);
  }

  Recorder& recorder_;
  int64_t head_;
  bool sharded_;
  bool fetches_;
  std::vector<int64_t> resident_;  // by group: the gather that nobody has waited for yet
  std::vector<Slot> slots_;
  int64_t clock_ = 0;
};

// GradientStore on a node: what it sums and reduces, and when.
class Gradients {
 public:
  Gradients(Recorder& recorder, const StepCosts& costs)
      : recorder_(recorder),
        costs_(costs),
        direct_(!needs_layer_buffers(recorder.layout(), recorder.settings())),
        whole_(accumulates_whole_gradient(recorder.layout(), recorder.settings())),
        stages_(needs_staging(recorder.layout(), recorder.settings())),
        uses_network_(recorder.layout().num_nodes > 1) {}

  void begin_pass(bool is_first, bool is_last) {
    is_first_ = is_first;
    is_last_ = is_last;
  }
  void open(int64_t group) {
    if (direct_) return;
    while (num_summed_ < last_use_[buffer_of(group)]) closed_.empty() ? finish_oldest() : sum_next();
  }
  void close(int64_t group) {
    ++num_closed_;
    if (direct_) {
      if (is_last_ && uses_network_) reduce({group, num_closed_});
      return;
    }
    last_use_[buffer_of(group)] = num_closed_;
    closed_.push_back({group, num_closed_});
    while (closed_.size() > 1) sum_next();
  }
  void finish_pass() {
    while (!closed_.empty()) sum_next();
    if (!is_last_) return;
    while (!reductions_.empty()) finish_oldest();
    if (recorder_.settings().stage == 0 && uses_network_) share_sums();
  }

 private:
  struct Closed {
    int64_t group;
    int64_t number;
    int64_t transfer = 0;
  };

  size_t buffer_of(int64_t group) const {
    const auto& groups = recorder_.layout().groups;
    const int64_t last = std::ssize(groups) - 1;
    const bool is_layer =
        group > 0 && (group < last || groups[static_cast<size_t>(group)].size() < groups[0].size() / 2);
    return is_layer ? static_cast<size_t>(group % 2) : 2;
  }
  bool reduces_in_place() const { return whole_ && recorder_.settings().gradient_dtype == DType::kF32; }

  void sum_next() {
    const Closed next = closed_.front();
    closed_.pop_front();
    const bool reduces = uses_network_ && (!whole_ || is_last_);
    if (reduces && !whole_ && recorder_.layout().local_world_size == 1) {
      reduce(next);
      return;
    }
    if (reduces && stages_) {
      while (num_staged_ == kNumStaging) finish_oldest();
      ++num_staged_;
    }
    const std::vector<double>& sum_s = is_first_ || !whole_ ? costs_.first_sum_s : costs_.further_sum_s;
    recorder_.compute(sum_s[static_cast<size_t>(next.group)]);
    num_summed_ = next.number;
    if (reduces) reduce(next);
  }
  void reduce(Closed closed) {
    closed.transfer = recorder_.issue(TransferKind::kReduce, recorder_.gradient_bytes(closed.group));
    reductions_.push_back(closed);
    if (!recorder_.settings().overlap) recorder_.wait(closed.transfer);
  }
  void finish_oldest() {
    const Closed oldest = reductions_.front();
    reductions_.pop_front();
    recorder_.wait(oldest.transfer);
    if (reduces_in_place()) return;
    recorder_.compute(costs_.own_sum_s[static_cast<size_t>(oldest.group)]);
    if (stages_) {
      --num_staged_;
    } else {
      num_summed_ = oldest.number;
    }
  }
  void share_sums() {
    int64_t last = 0;
    for (int64_t g = 0; g < std::ssize(recorder_.layout().groups); ++g) {
      last = recorder_.issue(TransferKind::kGather,
                             recorder_.group_bytes(g, recorder_.settings().gradient_dtype));
    }
    recorder_.wait(last);
  }

  Recorder& recorder_;
  const StepCosts& costs_;
  bool direct_, whole_, stages_, uses_network_;
  bool is_first_ = true, is_last_ = true;
  int64_t last_use_[3] = {};
  std::deque<Closed> closed_;
  std::deque<Closed> reductions_;
  int64_t num_closed_ = 0, num_summed_ = 0, num_staged_ = 0;
};

// The calls of TrainableModel::forward_backward() (model/parameter_access.h).
class Steps {
 public:
  Steps(Recorder& recorder, const StepCosts& costs, bool is_tied)
      : recorder_(recorder),
        costs_(costs),
        is_tied_(is_tied),
        head_(std::ssize(recorder.layout().groups) - 1),
        has_peers_(recorder.layout().num_nodes > 1),
        weights_(recorder),
        gradients_(recorder, costs) {}

  void run(int num_steps) {
    update_weights();  // the weights that the first step gathers
    for (int step = 0; step < num_steps; ++step) {
      run_passes();
      if (has_peers_) recorder_.exchange_values();
      update_weights();
      recorder_.other(costs_.other_s);
      recorder_.end_step();
    }
  }

 private:
  void run_passes() {
    const int64_t num_passes = std::ssize(costs_.passes);
    const double pass_s = costs_.passes_s() / static_cast<double>(num_passes);
    const double between_questions = std::ceil(kAskSeconds / std::max(pass_s, 1e-9));
    for (int64_t pass = 0; pass < num_passes; ++pass) {
      const bool asks = std::fmod(static_cast<double>(pass), between_questions) == 0;
      if (pass > 0 && asks && has_peers_) recorder_.exchange_values();
      gradients_.begin_pass(pass == 0, pass + 1 == num_passes);
      forward(costs_.passes[static_cast<size_t>(pass)], pass == 0);
      backward(costs_.passes[static_cast<size_t>(pass)]);
      gradients_.finish_pass();
    }
  }
  void open(int64_t group, bool forward, bool packs) {
    weights_.open(group, forward);
    if (packs) recorder_.compute(costs_.packing_s[static_cast<size_t>(group)]);
  }
  void forward(const StepCosts::Pass& costs, bool packs) {
    for (int64_t group = 0; group < head_; ++group) {
      open(group, /*forward=*/true, packs);
      recorder_.compute(costs.forward_s[static_cast<size_t>(group)]);
      weights_.close(group);
    }
    if (is_tied_) open(0, /*forward=*/false, false);
    open(head_, /*forward=*/false, packs);
    if (is_tied_) gradients_.open(0);
    gradients_.open(head_);
  }
  void backward(const StepCosts::Pass& costs) {
    recorder_.compute(costs.backward_s[static_cast<size_t>(head_)]);
    weights_.close(head_);
    if (is_tied_) weights_.close(0);
    gradients_.close(head_);
    for (int64_t group = head_ - 1; group > 0; --group) {
      weights_.open(group, /*forward=*/false);
      gradients_.open(group);
      recorder_.compute(costs.backward_s[static_cast<size_t>(group)]);
      weights_.close(group);
      gradients_.close(group);
    }
    if (!is_tied_) gradients_.open(0);
    recorder_.compute(costs.backward_s[0]);
    gradients_.close(0);
  }
  void update_weights() {
    for (int64_t group = 0; group <= head_; ++group) {
      recorder_.compute(costs_.update_s[static_cast<size_t>(group)]);
      weights_.updated(group);
    }
  }

  Recorder& recorder_;
  const StepCosts& costs_;
  bool is_tied_;
  int64_t head_;
  bool has_peers_;
  Weights weights_;
  Gradients gradients_;
};

}  // namespace

double StepProgram::sent_bytes(int step, int num_nodes) const {
  double bytes = 0;
  for (const SimulatedTransfer& transfer : transfers) {
    if (transfer.step == step && transfer.kind != TransferKind::kValues) {
      bytes += transfer.pair_bytes * (num_nodes - 1);
    }
  }
  return bytes;
}

double StepProgram::compute_s(int step) const {
  double seconds = 0;
  int current = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kStepEnd) ++current;
    if (current == step && action.kind == ActionKind::kCompute) seconds += action.seconds;
  }
  return seconds;
}

StepProgram step_program(const ZeroLayout& layout, const ZeroSettings& settings, const StepCosts& costs,
                         bool is_tied, int connections, int num_steps) {
  Recorder recorder(layout, settings, connections);
  Steps(recorder, costs, is_tied).run(num_steps);
  return recorder.take();
}

}  // namespace tessera
