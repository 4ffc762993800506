// Where the seconds of an operation come from: rates (RatedCosts) or measurements (measured_costs.h).
#pragma once

#include <cstdint>

#include "forecast/time/machine_rates.h"
#include "forecast/time/op_work.h"
#include "forecast/time/step_walk.h"
#include "optim/state_tensor.h"

namespace tessera {

// A rank's share of its node while all ranks of the node do the same.
struct RankShare {
  int64_t num_threads = 1;
  int local_world_size = 1;

  auto operator<=>(const RankShare&) const = default;
};

// The update of some elements by a rank.
struct UpdateWork {
  int64_t num_elements = 0;
  DType weight_dtype = DType::kBF16;
  DType gradient_dtype = DType::kF32;
  int64_t state_bytes = 0;
  int64_t gradient_reads = 1;
  bool sums_squares = false;  // of the gradients, first: where products could not
  bool has_codes = false;     // some of the state is in 8-bit codes
  double flop = 0;            // of products

  double bytes() const;
};

class OpCosts {
 public:
  virtual ~OpCosts() = default;

  // Whether products take weights in packed forms here.
  virtual bool packs_weights(DType dtype) const = 0;
  // Called before the operations of a step are priced, with its different passes in order.
  virtual void prepare(const StepWalks& /*walks*/, const std::vector<PassShape>& /*passes*/,
                       const RankShare& /*share*/) {}
  virtual double seconds(const OpWork& work, const RankShare& share) = 0;
  virtual double update_seconds(const UpdateWork& work, const RankShare& share) = 0;
  // Every rank of a node sums its share of `num_elements` gradients of all of them, and adds that to or
  // overwrites its accumulator.
  virtual double node_sum_seconds(int64_t num_elements, bool adds, const RankShare& share) = 0;
  // The time ranks wait for the slowest of them, which they meet at every layer, relative to their
  // operations.
  virtual double imbalance() const = 0;
  // Ranks of a node waiting for one another, once.
  virtual double node_latency_s() const = 0;
  // Seconds of a step besides its operations: rows, the all-gather of sums, logging.
  virtual double step_s() const = 0;
  // A node sending and receiving these bytes at once, in `num_transfers`.
  virtual double network_seconds(int64_t sent_bytes, int64_t received_bytes, int64_t num_transfers) const = 0;
  // A node reading and writing its disk, these bytes together.
  virtual double disk_seconds(int64_t bytes) const = 0;
};

class RatedCosts final : public OpCosts {
 public:
  explicit RatedCosts(const MachineRates& rates) : rates_(rates) {}

  bool packs_weights(DType dtype) const override;
  double seconds(const OpWork& work, const RankShare& share) override;
  double update_seconds(const UpdateWork& work, const RankShare& share) override;
  // Seconds of the products alone, which are large.
  double update_product_seconds(const UpdateWork& work, const RankShare& share) const;
  double node_sum_seconds(int64_t num_elements, bool adds, const RankShare& share) override;
  double imbalance() const override { return rates_.imbalance; }
  double node_latency_s() const override { return rates_.node_latency_s; }
  double step_s() const override { return rates_.step_s; }
  double network_seconds(int64_t sent_bytes, int64_t received_bytes, int64_t num_transfers) const override;
  double disk_seconds(int64_t bytes) const override {
    return static_cast<double>(bytes) / (rates_.disk_gb_per_s * 1e9);
  }

 private:
  double product_seconds(const OpWork& work, double flop_per_s, const RankShare& share) const;
  // Seconds if every rank of the node moves `bytes` at once.
  double memory_seconds(double bytes, const RankShare& share) const;

  MachineRates rates_;
};

// Bytes per rank of each all-to-all of operands, results or gradients around an operation of attention
// (context/context_ops.h), where ranks share rows; none if `work`, of all tokens and one rank's heads, is not
// attention.
std::vector<int64_t> all_to_all_sizes(const OpWork& work);
// Seconds of an all-to-all of `bytes` per rank within a node: they are read and written once when packed and
// once when unpacked, and the ranks wait for one another.
double all_to_all_seconds(int64_t bytes, DType dtype, const RankShare& share, OpCosts& op_costs);

}  // namespace tessera
