// Expert parallelism: the experts of every layer are divided among the nodes of a job, whose ranks with the
// same local rank exchange the rows of their tokens over a network group of their own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/memory.h"
#include "comm/communicator.h"
#include "ops/expert_exchange.h"
#include "platform/thread_pool.h"

namespace tessera {

class ExpertRail final : public ExpertExchange {
 public:
  // Memory of a rank for chunks of up to `max_rows` rows of `row_bytes`.
  static int64_t buffer_bytes(int64_t max_rows, int64_t row_bytes, int64_t num_nodes) {
    return capacity(max_rows, num_nodes) * row_bytes;
  }

  // Collective over the job. Arguments passed by reference must outlive this.
  ExpertRail(Communicator& comm, int64_t num_experts, int64_t max_rows, int64_t row_bytes, ThreadPool& pool);
  ~ExpertRail() override;
  ExpertRail(const ExpertRail&) = delete;
  ExpertRail& operator=(const ExpertRail&) = delete;

  ExpertRange own_experts() const override { return experts_of(rail_.index()); }
  Agreement agree(const ExpertRows& rows, bool has_more) override;
  ExpertRows& arriving(int64_t round) override;
  void send(ConstTensorView own_RN, TensorView arrived_QN) override;
  void give_back(ConstTensorView arrived_QN, TensorView own_RN) override;
  void wish_to_abandon() override { wishes_to_abandon_ = true; }
  bool is_abandoned() const override { return is_abandoned_; }

  // Traffic between nodes since the last call.
  NetworkCounters take_network();

 private:
  // Rows of one expert from one node: consecutive where they are sent from, and where they arrive.
  struct Run {
    int64_t node, sent, arrived, count;
  };

  ExpertRange experts_of(int64_t node) const { return experts_of_node(num_experts_, num_nodes_, node); }
  // What every rank of the rail has told, as a row of the table: its rows by expert, then its flags.
  std::span<const int32_t> told_by(int64_t node) const {
    return std::span(table_).subspan(static_cast<size_t>(node * row_size()), static_cast<size_t>(row_size()));
  }
  int64_t row_size() const { return num_experts_ + 1; }
  // Rows from one node to another, in all rounds.
  int64_t rows_between(int64_t from, int64_t to) const;
  // The part of `count` rows that a round moves.
  Part of_round(int64_t count) const;
  // Sets the parts of the round, in bytes of rows of this size.
  void set_parts(int64_t row_bytes);
  void copy_runs(bool of_own_node, const std::byte* from, std::byte* to, int64_t row_bytes, bool back) const;

  NetworkGroup& rail_;
  ThreadPool& pool_;
  const int64_t num_experts_, num_nodes_;
  const int64_t rows_of_pair_;
  PageBuffer box_;  // rows from or to other nodes, ordered by node
  std::vector<int32_t> table_;
  std::vector<Part> table_parts_;
  std::vector<Part> own_rows_;               // this rank's, by the node they go to
  std::vector<Part> own_parts_, box_parts_;  // bytes of a round, by node
  std::vector<int64_t> box_rows_;            // of a round: where each node's begin
  std::vector<Run> runs_;                    // of a round
  ExpertRows arriving_;
  int64_t round_ = 0;
  bool wishes_to_abandon_ = false;
  bool is_abandoned_ = false;
  NetworkCounters counted_;
};

}  // namespace tessera
