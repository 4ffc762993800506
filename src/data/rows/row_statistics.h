// Row lengths of a dataset, its targets and its dropped rows and tokens: `tessera data stats`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/row_plan.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct RowStatistics {
  struct File {
    int64_t num_rows = 0;
    int64_t num_tokens = 0;
  };

  std::vector<int32_t> lengths;  // tokens of every row, uncut, ascending; of source and target together
  std::vector<int32_t> source_lengths;  // the same of the sources alone, as cut; empty without sources
  std::vector<int32_t> target_lengths;
  int64_t max_length = 0;  // to which training cuts them
  int64_t num_targets = 0;
  int64_t num_empty = 0;
  int64_t num_bad = 0;     // not UTF-8 or not usable
  int64_t num_masked = 0;  // no label within max_length: dropped
  std::string first_problem;
  std::map<std::string, File> files;  // by their paths
  int64_t size_bytes = 0;             // of all files
  double padding_share = 0;           // see padding_share()
  // Rows longer than their limits, and their tokens beyond these.
  int64_t num_cut_rows = 0;
  int64_t num_cut_tokens = 0;

  int64_t num_tokens() const;
  // The length that this share of the rows does not exceed. There must be rows.
  int64_t quantile(double share) const;
  // Rows of 2^n to 2^(n+1) - 1 tokens, by n.
  std::map<int, int64_t> histogram() const;
};

struct RowStatisticsOptions {
  int64_t max_length = 0;
  bool packing = false;      // packed rows keep documents without a label
  int64_t padded_batch = 8;  // rows of a batch in a trainer that pads
};

// Reads and tokenizes all rows of `plan`; `tokenizer` may be null if the plan needs none. `progress` gets the
// share that has been read. Error(kBadData) if no row is left, and as RowStream.
RowStatistics row_statistics(const RowPlan& plan, const DatasetOptions& dataset, const Tokenizer* tokenizer,
                             int64_t vocab_size, const RowStatisticsOptions& options, ThreadPool* pool,
                             const std::function<void(double)>& progress = {});

// The share of padding in the computation of a trainer that pads, in batches of `batch_rows` in the order of
// Trainer's first epoch. `lengths` are those of the rows in their order, cut to max_length here; a trainer
// pads sources and targets apart, so there may be several lists.
double padding_share(std::span<const std::vector<int32_t>> lengths, int64_t batch_rows, int64_t max_length);

}  // namespace tessera
