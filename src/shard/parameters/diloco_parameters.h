// Parameters of nodes that train on their own, each as a job of one node, and exchange their weights every
// sync_every updates (shard/outer/outer_settings.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "shard/outer/outer_optimizer.h"
#include "shard/parameters/parameter_state.h"

namespace tessera {

// Checkpoints have the outer weights as masters, and so nothing that depends on the number of nodes: before
// one is written, nodes exchange their weights whenever that is due next, and take the mean of their
// optimizers' states (settle_state()).
class DilocoParameters : public ParameterState {
 public:
  // Parameters as make_parameter_state()'s; `settings` has outer settings.
  DilocoParameters(TrainableModel& model, const ZeroSettings& settings,
                   std::unique_ptr<const Optimizer> optimizer, bool decay_all, Communicator& job,
                   ThreadPool& pool);

  void load(const SafetensorsModel& file, LoadOnce once,
            const std::function<void(const LoadProgress&)>& progress) override;
  WeightUpdate begin_pass(bool is_first, bool is_last) override {
    return node_->begin_pass(is_first, is_last);
  }
  void end_pass() override { node_->end_pass(); }
  void expect_rehearsal() override { node_->expect_rehearsal(); }
  double gradient_squares() const override { return node_->gradient_squares(); }
  std::string not_finite_gradient() const override { return node_->not_finite_gradient(); }
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;
  void discard_step() override { node_->discard_step(); }
  NetworkCounters take_network() override;
  StateTensors state_tensors() const override { return state_tensors_; }
  void export_masters(const std::function<void(const WeightSource&)>& write) override;
  void synchronize(const ChangeHook& before_change) override;
  void settle_state(const ChangeHook& before_change) override;
  std::vector<ElementRange> owned() const override;
  void read_state(StateKind kind, int64_t begin, std::span<float> values) const override;
  StoredSource stored_source() const override;
  std::vector<ElementRange> kept() const override { return node_->kept(); }
  void write_state(StateKind kind, int64_t begin, std::span<const float> values) override;
  void state_written() override { node_->state_written(); }

 private:
  // An exchange whose result is used some updates after its beginning.
  struct Exchange {
    int64_t fragment;
    int64_t begun;  // after so many updates
    bool has_stepped = false;
  };

  bool is_momentum(StateKind kind) const {
    return kind != StateKind::kMaster && tensor_index(kind) + 1 == state_tensors_.size();
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

  const OuterSettings settings_;
  std::unique_ptr<Communicator> node_comm_;
  std::unique_ptr<ParameterState> node_;
  NetworkGroup* network_;  // not the job's rail, over which ranks talk while weights are on their way
  OuterOptimizer outer_;
  NetworkCounters seen_, counted_;
  std::vector<StateTensor> state_tensors_;
  std::optional<Exchange> pending_;
  bool is_synchronized_ = true;  // no update since all weights were exchanged, and no error left
  bool quantizes_;
  int node_rank_;
};

}  // namespace tessera
