#include "data/rows/row_statistics.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <span>

#include "base/error.h"
#include "data/cache/pretokenized_rows.h"
#include "data/cache/token_cache.h"
#include "data/row_building.h"
#include "data/row_stream.h"
#include "data/rows/batch_plan.h"

namespace tessera {
namespace {

class RowCounter {
 public:
  explicit RowCounter(const RowStatisticsOptions& options) : options_(options) {
    statistics_.max_length = options.max_length;
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
    statistics_.lengths.push_back(static_cast<int32_t>(std::min<int64_t>(std::ssize(ids), INT32_MAX)));
    statistics_.num_targets += count_targets(std::ssize(ids), labels, {});
    RowStatistics::File& of_file = statistics_.files[file];
    ++of_file.num_rows;
    of_file.num_tokens += std::ssize(ids);
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
    all.padding_share = padding_share(all.lengths, options_.padded_batch, options_.max_length);
    std::ranges::sort(all.lengths);
    return std::move(all);
  }

 private:
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

int64_t RowStatistics::num_cut_rows() const {
  return std::ranges::count_if(lengths, [&](int32_t length) { return length > max_length; });
}

int64_t RowStatistics::num_cut_tokens() const {
  int64_t tokens = 0;
  for (const int32_t length : lengths) tokens += std::max<int64_t>(0, length - max_length);
  return tokens;
}

std::map<int, int64_t> RowStatistics::histogram() const {
  std::map<int, int64_t> buckets;
  for (const int32_t length : lengths) ++buckets[std::bit_width(static_cast<uint32_t>(length)) - 1];
  return buckets;
}

double padding_share(const std::vector<int32_t>& lengths, int64_t batch_rows, int64_t max_length) {
  const auto num_rows = std::ssize(lengths);
  const std::vector<int64_t> order = torch_randperm(num_rows, /*seed=*/42);
  double computed = 0;
  double useful = 0;
  for (int64_t begin = 0; begin < num_rows; begin += batch_rows) {
    const int64_t end = std::min(begin + batch_rows, num_rows);
    int64_t longest = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = order[static_cast<size_t>(i)];
      const int64_t length = std::min<int64_t>(lengths[static_cast<size_t>(row)], max_length);
      longest = std::max(longest, length);
      useful += static_cast<double>(length);
    }
    computed += static_cast<double>(longest * (end - begin));
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
      read_pretokenized_rows({&path, 1}, vocab_size, INT32_MAX, plan.has_labels,
                             dataset.reads_completion_mask, dataset.drops_masked_ids, INT64_MAX,
                             [&](auto ids, auto labels, auto) {
                               counter.count(path.string(), ids, labels, /*keeps_masked=*/true);
                             });
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
