// Writes down what a simulated node does, with the bytes that its transfers have.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/network/link/chunk_count.h"
#include "forecast/simulation/step_program.h"
#include "kernels/quantized_weight/gradient_blocks.h"
#include "kernels/quantized_weight/int8_blocks.h"

namespace tessera {

class StepRecorder {
 public:
  // `job` and `settings` must outlive it.
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
  // The step stands for so many of the steady state.
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
  // All nodes exchange a few numbers and wait for them; a single node does nothing.
  void exchange_values() {
    if (job_.num_nodes == 1) return;
    const double ranks = job_.local_world_size;
    wait(add({TransferKind::kValues, step_, ranks * kValueBytes, ranks}));
  }

  const ZeroLayout& job() const { return job_; }
  // The same for the nodes that share the parameters: one, where nodes train on their own.
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
  // What stop_agreement.cc and step_exchange.cc send: losses, times, signals.
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

}  // namespace tessera
