// How the rows of one optimizer step are shared by ranks and passes. The loss is divided by the targets of
// the whole step, so the gradient does not depend on who takes which row; the time does: every rank waits for
// the slowest one in the collectives of a pass.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/batch_plan.h"

namespace tessera {

enum class Dealing {
  kInOrder,  // the micro-batches of the plan, as Hugging Face's Trainer gives them to ranks
  kByCost,   // the same rows dealt anew, so that all ranks have about the same work in every pass
};

// What a row costs, at least 0, in any unit: its number of tokens bounds memory and is the work but for
// attention, whose share of a row of n tokens grows with n (model/flops.h: 4 H E n(n+1)/2 per layer beside
// 2 W n). Below some thousand tokens that share is a few per cent.
using RowCost = std::function<int64_t(int64_t row)>;

// Deals steps. Every rank computes the whole dealing by itself, from the same rows and costs. Takes no memory
// once it has seen its largest step. Not safe from several threads.
class RowDealer {
 public:
  // `micro_batches_per_pass` micro-batches of a rank are joined to one pass.
  RowDealer(Dealing dealing, int64_t world_size, int64_t micro_batches_per_pass);

  // `micro_batches` are those of BatchPlan::rows_of_step: accumulation a of rank r is number
  // a * world_size + r. Fills *passes with as many for every rank: pass p of rank r is number
  // p * world_size + r. In each the rows are in the order given. Lists may be empty where there are fewer
  // rows than lists.
  //
  // With kByCost (costs c, C of the costliest row):
  //   - the costliest pass costs no more than the costliest one of kInOrder;
  //   - any two passes, of any ranks, differ by at most C, and so do any two ranks in all their passes;
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
  // What becomes a pass; with the rank it is the rank's passes so far.
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
  std::vector<int64_t> given_piles_;  // of the items, as kInOrder has them
  std::vector<int64_t> by_cost_;      // items, costliest first
  std::vector<Pile> piles_;
  std::vector<Pile> ranks_;
  std::vector<int64_t> pass_of_pile_;
  std::vector<int64_t> pass_ends_;
  std::vector<int64_t> rows_;  // of pass 0, of pass 1, ...
};

}  // namespace tessera
