// The update of nodes that train on their own and exchange their weights every sync_every updates
// (shard/layout/outer_settings.h), around the update that each of them makes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "shard/outer/outer_optimizer.h"
#include "shard/update/update_rule.h"

namespace tessera {

// Masters and state that a rank keeps for its node. Several threads may access disjoint elements.
struct InnerState {
  std::function<void(StateKind kind, int64_t begin, std::span<float> values)> read;
  std::function<void(StateKind kind, int64_t begin, std::span<const float> values)> write;
  std::function<void()> written;  // collective in the node, after it
};

// Checkpoints have the outer weights as masters, and so nothing that depends on the number of nodes: before
// one is written, nodes exchange their weights whenever that is due next, and take the mean of their
// optimizers' states (settle_state()).
class OuterUpdate final : public UpdateRule {
 public:
  // `settings` has outer settings; `num_tensors` is the number of tensors of the node's optimizer.
  OuterUpdate(std::unique_ptr<UpdateRule> of_node, InnerState node, size_t num_tensors,
              const ZeroLayout& job_layout, const ZeroSettings& settings, Communicator& job,
              ThreadPool& pool);

  void begin_pass(bool is_last) override { of_node_->begin_pass(is_last); }
  bool end_pass() override { return of_node_->end_pass(); }
  void before_open(int64_t group) override { of_node_->before_open(group); }
  void gradients_complete(int64_t group) override { of_node_->gradients_complete(group); }
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;
  void finish() override { of_node_->finish(); }
  double take_seconds() override { return of_node_->take_seconds(); }

  // The node's masters, which all nodes have alike, become the outer weights.
  void loaded(const std::vector<ElementRange>& kept);
  // Gives all nodes the same weights, the ones that are saved.
  void synchronize(const ChangeHook& before_change);
  // They also take the mean of their optimizers' states.
  void settle_state(const ChangeHook& before_change);

  // The elements this rank writes to checkpoints, which cover the array over all ranks of the job. `tensors`:
  // the node's optimizer's, then kOuterMomentum.
  std::vector<ElementRange> owned() const;
  bool is_momentum(StateKind kind) const {
    return kind != StateKind::kMaster && tensor_index(kind) == num_tensors_;
  }
  // Whether this, rather than the node's state, is what a checkpoint holds.
  bool keeps(StateKind kind) const { return kind == StateKind::kMaster || is_momentum(kind); }
  void read(StateKind kind, int64_t begin, std::span<float> values) const {
    outer_.read(kept_as(kind), begin, values);
  }
  void write(StateKind kind, int64_t begin, std::span<const float> values) {
    outer_.write(kept_as(kind), begin, values);
  }

  // Traffic between nodes since the last call, without that of synchronize() and settle_state().
  NetworkCounters take_network();

 private:
  // An exchange whose result is used some updates after its beginning.
  struct Exchange {
    int64_t fragment;
    int64_t begun;  // number of updates before it began
    bool has_stepped = false;
  };

  OuterOptimizer::Kept kept_as(StateKind kind) const {
    return is_momentum(kind) ? OuterOptimizer::Kept::kMomentum : OuterOptimizer::Kept::kWeights;
  }
  // The node's own values of a kind.
  NodeWeights of_node(StateKind kind);
  // Calls before_change for the owned ones of the elements.
  void announce_change(const ChangeHook& before_change, ElementRange elements) const;
  // All of an exchange, at once.
  void exchange(int64_t fragment, bool exactly, double alpha);
  void begin_exchange(int64_t fragment, int64_t num_updates);
  void step_exchange();
  void finish_exchange(double alpha);
  // Adds the traffic since the last call to what take_network() returns.
  void count_traffic();

  std::unique_ptr<UpdateRule> of_node_;
  InnerState node_;
  size_t num_tensors_;
  const OuterSettings settings_;
  NetworkGroup* network_;  // not the job's rail, over which ranks talk while weights are on their way
  OuterOptimizer outer_;
  NetworkCounters seen_, counted_;
  std::optional<Exchange> pending_;
  bool is_synchronized_ = true;  // no update since all weights were exchanged, and no error left
  bool quantizes_;
  int node_rank_;
};

}  // namespace tessera
