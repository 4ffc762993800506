// The rows of a mixture of experts whose experts are divided among nodes: rows go to the node that has the
// weights of their expert, and their results come back.
//
// Every rank of a rail (the ranks with the same local rank on all nodes) calls agree() for the same chunks of
// tokens, also without tokens of its own, and then for every round arriving(), send() and give_back() equally
// often. A round brings a node at most capacity() rows, however many tokens choose its experts.
#pragma once

#include <cstdint>

#include "base/divide_up.h"
#include "kernels/moe/expert_rows.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Experts [begin, end).
struct ExpertRange {
  int64_t begin = 0, end = 0;
};
inline ExpertRange experts_of_node(int64_t num_experts, int64_t num_nodes, int64_t node) {
  return {num_experts * node / num_nodes, num_experts * (node + 1) / num_nodes};
}

class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;

  // The most rows that a node gets from another in a round if no rank has more than `max_rows` at a time: a
  // quarter more than if tokens chose evenly.
  static int64_t rows_of_pair(int64_t max_rows, int64_t num_nodes) {
    return divide_up(max_rows * 5, num_nodes * 4);
  }
  static int64_t capacity(int64_t max_rows, int64_t num_nodes) {
    return num_nodes * rows_of_pair(max_rows, num_nodes);
  }

  // The experts of this rank's node.
  virtual ExpertRange own_experts() const = 0;

  struct Agreement {
    int64_t num_rounds = 1;
    bool has_more = false;  // some rank has another chunk
  };
  // The rows of this rank's chunk. An abandoned pass has one more round, without rows.
  virtual Agreement agree(const ExpertRows& rows, bool has_more) = 0;

  // The rows that arrive in a round, as those of tokens with a single choice. Others' experts have none.
  // Valid until the next call.
  virtual ExpertRows& arriving(int64_t round) = 0;
  // Of the round: this rank's rows [R, N], grouped by expert, to those that arrive [Q, N]; and back.
  virtual void send(ConstTensorView own_RN, TensorView arrived_QN) = 0;
  virtual void give_back(ConstTensorView arrived_QN, TensorView own_RN) = 0;

  // This rank would rather compute nothing more: from the next agree() on all ranks of the rail know, and
  // abandon the pass at the same place.
  virtual void wish_to_abandon() = 0;
  virtual bool is_abandoned() const = 0;
};

}  // namespace tessera
