// Measurements of this machine: its rates in general, and the seconds of a model's operations, measured in a
// few small steps (sample_step.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "forecast/time/op_costs.h"
#include "forecast/time/sample_step.h"

namespace tessera {

// rates_of_instance() for the processor this is, with the arithmetic peak and the memory bandwidth of the
// pool's threads, in about half a second.
MachineRates measured_rates(ThreadPool& pool);

// Rates of a machine with this one's instructions and this peak at products of `dtype`, without measuring;
// nullopt: the peak at a clock of 3 GHz.
MachineRates rates_of_this_processor(std::optional<double> tflops, int64_t num_cores, DType dtype);

struct MeasuringOptions {
  double seconds = 1;         // for each kind of step; large operations run at least three times
  int64_t max_tokens = 2048;  // through the model at once; more are extrapolated
  OptimizerForm optimizer = OptimizerForm::kAdamW;
  MachineRates rates;  // for what cannot be measured here: network, disk, latencies
};

class MeasuredCosts final : public OpCosts {
 public:
  explicit MeasuredCosts(MeasuringOptions options = {}) : options_(std::move(options)) {}

  bool packs_weights(DType dtype) const override;
  // Measures unless the same passes were measured before.
  void prepare(const StepWalks& walks, const std::vector<PassShape>& passes, const RankShare& share) override;
  double seconds(const OpWork& work, const RankShare& share) override;
  double update_seconds(const UpdateWork& work, const RankShare& share) override;
  double node_sum_seconds(int64_t num_elements, bool adds, const RankShare& share) override;
  double imbalance() const override { return current_->imbalance; }
  double node_latency_s() const override { return options_.rates.node_latency_s; }
  double step_s() const override { return options_.rates.step_s; }
  double network_seconds(int64_t sent_bytes, int64_t received_bytes, int64_t num_transfers) const override {
    return RatedCosts(options_.rates).network_seconds(sent_bytes, received_bytes, num_transfers);
  }
  double disk_seconds(int64_t bytes) const override { return RatedCosts(options_.rates).disk_seconds(bytes); }
  // Measurements that differ from what was asked for, one per line.
  const std::vector<std::string>& notes() const { return notes_; }
  // Forgets all measurements.
  void clear();

 private:
  // The inputs that a measurement depends on.
  struct Key {
    std::string model;
    DType dtype;
    std::vector<PassShape> passes;
    RankShare share;
    auto operator<=>(const Key&) const = default;
  };

  SampleRequest request_for(const StepWalks& walks, const std::vector<PassShape>& passes,
                            const RankShare& share);

  MeasuringOptions options_;
  std::map<Key, SampledStep> measured_;
  const SampledStep* current_ = nullptr;  // of the last prepare()
  std::vector<std::string> notes_;
};

}  // namespace tessera
