#include "data/rows/row_statistics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <span>

#include "base/error.h"
#include "data/cache/token_cache.h"
#include "data/row_building.h"
#include "data/row_stream.h"
#include "data/rows/batch_plan.h"
#include "data/rows/token_masks.h"

namespace tessera {
namespace {

class RowCounter {
 public:
  explicit RowCounter(const RowStatisticsOptions& options) : options_(options) {
    statistics_.max_length = options.max_length;
  }

  // A row of a source and its target: `num_cut` tokens of it are already cut off.
  void count_pair(const std::string& file, std::span<const int32_t> labels,
                  std::span<const int32_t> sequence_lengths, int64_t num_cut) {
    if (is_masked(labels)) {
      ++statistics_.num_masked;
      return;
    }
    statistics_.source_lengths.push_back(sequence_lengths[0]);
    statistics_.target_lengths.push_back(sequence_lengths[1] - 1);
    add(file, std::ssize(labels) - 1 + num_cut, count_targets(std::ssize(labels), labels, sequence_lengths));
    add_cut(num_cut);
  }

  // A row of an encoder, whose targets are those of an evaluation; `num_cut` tokens are already cut off.
  void count_masked(const std::string& file, const MaskingRule& rule, std::span<const int32_t> ids,
                    std::span<const int32_t> labels, int64_t num_cut) {
    std::vector<int32_t> inputs(ids.begin(), ids.end()), targets(labels.begin(), labels.end());
    const int64_t num_targets =
        resolve_masked_row(rule, kNoStep, std::ssize(statistics_.lengths), &inputs, &targets);
    add(file, std::ssize(inputs) + num_cut, num_targets);
    add_cut(num_cut);
  }

  // If keeps_masked, a row is dropped for its labels only if it is cut.
  void count(const std::string& file, std::span<const int32_t> ids, std::span<const int32_t> labels,
             bool keeps_masked) {
    const bool is_cut = std::ssize(ids) > options_.max_length;
    const auto kept = labels.first(std::min(labels.size(), static_cast<size_t>(options_.max_length)));
    if (!options_.packing && !kept.empty() && (is_cut || !keeps_masked) && is_masked(kept)) {
      ++statistics_.num_masked;
      return;
    }
    add(file, std::ssize(ids), count_targets(std::ssize(ids), labels, {}));
    add_cut(std::max<int64_t>(0, std::ssize(ids) - options_.max_length));
  }

  // What read_tensor_rows() has dropped and cut off itself.
  void add_counts(const DocumentCounts& counts) {
    statistics_.num_masked += counts.num_masked_rows;
    statistics_.num_cut_rows += counts.num_cut_documents;
    statistics_.num_cut_tokens += counts.num_cut_tokens;
  }

  void count_rows(const RowStream& stream, const RowOptions& options) {
    for (size_t i = 0; i < stream.rows().size(); ++i) {
      const TokenizedRow& row = stream.rows()[i];
      if (row.error) {
        if (!may_skip(row.error, options, &statistics_.first_problem)) std::rethrow_exception(row.error);
        ++statistics_.num_bad;
      } else if (row.is_invalid) {
        ++statistics_.num_bad;
      } else if (row.ids.empty()) {
        ++statistics_.num_empty;
      } else if (options.source_target) {
        count_pair(stream.documents()[i].file->string(), row.labels, row.sequence_lengths,
                   row.num_cut_tokens);
      } else if (options.masking) {
        count_masked(stream.documents()[i].file->string(), *options.masking, row.ids, row.labels,
                     row.num_cut_tokens);
      } else {
        count(stream.documents()[i].file->string(), row.ids, row.labels, row.keeps_masked);
      }
    }
  }

  // Error(kBadData) if no row was counted.
  RowStatistics finish() {
    RowStatistics& all = statistics_;
    if (all.lengths.empty()) {
      fail(ExitCode::kBadData, "the dataset is empty: {} without text, {} without a target, {} not usable{}",
           all.num_empty, all.num_masked, all.num_bad,
           all.first_problem.empty() ? "" : "; the first: " + all.first_problem);
    }
    const std::array sides = {all.source_lengths, all.target_lengths};
    const std::array rows = {all.lengths};
    all.padding_share = all.source_lengths.empty()
                            ? padding_share(rows, options_.padded_batch, options_.max_length)
                            : padding_share(sides, options_.padded_batch, INT32_MAX);
    for (std::vector<int32_t>* lengths : {&all.lengths, &all.source_lengths, &all.target_lengths})
      std::ranges::sort(*lengths);
    return std::move(all);
  }

 private:
  void add(const std::string& file, int64_t num_tokens, int64_t num_targets) {
    statistics_.lengths.push_back(static_cast<int32_t>(std::min<int64_t>(num_tokens, INT32_MAX)));
    statistics_.num_targets += num_targets;
    RowStatistics::File& of_file = statistics_.files[file];
    ++of_file.num_rows;
    of_file.num_tokens += num_tokens;
  }
  void add_cut(int64_t num_tokens) {
    statistics_.num_cut_rows += num_tokens > 0 ? 1 : 0;
    statistics_.num_cut_tokens += num_tokens;
  }

  const RowStatisticsOptions& options_;
  RowStatistics statistics_;
};

}  // namespace

int64_t RowStatistics::num_tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

int64_t RowStatistics::quantile(double share) const {
  const auto last = static_cast<double>(lengths.size() - 1);
  return lengths[static_cast<size_t>(share * last + 0.5)];
}

std::map<int, int64_t> RowStatistics::histogram() const {
  std::map<int, int64_t> buckets;
  for (const int32_t length : lengths) ++buckets[std::bit_width(static_cast<uint32_t>(length)) - 1];
  return buckets;
}

double padding_share(std::span<const std::vector<int32_t>> lengths, int64_t batch_rows, int64_t max_length) {
  const auto num_rows = std::ssize(lengths[0]);
  const std::vector<int64_t> order = torch_randperm(num_rows, /*seed=*/42);
  double computed = 0;
  double useful = 0;
  for (int64_t begin = 0; begin < num_rows; begin += batch_rows) {
    const int64_t end = std::min(begin + batch_rows, num_rows);
    for (const std::vector<int32_t>& of_side : lengths) {
      int64_t longest = 0;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = order[static_cast<size_t>(i)];
        const int64_t length = std::min<int64_t>(of_side[static_cast<size_t>(row)], max_length);
        longest = std::max(longest, length);
        useful += static_cast<double>(length);
      }
      computed += static_cast<double>(longest * (end - begin));
    }
  }
  return computed == 0 ? 0 : 1 - useful / computed;
}

RowStatistics row_statistics(const RowPlan& plan, const DatasetOptions& dataset, const Tokenizer* tokenizer,
                             int64_t vocab_size, const RowStatisticsOptions& options, ThreadPool* pool,
                             const std::function<void(double)>& progress) {
  RowCounter counter(options);
  int64_t size_bytes = 0;
  for (const SourceFile& file : plan.files) size_bytes += file.stamp.size_bytes;
  if (plan.is_pretokenized) {
    for (const std::filesystem::path& path : plan.paths()) {
      RowPlan of_file = plan;
      std::erase_if(of_file.files, [&](const SourceFile& file) { return file.path != path; });
      const DocumentCounts counts = read_tensor_rows(
          of_file, dataset, vocab_size, INT32_MAX, INT64_MAX, [&](auto ids, auto labels, auto lengths) {
            if (dataset.source_target) {
              counter.count_pair(path.string(), labels, lengths, 0);
            } else if (dataset.masking) {
              counter.count_masked(path.string(), *dataset.masking, ids, labels, 0);
            } else {
              counter.count(path.string(), ids, labels, /*keeps_masked=*/true);
            }
          });
      if (dataset.source_target || dataset.masking) counter.add_counts(counts);
    }
  } else {
    RowStream stream(plan, dataset, tokenizer, vocab_size, pool);
    while (stream.next()) {
      counter.count_rows(stream, dataset);
      if (progress) progress(static_cast<double>(stream.bytes_read()) / static_cast<double>(size_bytes + 1));
    }
  }
  RowStatistics statistics = counter.finish();
  statistics.size_bytes = size_bytes;
  return statistics;
}

}  // namespace tessera
