// Distributes the rows of one optimizer step over ranks and passes. The loss is divided by the number of
// targets in the whole step, so the gradient does not depend on which rank takes which row. The time does: in
// the collectives of a pass every rank waits for the slowest.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/rows/batch_plan.h"

namespace tessera {

enum class Dealing {
  kInOrder,  // the plan's micro-batches, distributed as Hugging Face's Trainer does
  kByCost,   // the same rows, rebalanced so that all ranks have about the same work in every pass
};

// The cost of a row, at least 0, in any unit. The number of tokens bounds memory and measures the work except
// for attention, whose share grows with row length n (model/flops.h: 4 H E n(n+1)/2 per layer versus 2 W n)
// but is only a few percent below some thousand tokens.
using RowCost = std::function<int64_t(int64_t row)>;

// Deals the rows of steps. Every rank computes the whole assignment itself, from the same rows and costs.
// Allocates nothing once it has seen its largest step. Not thread-safe.
class RowDealer {
 public:
  // `micro_batches_per_pass` micro-batches of a rank are merged into one pass.
  RowDealer(Dealing dealing, int64_t world_size, int64_t micro_batches_per_pass);

  // `micro_batches` are those of BatchPlan::rows_of_step: accumulation a of rank r is number a * world_size +
  // r. Fills *passes with equally many passes for every rank: pass p of rank r is number p * world_size + r.
  // Within a pass rows keep the order given. Lists may be empty if there are fewer rows than lists.
  //
  // With kByCost (costs c, C of the costliest row):
  //   - the costliest pass costs no more than the costliest pass under kInOrder;
  //   - any two passes, of any ranks, differ by at most C, and so do any two ranks in total;
  //   - the passes p of all ranks are as close to one another as the passes allow: neighbours in the order of
  //     cost, the costliest first, so that memory is at its peak in the first pass.
  // Cost: O(n log n) for n rows.
  void deal(const RowLists& micro_batches, const RowCost& cost, RowLists* passes);

 private:
  struct Item {  // a row
    int64_t row;
    int64_t cost;
    int64_t pile;
  };
  // A future pass; in ranks_, the sum of a rank's passes so far.
  struct Pile {
    int64_t cost;
    int64_t index;
  };

  void take_in_order(const RowLists& micro_batches, const RowCost& cost);
  void deal_costliest_first();
  void put_back_in_order();
  void even_out();
  void give_piles_to_ranks();
  void write(RowLists* passes);
  int64_t costliest_pile() const;

  Dealing dealing_;
  int64_t world_size_;
  int64_t micro_batches_per_pass_;
  std::vector<Item> items_;           // in the order given
  std::vector<int64_t> given_piles_;  // pile of each item under kInOrder
  std::vector<int64_t> by_cost_;      // items, costliest first
  std::vector<Pile> piles_;
  std::vector<Pile> ranks_;
  std::vector<int64_t> pass_of_pile_;
  std::vector<int64_t> pass_ends_;
  std::vector<int64_t> rows_;  // of pass 0, of pass 1, ...
};

}  // namespace tessera
