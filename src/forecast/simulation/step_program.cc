#include "forecast/simulation/step_program.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"
#include "comm/network/link/chunk_count.h"
#include "kernels/quantized_weight/gradient_blocks.h"
#include "kernels/quantized_weight/int8_blocks.h"
#include "plan/expert_plan.h"
#include "shard/layout/device_window_places.h"
#include "shard/layout/fetch_order.h"
#include "shard/outer/outer_plan.h"

namespace tessera {
namespace {

// Between passes longer than this the ranks ask one another for signals.
constexpr double kAskSeconds = 0.1;
constexpr int64_t kNumStaging = 2;  // as in GradientStore
constexpr int kWarmUpSteps = 3;     // until the steady state

// Writes down what a node does, with the bytes that its transfers have.
class StepRecorder {
 public:
  StepRecorder(const ZeroLayout& job, const ZeroSettings& settings, int connections)
      : job_(job), layout_(job), settings_(settings), connections_(connections) {
    layout_.num_nodes = sharding_nodes(settings, job.num_nodes);
  }

  void compute(double seconds) {
    if (seconds <= 0) return;
    std::vector<Action>& actions = program_.actions;
    const bool goes_on = !actions.empty() && actions.back().kind == ActionKind::kCompute;
    if (goes_on) {
      actions.back().seconds += seconds;
    } else {
      actions.push_back({ActionKind::kCompute, seconds, 0});
    }
  }
  void other(double seconds) { program_.actions.push_back({ActionKind::kOther, seconds, 0}); }
  void wait(int64_t transfer) { program_.actions.push_back({ActionKind::kWait, 0, transfer}); }
  // `stands_for`: how many steps of the steady state this one represents.
  void end_step(double stands_for) {
    program_.actions.push_back({ActionKind::kStepEnd});
    program_.stands_for.push_back(stands_for);
    ++step_;
  }

  // A transfer of the parts of all nodes: `group_bytes` of a group, or of one piece of every local rank.
  // Returns its number.
  int64_t issue(TransferKind kind, int64_t group_bytes, SimulatedLane lane = SimulatedLane::kStep) {
    const double pair_bytes = static_cast<double>(group_bytes) / job_.num_nodes;
    const double of_rank = pair_bytes / job_.local_world_size;
    const int64_t chunks =
        num_chunks(std::llround(of_rank), /*is_sum=*/kind == TransferKind::kReduce, connections_);
    return add({kind, step_, pair_bytes, static_cast<double>(chunks * job_.local_world_size), lane});
  }
  // All nodes gather a few numbers and wait for them; a single node does nothing.
  void all_gather_values() {
    if (job_.num_nodes == 1) return;
    const double ranks = job_.local_world_size;
    wait(add({TransferKind::kValues, step_, ranks * kValueBytes, ranks}));
  }

  const ZeroLayout& job() const { return job_; }
  // The layout of the nodes that share the parameters: a single node if nodes train on their own.
  const ZeroLayout& layout() const { return layout_; }
  const ZeroSettings& settings() const { return settings_; }
  // What crosses the network: all but divided experts.
  int64_t group_elements(int64_t group) const {
    const auto at = static_cast<size_t>(group);
    const bool has_divided = settings_.divides_experts && !layout_.expert_begins[at].empty();
    return (has_divided ? layout_.expert_begins[at].front() : layout_.groups[at].end) -
           layout_.groups[at].begin;
  }
  int64_t group_bytes(int64_t group, DType dtype) const { return group_elements(group) * dtype_bytes(dtype); }
  int64_t weight_bytes(int64_t group) const {
    return settings_.quantized_weights ? int8_blocks_bytes(group_elements(group))
                                       : group_bytes(group, settings_.weight_dtype);
  }
  int64_t gradient_bytes(int64_t group) const {
    if (!settings_.quantized_gradients) return group_bytes(group, settings_.network_dtype);
    return gradient_blocks_bytes(*settings_.quantized_gradients, group_elements(group));
  }
  StepProgram take() { return std::move(program_); }

 private:
  // Bytes that stop_agreement.cc and step_gather.cc send: losses, times, signals.
  static constexpr double kValueBytes = 256;

  int64_t add(const SimulatedTransfer& transfer) {
    const int64_t number = std::ssize(program_.transfers);
    program_.transfers.push_back(transfer);
    program_.actions.push_back({ActionKind::kIssue, 0, number});
    return number;
  }

  const ZeroLayout& job_;
  ZeroLayout layout_;
  const ZeroSettings& settings_;
  int connections_;
  int step_ = 0;
  StepProgram program_;
};

// WeightStore on a node: what it gathers and when.
class Weights {
 public:
  explicit Weights(StepRecorder& recorder)
      : recorder_(recorder),
        order_(recorder.layout(), recorder.settings()),
        fetches_(recorder.layout().num_nodes > 1 && recorder.settings().stage > 0),
        resident_(recorder.layout().groups.size(), kNone),
        slots_(order_.num_slots(), kNone) {}

  void open(int64_t group, bool forward) {
    if (order_.is_resident(group)) return wait(resident_[static_cast<size_t>(group)]);
    for (const Fetch& fetch : order_.open(group, forward)) slots_[fetch.slot] = issue(fetch.group);
    wait(slots_[order_.slot_of(group)]);
  }
  void close(int64_t group) {
    if (!order_.is_resident(group)) order_.close(group);
  }
  void updated(int64_t group) {
    if (group == 0) order_.forget();
    if (order_.is_resident(group) && fetches_) resident_[static_cast<size_t>(group)] = issue(group);
  }

 private:
  static constexpr int64_t kNone = -1;

  int64_t issue(int64_t group) {
    const int64_t number = recorder_.issue(TransferKind::kGather, recorder_.weight_bytes(group));
    if (!recorder_.settings().overlap) recorder_.wait(number);
    return number;
  }
  void wait(int64_t& fetch) {
    if (fetch != kNone) recorder_.wait(fetch);
    fetch = kNone;
  }

  StepRecorder& recorder_;
  FetchOrder order_;
  bool fetches_;
  // The gathers that have not been waited for yet.
  std::vector<int64_t> resident_;  // by group
  std::vector<int64_t> slots_;
};

// GradientStore on a node: what it sums and reduces, and when.
class Gradients {
 public:
  Gradients(StepRecorder& recorder, const StepCosts& costs)
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
    return takes_layer_place(recorder_.layout(), group) ? static_cast<size_t>(group % 2) : 2;
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

  StepRecorder& recorder_;
  const StepCosts& costs_;
  bool direct_, whole_, stages_, uses_network_;
  bool is_first_ = true, is_last_ = true;
  int64_t last_use_[3] = {};
  std::deque<Closed> closed_;
  std::deque<Closed> reductions_;
  int64_t num_closed_ = 0, num_summed_ = 0, num_staged_ = 0;
};

// OuterUpdate on a node: the pieces it exchanges with the others, and when.
class OuterExchanges {
 public:
  explicit OuterExchanges(StepRecorder& recorder)
      : recorder_(recorder), plan_(recorder.job(), recorder.settings(), /*local_rank=*/0) {}

  // After an update. An exchange of the fragment, if one is given, begins.
  void updated(std::optional<int64_t> begins) {
    ++num_updates_;
    const int64_t delay = recorder_.settings().outer->sync_delay;
    if (pending_ && num_updates_ >= pending_->begun + divide_up(delay, int64_t{2})) step_pending();
    if (pending_ && num_updates_ >= pending_->begun + delay) {
      for (const int64_t piece : *pending_->pieces) finish(piece);
      pending_.reset();
    }
    if (!begins) return;
    const std::vector<int64_t>& pieces = plan_.fragment(*begins);
    if (delay == 0) return exchange(pieces);
    pending_ = Pending{&pieces, num_updates_};
    for (const int64_t piece : pieces) begin(piece);
  }

 private:
  struct Pending {
    const std::vector<int64_t>* pieces;
    int64_t begun;
    bool has_stepped = false;
  };

  void step_pending() {
    if (std::exchange(pending_->has_stepped, true)) return;
    for (const int64_t piece : *pending_->pieces) step(piece);
  }
  void exchange(const std::vector<int64_t>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i == 0) begin(pieces[i]);
      if (i + 1 < pieces.size()) begin(pieces[i + 1]);
      step(pieces[i]);
      finish(pieces[i]);
    }
  }
  // Every rank of a node has such a piece.
  int64_t num_elements(int64_t piece) const {
    return plan_.piece(piece).size() * recorder_.job().local_world_size;
  }
  void begin(int64_t piece) {
    const ZeroSettings& settings = recorder_.settings();
    const int64_t bytes = settings.quantized_gradients
                              ? gradient_blocks_bytes(*settings.quantized_gradients, num_elements(piece))
                              : num_elements(piece) * dtype_bytes(settings.network_dtype);
    transfers_[piece] = recorder_.issue(TransferKind::kReduce, bytes, SimulatedLane::kBackground);
  }
  void step(int64_t piece) {
    recorder_.wait(transfers_[piece]);
    transfers_[piece] = recorder_.issue(TransferKind::kGather,
                                        num_elements(piece) * dtype_bytes(recorder_.settings().network_dtype),
                                        SimulatedLane::kBackground);
  }
  void finish(int64_t piece) { recorder_.wait(transfers_[piece]); }

  StepRecorder& recorder_;
  const OuterPlan plan_;
  std::map<int64_t, int64_t> transfers_;  // by piece: the last
  std::optional<Pending> pending_;
  int64_t num_updates_ = 0;
};

// The calls of TrainableModel::forward_backward() (model/parameter_access.h).
class Steps {
 public:
  Steps(StepRecorder& recorder, const StepCosts& costs, bool is_tied)
      : recorder_(recorder),
        costs_(costs),
        is_tied_(is_tied),
        head_(std::ssize(recorder.layout().groups) - 1),
        weights_(recorder),
        gradients_(recorder, costs) {}

  void run() {
    update_weights();  // the weights that the first step gathers
    if (recorder_.settings().outer && recorder_.job().num_nodes > 1) {
      OuterExchanges exchanges(recorder_);
      for (const bool is_steady : {false, true}) run_round(exchanges, is_steady);
      return;
    }
    const auto no_exchange = [] {};
    for (int step = 0; step <= kWarmUpSteps; ++step) run_step(step == kWarmUpSteps ? 1 : 0, no_exchange);
  }

 private:
  void run_step(double stands_for, const auto& after_update) {
    run_passes();
    recorder_.all_gather_values();
    update_weights();
    after_update();
    recorder_.other(costs_.other_s);
    recorder_.end_step(stands_for);
  }
  // From the beginning of each exchange on: the steps until its end, and one that stands for those before the
  // next exchange.
  void run_round(OuterExchanges& exchanges, bool is_steady) {
    const OuterSettings& outer = *recorder_.settings().outer;
    const auto offset = [&](int64_t fragment) { return fragment * outer.sync_every / outer.num_fragments; };
    for (int64_t fragment = 0; fragment < outer.num_fragments; ++fragment) {
      const int64_t gap = offset(fragment + 1) - offset(fragment);
      const int64_t num_steps = std::min(gap, outer.sync_delay + 2);
      for (int64_t step = 0; step < num_steps; ++step) {
        const auto alike = static_cast<double>(step + 1 == num_steps ? gap - step : 1);
        run_step(is_steady ? alike : 0,
                 [&] { exchanges.updated(step == 0 ? std::optional(fragment) : std::nullopt); });
      }
    }
  }
  void run_passes() {
    const int64_t num_passes = std::ssize(costs_.passes);
    const double pass_s = costs_.passes_s() / static_cast<double>(num_passes);
    const double between_questions = std::ceil(kAskSeconds / std::max(pass_s, 1e-9));
    for (int64_t pass = 0; pass < num_passes; ++pass) {
      const bool asks = std::fmod(static_cast<double>(pass), between_questions) == 0;
      if (pass > 0 && asks) recorder_.all_gather_values();
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
  void exchange_rows(const StepCosts::Pass& costs, int64_t group, int64_t times) {
    const int64_t bytes = costs.expert_bytes.empty() ? 0 : costs.expert_bytes[static_cast<size_t>(group)];
    for (int64_t i = 0; i < times && bytes > 0; ++i)
      recorder_.wait(recorder_.issue(TransferKind::kGather, bytes, SimulatedLane::kBackground));
  }
  void forward(const StepCosts::Pass& costs, bool packs) {
    for (int64_t group = 0; group < head_; ++group) {
      open(group, /*forward=*/true, packs);
      recorder_.compute(costs.forward_s[static_cast<size_t>(group)]);
      exchange_rows(costs, group, kForwardExchanges);
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
      exchange_rows(costs, group, kBackwardExchanges);
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

  StepRecorder& recorder_;
  const StepCosts& costs_;
  bool is_tied_;
  int64_t head_;
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

double StepProgram::last_compute_s() const {
  double seconds = 0;
  for (auto action = actions.rbegin() + 1; action != actions.rend(); ++action) {
    if (action->kind == ActionKind::kStepEnd) break;
    if (action->kind == ActionKind::kCompute) seconds += action->seconds;
  }
  return seconds;
}

StepProgram step_program(const ZeroLayout& layout, const ZeroSettings& settings, const StepCosts& costs,
                         bool is_tied, int connections) {
  StepRecorder recorder(layout, settings, connections);
  Steps(recorder, costs, is_tied).run();
  return recorder.take();
}

}  // namespace tessera
